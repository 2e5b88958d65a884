"""Scenarios, which define the traffic of queues and failures over time. They can be written as
TOML.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from hopback.errors import InvalidTopology, Problem
from hopback.policy.breaker import BreakerPolicy
from hopback.rehearse.quantities import (
    parse_consumers,
    parse_rate,
    parse_seconds,
    parse_share,
    parse_size,
    parse_spread,
)
from hopback.topology.located import Located, Table, toml_problem
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Callable


_MOST_SAMPLES = 10_000
"""Maximum number of samples. A screen, a page or a spreadsheet would not show more of them."""


class ArrivalKind(StrEnum):
    """How messages are published."""

    CONSTANT = "constant"
    """One message at a time, at regular intervals."""
    POISSON = "poisson"
    """At random times, like many independent producers."""
    BURSTS = "bursts"
    """All messages of an interval at once, every `burst_s` seconds."""


@dataclass(frozen=True, slots=True)
class RateStep:
    """A rate in messages per second, which applies from `at_s` until the next step."""

    at_s: float
    rate: float


@dataclass(frozen=True, slots=True)
class Load:
    """The traffic of a queue and its consumers.

    Attributes:
        rates: Messages per second that are published to the queue. Other queues bound to its exchange
            receive copies.
        fail: The fraction of runs that fail by chance.
        poison: The fraction of messages that always fail.
        handler_s: The duration of a run in seconds.
        spread_s: The maximum difference from `handler_s`.
        processes: The number of consumers.
        concurrency: The number of concurrent handlers of each consumer.
        dependency: A shared name for handlers that are affected by the same outages.
    """

    queue: str
    rates: tuple[RateStep, ...]
    arrivals: ArrivalKind = ArrivalKind.CONSTANT
    burst_s: float = 60.0
    fail: float = 0.0
    poison: float = 0.0
    handler_s: float = 0.04
    spread_s: float = 0.0
    processes: int = 1
    concurrency: int = 10
    prefetch: int | None = None
    breaker: BreakerPolicy | None = None
    size: int = 1000
    dependency: str = ""
    exchange: str | None = None
    routing_key: str | None = None

    def rate_at(self, moment: float) -> float:
        """Return the rate at a given time in messages per second."""
        rate = 0.0
        for step in self.rates:
            if step.at_s > moment:
                break
            rate = step.rate
        return rate

    @property
    def top_rate(self) -> float:
        return max((step.rate for step in self.rates), default=0.0)

    @property
    def window(self) -> int:
        """The prefetch count of a process."""
        if self.prefetch is not None:
            return self.prefetch
        return min(max(2 * self.concurrency, 20), 65_535)

    @property
    def slots(self) -> int:
        """The total number of concurrent handlers. It may be limited by the prefetch count."""
        return self.processes * min(self.concurrency, self.window)


@dataclass(frozen=True, slots=True)
class Outage:
    """An outage during which a fraction of the runs fail.

    It starts at `start_s` and lasts for `length_s`. `hits` contains names of queues or
    dependencies. If it is empty, all queues are affected. `handler_s` is the duration of failed
    runs if it is different: a refused connection fails immediately, while a server that does not
    respond causes a timeout.
    """

    start_s: float
    length_s: float
    hits: tuple[str, ...] = ()
    share: float = 1.0
    handler_s: float | None = None

    @property
    def end_s(self) -> float:
        return self.start_s + self.length_s


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Runs take `factor` times as long, for `length_s` seconds starting at `start_s`."""

    start_s: float
    length_s: float
    factor: float
    hits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Crash:
    """`processes` consumers of each queue crash at `start_s` and are restarted `restart_s` seconds
    later.
    """

    start_s: float
    restart_s: float
    processes: int = 1
    hits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RedriveWave:
    """The dead letters of a queue are re-driven at `start_s`. The full `rate` is reached after
    `ramp_s`.
    """

    start_s: float
    rate: float
    ramp_s: float = 0.0
    hits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scenario:
    """The input of a rehearsal in addition to the topology. Results are reproducible."""

    loads: tuple[Load, ...]
    duration_s: float
    outages: tuple[Outage, ...] = ()
    slowdowns: tuple[Slowdown, ...] = ()
    crashes: tuple[Crash, ...] = ()
    redrives: tuple[RedriveWave, ...] = ()
    seed: int = 0
    samples: int = 240
    version: BrokerVersion = BrokerVersion(4, 0)  # noqa: RUF009  a frozen value
    memory: int | None = None
    disk: int | None = None
    name: str = "scenario"

    def __post_init__(self) -> None:
        found = tuple(
            Problem(path, expected, got)
            for path, holds, expected, got in self._conditions()
            if not holds
        )
        if found:
            raise InvalidTopology(found, where=self.name)

    def _conditions(self) -> list[tuple[str, bool, str, str]]:
        """Return a list of conditions, with the path, the result, and the expected and actual
        value.
        """
        queues = [load.queue for load in self.loads]
        twice = sorted({queue for queue in queues if queues.count(queue) > 1})
        known = {*queues, *(load.dependency for load in self.loads)} - {""}
        longest = 400 * 86_400.0
        checks = [
            ("queues", bool(queues), "at least one queue", "none"),
            ("queues", not twice, "each queue once", ", ".join(twice)),
            (
                "for",
                0 < self.duration_s <= longest,
                "more than 0s, at most 400d",
                f"{self.duration_s:g}s",
            ),
            (
                "samples",
                2 <= self.samples <= _MOST_SAMPLES,
                f"2 to {_MOST_SAMPLES}",
                str(self.samples),
            ),
        ]
        timed: tuple[Outage | Slowdown | Crash | RedriveWave, ...] = (
            *self.outages,
            *self.slowdowns,
            *self.crashes,
            *self.redrives,
        )
        for index, one in enumerate(timed):
            path = f"{type(one).__name__.lower()}[{index}]"
            strange = [name for name in one.hits if name not in known]
            listed = f"queues or dependencies of the scenario ({', '.join(sorted(known))})"
            checks.append((path, not strange, listed, ", ".join(strange)))
            checks.append(
                (path, 0 <= one.start_s < self.duration_s, "a start within the rehearsal",
                 f"{one.start_s:g}s of {self.duration_s:g}s")
            )  # fmt: skip
        runs = "a handler that takes some time, 1ms or more"
        for load in self.loads:
            path, handler, burst = f"queues.{load.queue}", load.handler_s, load.burst_s
            checks.append((f"{path}.handler", 0 < handler < math.inf, runs, f"{handler:g}s"))
            checks.append((f"{path}.burst-every", burst > 0, "more than 0s", f"{burst:g}s"))
        return checks

    def load(self, queue: str) -> Load | None:
        return next((load for load in self.loads if load.queue == queue), None)

    @property
    def messages(self) -> float:
        """The total number of published messages."""
        return sum(
            step.rate * max(0.0, min(end, self.duration_s) - step.at_s)
            for load in self.loads
            for step, end in zip(
                load.rates, [*(step.at_s for step in load.rates[1:]), self.duration_s], strict=True
            )
        )

    @property
    def last_trouble_s(self) -> float:
        """The time when the last outage, slowdown or crash ends."""
        ends = [one.end_s for one in self.outages]
        ends += [one.start_s + one.length_s for one in self.slowdowns]
        ends += [one.start_s + one.restart_s for one in self.crashes]
        return max(ends, default=0.0)


T = TypeVar("T")

_MOST_PROFILE_ROWS = 100_000
"""One rate per second for a day, and some more."""


def read_scenario(
    text: str,
    *,
    where: str = "scenario.toml",
    profile: Callable[[str], str] | None = None,
    live: Callable[[str], float] | None = None,
) -> Scenario:
    """Parse a scenario in TOML. Raises InvalidTopology with all problems.

    `profile` reads a CSV file relative to the scenario file. `live` returns the rate of a queue if
    `rate` is "live".
    """
    import tomllib

    try:
        data = tomllib.loads(text)
    except (RecursionError, ValueError) as error:
        raise InvalidTopology((toml_problem(error),), where=where) from None
    root = Located("", data, [])
    table = root.table()
    loads = tuple(_load(name, place, profile, live) for name, place in table.entries("queues"))
    scenario = partial(
        Scenario,
        loads=loads,
        duration_s=table.need("for", _seconds, 0.0, "a duration like 2h"),
        outages=tuple(_outage(place) for place in table.items("outages")),
        slowdowns=tuple(_slowdown(place) for place in table.items("slowdowns")),
        crashes=tuple(_crash(place) for place in table.items("crashes")),
        redrives=tuple(_wave(place) for place in table.items("redrives")),
        seed=table.read("seed", Located.integer, 0),
        samples=table.read("samples", Located.positive, 240),
        version=table.read("broker-version", _version, BrokerVersion(4, 0)),
        memory=table.read("memory", _size, None),
        disk=table.read("disk", _size, None),
        name=where,
    )
    table.close()
    root.check(where)
    return scenario()


def read_profile(text: str) -> tuple[RateStep, ...]:
    """Read a recorded profile, which has a time and a rate in each row. The time is in seconds or a
    duration. The header is optional.
    """
    steps: list[RateStep] = []
    for number, line in enumerate(text.splitlines()):
        cells = [cell.strip() for cell in line.replace(";", ",").split(",")]
        if not any(cells) or (number == 0 and not cells[0][:1].isdigit()):
            continue
        if len(cells) < 2 or len(steps) >= _MOST_PROFILE_ROWS:
            raise ValueError(
                f"line {number + 1}: expected seconds,rate and at most {_MOST_PROFILE_ROWS} rows,"
                f" got {line[:60]!r}"
            )
        seconds = cells[0].replace(".", "", 1).isdecimal()
        at = float(cells[0]) if seconds else parse_seconds(cells[0])
        steps.append(RateStep(at, parse_rate(cells[1])))
    if not steps or any(a.at_s >= b.at_s for a, b in pairwise(steps)):
        raise ValueError(
            "expected rows of seconds,rate in rising order of time, got none or others"
        )
    return tuple(steps)


def _read(place: Located, parse: Callable[..., T], otherwise: T) -> T:
    """Read a value with a parser that raises ValueError if it is invalid."""
    try:
        return parse(place.value)
    except (ValueError, AttributeError, TypeError) as error:
        expected = str(error).removeprefix("expected ").rpartition(", got ")[0]
        place.wrong(expected or "text like in the reference")
        return otherwise


def _seconds(place: Located) -> float:
    return place.duration_ms() / 1000


def _rate(place: Located) -> float:
    return _read(place, parse_rate, 0.0)


def _share(place: Located) -> float:
    return _read(place, parse_share, 0.0)


def _size(place: Located) -> int | None:
    return _read(place, parse_size, 0)


def _version(place: Located) -> BrokerVersion:
    return _read(place, BrokerVersion.parse, BrokerVersion(4, 0))


def _names(place: Located) -> tuple[str, ...]:
    if isinstance(place.value, str):
        return (place.value,)
    return tuple(one.text() for one in place.items())


def _load(
    name: str,
    place: Located,
    profile: Callable[[str], str] | None,
    live: Callable[[str], float] | None,
) -> Load:
    table = place.table()
    handler_s, spread_s = table.read(
        "handler", lambda at: _read(at, parse_spread, (0.04, 0.0)), (0.04, 0.0)
    )
    processes, concurrency = table.read(
        "consumers", lambda at: _read(at, parse_consumers, (1, 10)), (1, 10)
    )
    load = Load(
        queue=name,
        rates=_rates(name, table, profile, live),
        arrivals=table.read("arrivals", lambda at: at.option(ArrivalKind), ArrivalKind.CONSTANT),
        burst_s=table.read("burst-every", _seconds, 60.0),
        fail=table.read("fail", _share, 0.0),
        poison=table.read("poison", _share, 0.0),
        handler_s=handler_s,
        spread_s=spread_s,
        processes=processes,
        concurrency=concurrency,
        prefetch=table.read("prefetch", Located.positive, None),
        breaker=table.read("breaker", _breaker, None),
        size=table.read("size", _size, None) or 1000,
        dependency=table.read("dependency", Located.text, ""),
        exchange=table.read("exchange", Located.text, None),
        routing_key=table.read("routing-key", Located.text, None),
    )
    table.close()
    return load


def _rates(
    queue: str,
    table: Table,
    profile: Callable[[str], str] | None,
    live: Callable[[str], float] | None,
) -> tuple[RateStep, ...]:
    """Read a rate, which can be a number, a list of {at, rate}, a file, or the live rate of a
    broker.
    """
    named = table.get("profile")
    if named is not None and profile is not None:
        return _read(named, lambda name: read_profile(profile(name)), ())
    place = table.get("rate")
    if place is None:
        table.place.inner("rate", None).wrong(
            "a rate like 500/s, or profile = a CSV file", "nothing"
        )
        return ()
    if place.value == "live" and live is not None:
        return (RateStep(0.0, live(queue)),)
    if not isinstance(place.value, list):
        return (RateStep(0.0, _rate(place)),)
    steps = []
    for one in place.items():
        row = one.table()
        at = row.need("at", _seconds, 0.0, "a duration")
        steps.append(RateStep(at, row.need("rate", _rate, 0.0, "a rate")))
        row.close()
    if any(a.at_s >= b.at_s for a, b in pairwise(steps)):
        place.wrong("steps in rising order of time")
    return tuple(steps)


def _breaker(place: Located) -> BreakerPolicy:
    if place.value is True:
        return BreakerPolicy()
    table = place.table()
    usual = BreakerPolicy()
    policy = BreakerPolicy(
        failures=table.read("failures", Located.positive, usual.failures),
        cool_down=table.read("cool-down", _seconds, usual.cool_down),
        longest_cool_down=table.read("longest-cool-down", _seconds, usual.longest_cool_down),
        probes=table.read("probes", Located.positive, usual.probes),
    )
    table.close()
    return policy


def _outage(place: Located) -> Outage:
    table = place.table()
    outage = Outage(
        start_s=table.need("at", _seconds, 0.0, "a duration like 5m"),
        length_s=table.need("for", _seconds, 0.0, "a duration like 20m"),
        hits=table.read("hits", _names, ()),
        share=table.read("share", _share, 1.0),
        handler_s=table.read("handler", _seconds, None),
    )
    table.close()
    return outage


def _slowdown(place: Located) -> Slowdown:
    table = place.table()
    factor = table.need("factor", lambda at: _read(at, float, 1.0), 1.0, "a number like 3")
    slowdown = Slowdown(
        start_s=table.need("at", _seconds, 0.0, "a duration like 5m"),
        length_s=table.need("for", _seconds, 0.0, "a duration like 20m"),
        factor=factor,
        hits=table.read("hits", _names, ()),
    )
    table.close()
    return slowdown


def _crash(place: Located) -> Crash:
    table = place.table()
    crash = Crash(
        start_s=table.need("at", _seconds, 0.0, "a duration like 5m"),
        restart_s=table.need("restart", _seconds, 0.0, "a duration like 30s"),
        processes=table.read("processes", Located.positive, 1),
        hits=table.read("hits", _names, ()),
    )
    table.close()
    return crash


def _wave(place: Located) -> RedriveWave:
    table = place.table()
    wave = RedriveWave(
        start_s=table.need("at", _seconds, 0.0, "a duration like 1h"),
        rate=table.need("rate", _rate, 0.0, "a rate like 200/s"),
        ramp_s=table.read("ramp", _seconds, 0.0),
        hits=table.read("hits", _names, ()),
    )
    table.close()
    return wave
