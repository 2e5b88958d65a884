"""What is rehearsed: the traffic of each queue, and what goes wrong when. Values only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from hopback.errors import InvalidTopology, Problem
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from hopback.policy.breaker import BreakerPolicy

__all__ = [
    "ArrivalKind",
    "Crash",
    "Load",
    "Outage",
    "RateStep",
    "RedriveWave",
    "Scenario",
    "Slowdown",
]

_MOST_SAMPLES = 10_000
"""Of a curve: more than a screen, a page or a spreadsheet shows."""


class ArrivalKind(StrEnum):
    """How messages come."""

    CONSTANT = "constant"
    """Evenly, one after the other."""
    POISSON = "poisson"
    """Independently of each other, as many producers make them."""
    BURSTS = "bursts"
    """All that came due since the last burst at once, every `burst_s` seconds."""


@dataclass(frozen=True, slots=True)
class RateStep:
    """From `at_s` on, `rate` messages per second, until the next step."""

    at_s: float
    rate: float


@dataclass(frozen=True, slots=True)
class Load:
    """The traffic of one queue and the consumers that meet it.

    `rates` are messages per second published so that they reach the queue; what its exchange copies
    to other queues arrives there as well. `fail` is the share of runs that fail by chance, `poison`
    the share of messages whose every run fails. A run takes `handler_s` seconds, more or less up to
    `spread_s`. `processes` consumers run `concurrency` handlers each. `dependency` names what the
    handler needs, for outages that hit several queues.
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
        """Messages per second at a moment."""
        rate = 0.0
        for step in self.rates:
            if step.at_s > moment:
                break
            rate = step.rate
        return rate

    @property
    def top_rate(self) -> float:
        """The highest rate of all."""
        return max((step.rate for step in self.rates), default=0.0)

    @property
    def window(self) -> int:
        """Deliveries that one process may hold: its prefetch."""
        if self.prefetch is not None:
            return self.prefetch
        return min(max(2 * self.concurrency, 20), 65_535)

    @property
    def slots(self) -> int:
        """Handlers that run at once, in all processes; a small prefetch leaves some idle."""
        return self.processes * min(self.concurrency, self.window)


@dataclass(frozen=True, slots=True)
class Outage:
    """From `start_s` for `length_s` seconds, `share` of the runs fail.

    It hits the queues whose name or dependency is in `hits`, all if that is empty. `handler_s` is how
    long a failing run takes, where that is not the usual time: a refused connection fails at once, a
    silent one after its timeout.
    """

    start_s: float
    length_s: float
    hits: tuple[str, ...] = ()
    share: float = 1.0
    handler_s: float | None = None

    @property
    def end_s(self) -> float:
        """When it is over."""
        return self.start_s + self.length_s


@dataclass(frozen=True, slots=True)
class Slowdown:
    """From `start_s` for `length_s` seconds, a run takes `factor` times as long."""

    start_s: float
    length_s: float
    factor: float
    hits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Crash:
    """At `start_s`, `processes` consumers of each queue die and are back after `restart_s` seconds."""

    start_s: float
    restart_s: float
    processes: int = 1
    hits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RedriveWave:
    """At `start_s` the dead letters of a queue are sent back, at `rate`, reached after `ramp_s`."""

    start_s: float
    rate: float
    ramp_s: float = 0.0
    hits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that a rehearsal depends on, besides the topology: equal values, equal results."""

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
        """Path, whether it holds, what is expected, what was given."""
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
        return checks + [
            (
                f"queues.{load.queue}.handler",
                0 < load.handler_s < math.inf,
                runs,
                f"{load.handler_s:g}s",
            )
            for load in self.loads
        ]

    def load(self, queue: str) -> Load | None:
        """The load of a queue, if it has one."""
        return next((load for load in self.loads if load.queue == queue), None)

    @property
    def messages(self) -> float:
        """How many messages are published in all."""
        return sum(
            step.rate * max(0.0, min(end, self.duration_s) - step.at_s)
            for load in self.loads
            for step, end in zip(
                load.rates, [*(step.at_s for step in load.rates[1:]), self.duration_s], strict=True
            )
        )

    @property
    def last_trouble_s(self) -> float:
        """When the last outage, slow-down or crash is over."""
        ends = [one.end_s for one in self.outages]
        ends += [one.start_s + one.length_s for one in self.slowdowns]
        ends += [one.start_s + one.restart_s for one in self.crashes]
        return max(ends, default=0.0)
