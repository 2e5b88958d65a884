"""The results of a rehearsal: curves of all queues and totals of all stations. Can be exported as
JSON and CSV.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hopback.rehearse.scenario import Scenario
    from hopback.rehearse.station import Station
    from hopback.topology.model import Topology


class Cumulative:
    """A curve as a list of corners, sorted by time. It starts at (0, 0) and keeps its last value."""

    __slots__ = ("moments", "values")

    def __init__(self) -> None:
        self.moments: list[float] = [0.0]
        self.values: list[float] = [0.0]

    @property
    def last(self) -> float:
        return self.values[-1]

    def add(self, begin: float, end: float, amount: float) -> None:
        """Increase by an amount at a constant rate from `begin` to `end`."""
        value = self.values[-1]
        begin = max(begin, self.moments[-1])
        if begin > self.moments[-1]:
            self.to(begin, value)
        self.to(max(end, begin), value + amount)

    def hold(self, begin: float, end: float, value: float) -> None:
        """Keep this value from `begin` to `end`."""
        self.to(begin, value)
        self.to(end, value)

    def to(self, moment: float, value: float) -> None:
        """Add a straight line to a value. Corners that are on the line are omitted."""
        moments, values = self.moments, self.values
        if len(moments) > 1 and values[-1] == value == values[-2]:
            moments[-1] = moment
            return
        moments.append(moment)
        values.append(value)

    def at(self, moment: float) -> float:
        return self.sample((moment,))[0]

    def when(self, value: float) -> float:
        """Return the time when the curve reaches a value, or infinity if it never does. The curve
        must not decrease.
        """
        moments, values = self.moments, self.values
        place = bisect_left(values, value)
        if place == len(values):
            return math.inf
        if place == 0:
            return moments[0]
        low, high = values[place - 1], values[place]
        begin, end = moments[place - 1], moments[place]
        return begin + (end - begin) * (value - low) / (high - low)

    def sample(self, times: Sequence[float]) -> list[float]:
        """Return the values at these times. If the curve jumps, the later value is used."""
        moments, values = self.moments, self.values
        most = len(moments) - 1
        found = []
        for time in times:
            place = bisect_right(moments, time)
            if place > most:
                found.append(values[most])
            elif place == 0:
                found.append(0.0)
            else:
                begin, end = moments[place - 1], moments[place]
                share = (time - begin) / (end - begin)
                found.append(values[place - 1] + (values[place] - values[place - 1]) * share)
        return found


def differences(values: Sequence[float], times: Sequence[float]) -> tuple[float, ...]:
    """Return the increase per second before each time. There is no value before the first time, so
    the second is used.
    """
    steps = [
        (after - before) / (end - begin)
        for before, after, begin, end in zip(values, values[1:], times, times[1:], strict=False)
    ]
    return (steps[0], *steps) if steps else (0.0,) * len(values)


class Storage(NamedTuple):
    """The memory and disk space used by a message in bytes.

    `logged` is the additional memory while a message is in the write-ahead log of quorum queues.
    """

    memory: float
    disk: float
    logged: float = 0.0


LOG_BYTES = 512 * 1024 * 1024
"""RabbitMQ's `raft.wal_max_size_bytes`. When the log has this size, its messages are written to the
files of the queues and removed from memory. All quorum queues of a node share the log.
"""

BYTES_EACH: dict[str, tuple[tuple[BrokerVersion, tuple[tuple[int, Storage], ...]], ...]] = {
    "classic": (
        (BrokerVersion(3, 10), (
            (100, Storage(793, 308)),
            (1_000, Storage(1_694, 1_209)),
            (10_000, Storage(11_216, 10_236)),
            (100_000, Storage(108_171, 100_243)),
        )),
        # Since 4.0, classic queues keep messages on disk. Only the next few of them are in memory.
        (BrokerVersion(4, 0), (
            (100, Storage(3, 300)),
            (1_000, Storage(13, 1_201)),
            (10_000, Storage(393, 10_220)),
            (100_000, Storage(11_542, 100_227)),
        )),
    ),
    # `logged` was measured with 4.3, which had the highest value. With 3.10 and 4.0, part of the
    # log had already been written to disk.
    "quorum": (
        (BrokerVersion(3, 10), (
            (100, Storage(42, 451, 756)),
            (1_000, Storage(41, 1_352, 1_668)),
            (10_000, Storage(63, 10_361, 11_454)),
            (100_000, Storage(226, 100_418, 107_710)),
        )),
        (BrokerVersion(4, 0), (
            (100, Storage(70, 390, 756)),
            (1_000, Storage(71, 1_299, 1_668)),
            (10_000, Storage(117, 10_287, 11_454)),
            (100_000, Storage(205, 100_346, 107_710)),
        )),
        (BrokerVersion(4, 3), (
            (100, Storage(37, 374, 756)),
            (1_000, Storage(33, 1_278, 1_668)),
            (10_000, Storage(79, 10_287, 11_454)),
            (100_000, Storage(407, 100_523, 107_710)),
        )),
    ),
}  # fmt: skip
"""For each queue type, the first version of each measurement, with body sizes and costs."""


def storage_of(queue_type: str, size: int, version: BrokerVersion) -> Storage:
    """Return the cost of a message with this size. Older versions than the first measured one have
    the same cost.
    """
    measured = BYTES_EACH.get(queue_type, BYTES_EACH["quorum"])
    rows = next((rows for since, rows in reversed(measured) if since <= version), measured[0][1])
    low, high = next((pair for pair in pairwise(rows) if size <= pair[1][0]), (rows[-2], rows[-1]))
    share = max(0.0, (size - low[0]) / (high[0] - low[0]))
    return Storage(*(a + (b - a) * share for a, b in zip(low[1], high[1], strict=True)))


_REST_SHARE = 0.005
"""A queue has recovered when its depth is at most the normal depth plus this fraction of the
maximum. Waiting for the last of a million messages would make the result random.
"""
_NOISE = 3.0
"""The number of standard deviations by which a count may differ from its mean."""


@dataclass(slots=True)
class Track:
    """The samples of a station. Counts are cumulative."""

    station: Station
    arrived: Sequence[float]
    returned: Sequence[float]
    runs: Sequence[float]
    failed: Sequence[float]
    parked: Sequence[float]
    redriven: Sequence[float]
    depth: Sequence[float]
    waits: Sequence[Sequence[float]]
    wait_s: Sequence[float]
    oldest_s: Sequence[float]
    capacity: Sequence[float]
    first_parked_s: float | None
    most: dict[str, tuple[float, float]]
    """Maximum depth of each queue and its time, which may be between two samples."""
    published: float
    copied: float
    refused: float
    dropped: float
    done: float


@dataclass(frozen=True, slots=True)
class QueueCourse:
    """The depth of a queue over time. Includes unacked messages."""

    queue: str
    role: str
    type: str
    depth: tuple[float, ...]
    memory_each: float
    disk_each: float
    logged_each: float
    peak: float
    """The maximum depth. It may be between two samples."""
    peak_s: float
    """The time of the maximum depth."""


@dataclass(frozen=True, slots=True)
class StationCourse:
    """The results for a consumed queue: rates per second, ages and totals.

    `wait_s` is the time the first message has been in the queue. `oldest_s` is the age of the
    oldest message that is neither done nor dead-lettered, whether it is in the queue, being handled
    or waiting for a retry. A re-driven message counts as new.
    """

    station: Station = field(repr=False)
    queue: str
    arrivals: tuple[float, ...]
    returns: tuple[float, ...]
    runs: tuple[float, ...]
    failures: tuple[float, ...]
    capacity: tuple[float, ...]
    wait_s: tuple[float, ...]
    oldest_s: tuple[float, ...]
    retrying: tuple[float, ...]
    most_retrying: float
    published: float
    copied: float
    refused: float
    dropped: float
    run_count: float
    failed: float
    retried: float
    done: float
    dead_letters: float
    redriven: float
    left: float
    first_dead_letter_s: float | None
    recovered_s: float | None


@dataclass(frozen=True, slots=True)
class Forecast:
    """The result of a rehearsal."""

    engine: str
    topology: str
    scenario: Scenario
    times: tuple[float, ...]
    queues: tuple[QueueCourse, ...]
    stations: tuple[StationCourse, ...]
    memory: tuple[float, ...]
    disk: tuple[float, ...]

    @property
    def dead_letters(self) -> float:
        """Total number of dead letters."""
        return sum(station.dead_letters for station in self.stations)

    @property
    def first_dead_letter_s(self) -> float | None:
        moments = [one.first_dead_letter_s for one in self.stations]
        return min((moment for moment in moments if moment is not None), default=None)

    @property
    def recovered_s(self) -> float | None:
        """The time when all queues have recovered. None if this was not before the end."""
        moments = [one.recovered_s for one in self.stations]
        known = [moment for moment in moments if moment is not None]
        return max(known) if len(known) == len(moments) else None

    @property
    def recovery_s(self) -> float | None:
        """The number of seconds between the end of the last disruption and the recovery of all
        queues.
        """
        if self.recovered_s is None:
            return None
        return max(0.0, self.recovered_s - self.scenario.last_trouble_s)

    def queue(self, name: str) -> QueueCourse:
        """Return the results of a queue. Raises KeyError if it is not part of the rehearsal."""
        found = next((one for one in self.queues if one.queue == name), None)
        if found is None:
            raise KeyError(
                f"expected one of {', '.join(q.queue for q in self.queues)}, got {name!r}"
            )
        return found


def sample_times(scenario: Scenario) -> tuple[float, ...]:
    """Return the sample times, from the start to the end of the scenario."""
    count = scenario.samples
    return tuple(scenario.duration_s * number / count for number in range(count + 1))


def forecast_of(
    engine: str, topology: Topology, scenario: Scenario, tracks: Sequence[Track]
) -> Forecast:
    """Create a forecast from the tracks of all stations."""
    times = sample_times(scenario)
    depths: dict[str, list[float]] = {}
    roles: dict[str, tuple[str, int]] = {}
    between = {name: most for track in tracks for name, most in track.most.items()}
    every: list[tuple[str, str, int, Sequence[float]]] = []
    for track in tracks:
        station, size = track.station, track.station.load.size
        every.append((station.queue, "main", size, track.depth))
        for wait, waiting in zip(station.waits, track.waits, strict=True):
            every.append((wait.queue, "retry", size, waiting))
        resting = [a - b for a, b in zip(track.parked, track.redriven, strict=True)]
        every.append((station.plan.parking.queue, "dead-letter", size, resting))
    for name, role, size, depth in every:
        known = depths.get(name)
        depths[name] = (
            list(depth) if known is None else [a + b for a, b in zip(known, depth, strict=True)]
        )
        roles.setdefault(name, (role, size))
    queues = tuple(
        _queue_course(
            topology, scenario, name, *roles[name], tuple(depth), between.get(name, (0.0, 0.0))
        )
        for name, depth in depths.items()
    )
    # Count ready messages, plus those that are still in the log of the quorum queues.
    logged = [queue for queue in queues if queue.logged_each]
    memory = []
    for place in range(len(times)):
        written = sum(queue.depth[place] * queue.disk_each for queue in logged)
        in_log = min(1.0, LOG_BYTES / written) if written > 0 else 0.0
        waiting_bytes = sum(queue.depth[place] * queue.memory_each for queue in queues)
        log_bytes = sum(queue.depth[place] * queue.logged_each for queue in logged)
        memory.append(waiting_bytes + in_log * log_bytes)
    return Forecast(
        engine=engine,
        topology=topology.name,
        scenario=scenario,
        times=times,
        queues=queues,
        stations=tuple(_station_course(track, scenario, times) for track in tracks),
        memory=tuple(memory),
        disk=tuple(
            sum(queue.depth[place] * queue.disk_each for queue in queues)
            for place in range(len(times))
        ),
    )


def _queue_course(
    topology: Topology,
    scenario: Scenario,
    name: str,
    role: str,
    size: int,
    depth: tuple[float, ...],
    between: tuple[float, float],
) -> QueueCourse:
    found = topology.queue(name)
    kind = "classic" if found is None else str(found.type)
    each = storage_of(kind, size, scenario.version)
    place = max(range(len(depth)), key=depth.__getitem__)
    peak, peak_s = max((depth[place], sample_times(scenario)[place]), between, key=itemgetter(0))
    return QueueCourse(name, role, kind, depth, each.memory, each.disk, each.logged, peak, peak_s)


def _station_course(track: Track, scenario: Scenario, times: tuple[float, ...]) -> StationCourse:
    retrying = tuple(sum(values) for values in zip(*track.waits, strict=True))
    retrying = retrying or (0.0,) * len(times)
    return StationCourse(
        station=track.station,
        queue=track.station.queue,
        arrivals=differences(track.arrived, times),
        returns=differences(track.returned, times),
        runs=differences(track.runs, times),
        failures=differences(track.failed, times),
        capacity=tuple(track.capacity),
        wait_s=tuple(track.wait_s),
        oldest_s=tuple(track.oldest_s),
        retrying=retrying,
        most_retrying=max(
            *retrying,
            *(track.most.get(wait.queue, (0.0, 0.0))[0] for wait in track.station.waits),
            0.0,
        ),
        published=track.published,
        copied=track.copied,
        refused=track.refused,
        dropped=track.dropped,
        run_count=track.runs[-1],
        failed=track.failed[-1],
        retried=track.failed[-1] - track.parked[-1],
        done=track.done,
        dead_letters=track.parked[-1],
        redriven=track.redriven[-1],
        left=track.depth[-1] + retrying[-1],
        first_dead_letter_s=track.first_parked_s,
        recovered_s=_recovery_time(track, retrying, scenario, times),
    )


def usual_retrying(station: Station, rate: float) -> float:
    """Return the number of messages that wait for a retry when there is no outage."""
    load, level = station.load, 0.0
    failing = 1 - load.poison
    for place in station.wait_after:
        failing *= load.fail
        level += rate * (failing + load.poison) * station.waits[place].delay_s
    return level


def _recovery_time(
    track: Track, retrying: tuple[float, ...], scenario: Scenario, times: tuple[float, ...]
) -> float | None:
    """Return the index of the first sample after which the queue and its retry queues stay normal.
    Returns None if they are not normal at the end.
    """
    station, load = track.station, track.station.load
    most_depth, most_retrying = max(track.depth), max(retrying)
    recovered: float | None = None
    for place in range(len(times) - 1, -1, -1):
        if times[place] < scenario.last_trouble_s:
            break
        rate = load.rate_at(times[place])
        usual = usual_retrying(station, rate)
        enough = usual * 1.1 + _NOISE * math.sqrt(usual) + most_retrying * _REST_SHARE + 1
        in_hand = 2 * load.slots + rate + most_depth * _REST_SHARE
        if retrying[place] > enough or track.depth[place] > in_hand:
            break
        recovered = times[place]
    return recovered


def forecast_document(forecast: Forecast) -> dict[str, Any]:
    """Return the forecast as JSON. The units are part of the names."""
    scenario = forecast.scenario
    return {
        "engine": forecast.engine,
        "topology": forecast.topology,
        "scenario": scenario.name,
        "seed": scenario.seed,
        "durationSeconds": scenario.duration_s,
        "brokerVersion": str(scenario.version),
        "deadLetters": round(forecast.dead_letters),
        "firstDeadLetterSeconds": _short(forecast.first_dead_letter_s),
        "recoveredSeconds": _short(forecast.recovered_s),
        "recoverySeconds": _short(forecast.recovery_s),
        "memoryPeakBytes": round(max(forecast.memory)),
        "diskPeakBytes": round(max(forecast.disk)),
        "outages": [
            {"startSeconds": one.start_s, "endSeconds": one.end_s, "share": one.share,
             "hits": list(one.hits)}
            for one in scenario.outages
        ],
        "stations": [_station_document(one) for one in forecast.stations],
        "queues": [
            {
                "queue": one.queue,
                "role": one.role,
                "type": one.type,
                "peak": round(one.peak),
                "peakSeconds": _short(one.peak_s),
                "depth": [round(value, 1) for value in one.depth],
            }
            for one in forecast.queues
        ],
        "timesSeconds": [_short(moment) for moment in forecast.times],
        "memoryBytes": [round(value) for value in forecast.memory],
        "diskBytes": [round(value) for value in forecast.disk],
    }  # fmt: skip


def _station_document(course: StationCourse) -> dict[str, Any]:
    counts = {
        "published": course.published,
        "copies": course.copied,
        "refused": course.refused,
        "dropped": course.dropped,
        "runs": course.run_count,
        "failedRuns": course.failed,
        "retried": course.retried,
        "done": course.done,
        "deadLetters": course.dead_letters,
        "redriven": course.redriven,
        "left": course.left,
        "mostRetrying": course.most_retrying,
    }
    curves = {
        "arrivalsPerSecond": course.arrivals,
        "returnsPerSecond": course.returns,
        "runsPerSecond": course.runs,
        "failuresPerSecond": course.failures,
        "capacityPerSecond": course.capacity,
        "waitSeconds": course.wait_s,
        "oldestSeconds": course.oldest_s,
        "retrying": course.retrying,
    }
    return {
        "queue": course.queue,
        **{name: round(count) for name, count in counts.items()},
        "firstDeadLetterSeconds": _short(course.first_dead_letter_s),
        "recoveredSeconds": _short(course.recovered_s),
        **{name: [round(value, 2) for value in values] for name, values in curves.items()},
    }


def _short(moment: float | None) -> float | None:
    return None if moment is None else round(moment, 3)


def csv_rows(forecast: Forecast) -> Iterator[list[object]]:
    """Yield a header and a row for each sample, with the time, the depth of each queue and the
    rates of each station.
    """
    names = ("arrivals", "returns", "runs", "failures", "wait_s", "oldest_s")
    header: list[object] = ["seconds", *(f"{queue.queue} depth" for queue in forecast.queues)]
    header += [f"{one.queue} {name}" for one in forecast.stations for name in names]
    yield [*header, "memory bytes", "disk bytes"]
    for place, moment in enumerate(forecast.times):
        row: list[object] = [round(moment, 3)]
        row += [round(queue.depth[place], 2) for queue in forecast.queues]
        row += [round(getattr(one, name)[place], 2) for one in forecast.stations for name in names]
        yield [*row, round(forecast.memory[place]), round(forecast.disk[place])]
