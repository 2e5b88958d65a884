"""The forecast of an engine: curves of every queue, totals of every station, and their JSON form."""

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
    """Corners of a curve in order of time. It begins at 0, 0 and keeps its last value."""

    __slots__ = ("moments", "values")

    def __init__(self) -> None:
        self.moments: list[float] = [0.0]
        self.values: list[float] = [0.0]

    @property
    def last(self) -> float:
        return self.values[-1]

    def add(self, begin: float, end: float, amount: float) -> None:
        """Grow by an amount, evenly from `begin` to `end`."""
        value = self.values[-1]
        begin = max(begin, self.moments[-1])
        if begin > self.moments[-1]:
            self.to(begin, value)
        self.to(max(end, begin), value + amount)

    def hold(self, begin: float, end: float, value: float) -> None:
        """Be this value from `begin` to `end`."""
        self.to(begin, value)
        self.to(end, value)

    def to(self, moment: float, value: float) -> None:
        """Draw a straight line to a value. A corner on a straight line is left out."""
        moments, values = self.moments, self.values
        if len(moments) > 1 and values[-1] == value == values[-2]:
            moments[-1] = moment
            return
        moments.append(moment)
        values.append(value)

    def at(self, moment: float) -> float:
        return self.sample((moment,))[0]

    def when(self, value: float) -> float:
        """Return the time when a non-decreasing curve first reaches a value, or infinity."""
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
        """Return the values at these times. At a jump, the later value."""
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
    """Return the growth per second before each time. The first value repeats the second."""
    steps = [
        (after - before) / (end - begin)
        for before, after, begin, end in zip(values, values[1:], times, times[1:], strict=False)
    ]
    return (steps[0], *steps) if steps else (0.0,) * len(values)


class Storage(NamedTuple):
    """Bytes of memory and of disk for one waiting message. `logged` is additional memory while the
    message is in the write-ahead log of quorum queues."""

    memory: float
    disk: float
    logged: float = 0.0


LOG_BYTES = 512 * 1024 * 1024
"""RabbitMQ's `raft.wal_max_size_bytes`. A full log is written to the files of the queues and removed from
memory. All quorum queues of a node share it."""

BYTES_EACH: dict[str, tuple[tuple[BrokerVersion, tuple[tuple[int, Storage], ...]], ...]] = {
    "classic": (
        (BrokerVersion(3, 10), (
            (100, Storage(793, 308)),
            (1_000, Storage(1_694, 1_209)),
            (10_000, Storage(11_216, 10_236)),
            (100_000, Storage(108_171, 100_243)),
        )),
        # From 4.0 on classic queues keep messages on disk and only the next few in memory.
        (BrokerVersion(4, 0), (
            (100, Storage(3, 300)),
            (1_000, Storage(13, 1_201)),
            (10_000, Storage(393, 10_220)),
            (100_000, Storage(11_542, 100_227)),
        )),
    ),
    # `logged` is that of 4.3, the largest of the three: on 3.10 and 4.0 part of the log had been written
    # out when it was measured.
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
"""By queue type: the first version to which the rows apply, and rows of body size and cost."""


def storage_of(queue_type: str, size: int, version: BrokerVersion) -> Storage:
    """Bytes per message of this size. Versions older than the oldest measured one use its values."""
    measured = BYTES_EACH.get(queue_type, BYTES_EACH["quorum"])
    rows = next((rows for since, rows in reversed(measured) if since <= version), measured[0][1])
    low, high = next((pair for pair in pairwise(rows) if size <= pair[1][0]), (rows[-2], rows[-1]))
    share = max(0.0, (size - low[0]) / (high[0] - low[0]))
    return Storage(*(a + (b - a) * share for a, b in zip(low[1], high[1], strict=True)))


_REST_SHARE = 0.005
"""A queue has recovered when it holds no more than its usual depth plus this share of its maximum depth.
Waiting for the last of a million messages would make recovery a matter of chance.
"""
_NOISE = 3.0
"""Number of standard deviations that a count of independent messages may differ from its mean."""


@dataclass(slots=True)
class Track:
    """An engine's samples of a station. Counts are cumulative."""

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
    """Queue → its greatest depth and the time of that depth, which may be between two samples."""
    published: float
    copied: float
    refused: float
    dropped: float
    done: float


@dataclass(frozen=True, slots=True)
class QueueCourse:
    """The number of messages that a queue holds over time, ready or unacknowledged."""

    queue: str
    role: str
    type: str
    depth: tuple[float, ...]
    memory_each: float
    disk_each: float
    logged_each: float
    peak: float
    """Its maximum depth, including between samples."""
    peak_s: float
    """The time of its maximum depth."""


@dataclass(frozen=True, slots=True)
class StationCourse:
    """The course of one consumed queue: rates per second, ages and totals.

    `wait_s` is how long the first message of the queue has been in it. `oldest_s` is the age of the oldest
    message that is neither done nor parked, whether it is in the queue, in a handler or waiting for a
    retry. A re-drive counts as a new message.
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
    """The answer to a scenario, by one of the engines."""

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
        """Total number of parked messages."""
        return sum(station.dead_letters for station in self.stations)

    @property
    def first_dead_letter_s(self) -> float | None:
        moments = [one.first_dead_letter_s for one in self.stations]
        return min((moment for moment in moments if moment is not None), default=None)

    @property
    def recovered_s(self) -> float | None:
        """The time when all queues had returned to normal, or None if one had not by the end."""
        moments = [one.recovered_s for one in self.stations]
        known = [moment for moment in moments if moment is not None]
        return max(known) if len(known) == len(moments) else None

    @property
    def recovery_s(self) -> float | None:
        """Seconds from the end of the last trouble until all queues had recovered."""
        if self.recovered_s is None:
            return None
        return max(0.0, self.recovered_s - self.scenario.last_trouble_s)

    def queue(self, name: str) -> QueueCourse:
        """Return the course of a queue. Raise KeyError if the forecast does not contain the queue."""
        found = next((one for one in self.queues if one.queue == name), None)
        if found is None:
            raise KeyError(
                f"expected one of {', '.join(q.queue for q in self.queues)}, got {name!r}"
            )
        return found


def sample_times(scenario: Scenario) -> tuple[float, ...]:
    """Return the times at which curves are sampled, from the beginning to the end."""
    count = scenario.samples
    return tuple(scenario.duration_s * number / count for number in range(count + 1))


def forecast_of(
    engine: str, topology: Topology, scenario: Scenario, tracks: Sequence[Track]
) -> Forecast:
    """Put the tracks of all stations together."""
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
    # Waiting messages, and in addition those that are still in the log of the quorum queues.
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
    """Messages that wait for a retry without an outage: the rate of each class times its wait."""
    load, level = station.load, 0.0
    failing = 1 - load.poison
    for place in station.wait_after:
        failing *= load.fail
        level += rate * (failing + load.poison) * station.waits[place].delay_s
    return level


def _recovery_time(
    track: Track, retrying: tuple[float, ...], scenario: Scenario, times: tuple[float, ...]
) -> float | None:
    """Return the first sample from which the queue and its retries stay normal. None if they are not normal
    at the end.
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
    """Everything as JSON knows it: numbers with their units in their names."""
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
    """A header and one row per sample: the time, every queue's depth, every station's rates."""
    names = ("arrivals", "returns", "runs", "failures", "wait_s", "oldest_s")
    header: list[object] = ["seconds", *(f"{queue.queue} depth" for queue in forecast.queues)]
    header += [f"{one.queue} {name}" for one in forecast.stations for name in names]
    yield [*header, "memory bytes", "disk bytes"]
    for place, moment in enumerate(forecast.times):
        row: list[object] = [round(moment, 3)]
        row += [round(queue.depth[place], 2) for queue in forecast.queues]
        row += [round(getattr(one, name)[place], 2) for one in forecast.stations for name in names]
        yield [*row, round(forecast.memory[place]), round(forecast.disk[place])]
