"""The fluid model: queues as flows, tiers as delays. `docs/explanation/fluid-model.md` derives it.

Between two events every rate is constant, so every curve is a straight line and each step is exact:
the next event is a change of the traffic, the end of an outage, a retry queue whose returns change, the
moment a backlog is gone. The number of steps grows with what happens, not with time or messages.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hopback.rehearse.curve import Cumulative
from hopback.rehearse.scenario import ArrivalKind

if TYPE_CHECKING:
    from hopback.policy.breaker import BreakerPolicy
    from hopback.rehearse.scenario import RedriveWave, Scenario
    from hopback.rehearse.station import Station

__all__ = ["Flow", "Totals", "flows_of"]

_TINY = 1e-7
"""Seconds or messages: below what double precision keeps of a day."""
_FINEST = 50_000
"""The shortest step is the horizon divided by this; what is shorter is averaged, no message is lost."""
_SHORTEST_S = 0.005
"""No step is shorter, however short the rehearsal: handlers seldom are."""
_SAME = 0.002
"""Rates that differ by less than this part of their sum are one rate."""
_RAMP_STEPS = 10
"""A ramp is ten steps of equal length: a fluid knows constant rates only, and no chart shows finer ones."""
_HOPELESS = 0.5
"""From this share of failing runs on, a breaker's probe counts as failed."""


@dataclass(slots=True)
class _Stretch:
    """Constant inflow from `begin` to `end`: rates by class, and their sum."""

    begin: float
    end: float
    rates: list[float]
    total: float


@dataclass(slots=True)
class _Slice:
    """A part of a backlog: its amount, its mixture of classes, and when its ends came in."""

    amount: float
    parts: list[float]
    first_in: float
    last_in: float


@dataclass(frozen=True, slots=True)
class _Conditions:
    """What holds from `begin` on: slots, seconds per run, the share of ordinary runs that fail."""

    begin: float
    slots: float
    run_s: float
    fail: float


@dataclass(slots=True)
class _Brake:
    """The breakers of all processes, in step: how near to opening, and until when they are open."""

    policy: BreakerPolicy | None
    progress: float = 0.0
    openings: int = 0
    until: float = -math.inf
    probe_end: float | None = None

    def runs_to_open(self, fail: float) -> float:
        """Expected runs of one process until so many in a row have failed."""
        policy = self.policy
        if policy is None or fail <= 0:
            return math.inf
        if fail >= 1:
            return float(policy.failures)
        rare = fail ** -min(policy.failures, 500)
        return (rare - 1) / (1 - fail)

    def open(self, now: float) -> None:
        """Everything fails: pause, each time in a row for twice as long."""
        assert self.policy is not None  # noqa: S101 - who has no policy never opens
        doubled = self.policy.cool_down * 2.0 ** min(self.openings, 32)
        self.until = now + min(doubled, self.policy.longest_cool_down)
        self.openings += 1
        self.progress = 0.0
        self.probe_end = None

    def close(self) -> None:
        """A probe worked."""
        self.openings = 0
        self.progress = 0.0
        self.probe_end = None


class _Stream:
    """Inflow over time: stretches in order, those that are nearly alike joined."""

    __slots__ = ("_grain", "stretches")

    def __init__(self, grain: float) -> None:
        self.stretches: deque[_Stretch] = deque()
        self._grain = grain

    def push(self, begin: float, end: float, rates: list[float], now: float = 0.0) -> None:
        """Add a stretch behind the others; what has flowed before `now` is averaged with nothing."""
        total = sum(rates)
        last = self.stretches[-1] if self.stretches else None
        if last is not None and last.begin < now < last.end:
            last.begin = now
        if last is None or begin - last.end > _TINY:
            if total > 0:
                self.stretches.append(_Stretch(begin, end, rates, total))
            return
        begin = last.end  # the run time may have shrunk: a retry queue keeps the order
        if end - begin <= 0:
            return
        short = last.end - last.begin < self._grain or end - begin < self._grain
        if not short and not _alike(last, rates, total):
            self.stretches.append(_Stretch(begin, end, rates, total))
            return
        old, new = last.end - last.begin, end - begin
        share = new / (old + new)
        last.rates = [a + (b - a) * share for a, b in zip(last.rates, rates, strict=True)]
        last.total += (total - last.total) * share
        last.end = end

    def at(self, now: float) -> _Stretch | None:
        """The stretch that flows now, or else the next one."""
        stretches = self.stretches
        while stretches and stretches[0].end <= now + _TINY:
            stretches.popleft()
        return stretches[0] if stretches else None


def _alike(last: _Stretch, rates: list[float], total: float) -> bool:
    most = _SAME * max(last.total, total)
    return all(abs(a - b) <= most for a, b in zip(last.rates, rates, strict=True))


@dataclass(slots=True)
class Totals:
    """Messages counted so far."""

    published: float = 0.0
    copied: float = 0.0
    refused: float = 0.0
    dropped: float = 0.0
    runs: float = 0.0
    failed: float = 0.0
    returned: float = 0.0
    parked: float = 0.0
    done: float = 0.0


@dataclass(slots=True)
class _Log:
    """What happened, as curves; each is a list of corners."""

    arrived: Cumulative = field(default_factory=Cumulative)
    returned: Cumulative = field(default_factory=Cumulative)
    runs: Cumulative = field(default_factory=Cumulative)
    failed: Cumulative = field(default_factory=Cumulative)
    backlog: Cumulative = field(default_factory=Cumulative)
    busy: Cumulative = field(default_factory=Cumulative)
    wait: Cumulative = field(default_factory=Cumulative)
    parked: Cumulative = field(default_factory=Cumulative)
    redriven: Cumulative = field(default_factory=Cumulative)
    capacity: Cumulative = field(default_factory=Cumulative)


class Flow:
    """One station at work. Classes are attempts, first those of ordinary messages, then of poison."""

    def __init__(self, station: Station, horizon: float) -> None:
        self.station = station
        self.horizon = horizon
        self.grain = max(horizon / _FINEST, _SHORTEST_S)
        self.attempts = len(station.wait_after) + 1
        self.poisoned = station.load.poison > 0
        self.classes = self.attempts * (2 if self.poisoned else 1)
        self.now = 0.0
        self.totals = Totals()
        self.log = _Log()
        self.entered = [Cumulative() for _ in station.wait_after]
        """After each failure, what went into its retry queue; what comes out is the same, so much later."""
        self.first_parked: float | None = None
        self._fed = _Stream(self.grain)
        self._copies: dict[tuple[str, int], _Stream] = {}
        self._redriven = _Stream(self.grain)
        self.returning = [_Stream(self.grain) for _ in station.waits]
        self._shortest = min((wait.delay_s for wait in station.waits), default=math.inf)
        self.backlog = 0.0
        self._slices: deque[_Slice] = deque()
        self._conditions = _conditions(station, horizon)
        self._place = 0
        self._brake = _Brake(station.load.breaker)
        self._parked_poison = 0.0
        self._waves = sorted(station.redrives, key=lambda wave: wave.start_s)
        self.to_copy: list[tuple[tuple[str, ...], int, float, float, float]] = []
        """What goes to other queues too: (queues, the retry queue's place or -1, begin, end, rate)."""
        for begin, end, rate in _traffic(station, horizon, self.grain):
            self._fed.push(begin, end, self._fresh(rate))
            if station.copies:
                self.to_copy.append((station.copies, -1, begin, end, rate))

    def _fresh(self, rate: float) -> list[float]:
        """Messages for their first attempt, as the load mixes them."""
        rates = [0.0] * self.classes
        poison = self.station.load.poison
        rates[0] = rate * (1 - poison)
        if self.poisoned:
            rates[self.attempts] = rate * poison
        return rates

    def copy_in(self, source: tuple[str, int], begin: float, end: float, rate: float) -> None:
        """Copies from elsewhere; for this queue they are ordinary messages."""
        if begin < self.horizon:
            rates = [0.0] * self.classes
            rates[0] = rate
            stream = self._copies.setdefault(source, _Stream(self.grain))
            stream.push(max(begin, self.now), end, rates, self.now)

    # --- one step --------------------------------------------------------------------------------

    def advance(self, until: float) -> None:
        """Go on until then."""
        while self.now < until - _TINY:
            nearest = self._next_change(until)
            rates, fed, nearest = self._inflow(nearest)
            returned, change = self._returned(rates)
            conditions = self._conditions[self._place]
            capacity, nearest = self._capacity(conditions, nearest)
            if self._is_full:
                rates, fed = self._refuse(rates, fed, capacity)
            inflow = sum(rates)
            if not self._is_steady(rates, inflow, capacity, conditions):
                nearest = min(nearest, change)
            span = self._span(inflow, capacity, nearest, conditions)
            out = self._serve(rates, inflow, capacity, span)
            self._count(fed, returned, span)
            self._settle(out, span, conditions, capacity)

    def _next_change(self, until: float) -> float:
        """Enter the conditions of now; when they, or a re-drive, change."""
        following = self._place + 1
        while following < len(self._conditions) and (
            self._conditions[following].begin <= self.now + _TINY
        ):
            self._place, following = following, following + 1
            self._brake.progress = 0.0
        while self._waves and self._waves[0].start_s <= self.now + _TINY:
            self._send_back(self._waves.pop(0))
        if following < len(self._conditions):
            until = min(until, self._conditions[following].begin)
        return min(until, self._waves[0].start_s) if self._waves else until

    def _inflow(self, nearest: float) -> tuple[list[float], list[float], float]:
        """Rates by class; published, copied and re-driven; and when one of them changes."""
        now = self.now
        rates = [0.0] * self.classes
        fed = [0.0, 0.0, 0.0]
        copies = ((1, stream) for stream in self._copies.values())
        for place, stream in ((0, self._fed), (2, self._redriven), *copies):
            found = stream.at(now)
            if found is None:
                continue
            if found.begin > now + _TINY:
                nearest = min(nearest, found.begin)
                continue
            nearest = min(nearest, found.end)
            fed[place] += found.total
            for one, rate in enumerate(found.rates):
                rates[one] += rate
        return rates, fed, nearest

    def _returned(self, rates: list[float]) -> tuple[float, float]:
        """Add what comes back from the retry queues to `rates`; its sum, and until when it holds.

        That is no longer than the shortest wait: what fails from now on may come back then.
        """
        now, returned = self.now, 0.0
        if not self.returning:
            return 0.0, math.inf
        change = now + self._shortest
        for stream in self.returning:
            found = stream.at(now)
            if found is None:
                continue
            if found.begin > now + _TINY:
                change = min(change, found.begin)
                continue
            change = min(change, found.end)
            returned += found.total
            for one, rate in enumerate(found.rates):
                rates[one] += rate
        return returned, change

    # --- consumers -------------------------------------------------------------------------------

    def _capacity(self, conditions: _Conditions, nearest: float) -> tuple[float, float]:
        """Runs per second that the consumers could start now, and until when that holds."""
        full = conditions.slots / conditions.run_s
        brake, now = self._brake, self.now
        if brake.policy is None or full <= 0:
            return full, nearest
        if brake.probe_end is not None and now >= brake.probe_end - _TINY:
            if conditions.fail >= _HOPELESS:
                brake.open(now)
            else:
                brake.close()
        if now < brake.until - _TINY:
            return 0.0, min(nearest, brake.until)
        if brake.openings and brake.probe_end is None:
            brake.probe_end = now + conditions.run_s
        if brake.probe_end is not None:
            probes = brake.policy.probes * self.station.load.processes
            return min(probes / conditions.run_s, full), min(nearest, brake.probe_end)
        return full, nearest

    def _braked(self, runs: float, rate: float, conditions: _Conditions) -> None:
        """Count runs towards the opening of the breaker."""
        brake = self._brake
        if brake.policy is None or brake.probe_end is not None:
            return
        wanted = self._runs_to_open(rate, conditions)
        if wanted < math.inf:
            brake.progress += runs / wanted
            if brake.progress >= 1 - _TINY:
                brake.open(self.now)

    def _runs_to_open(self, rate: float, conditions: _Conditions) -> float:
        """Runs of all processes; those that run when the breaker opens were begun before."""
        processes = self.station.load.processes
        wanted = self._brake.runs_to_open(conditions.fail)
        return wanted * processes + min(rate * conditions.run_s, conditions.slots)

    # --- the queue -------------------------------------------------------------------------------

    @property
    def _limit(self) -> float:
        """How large the backlog may be: what consumers hold beyond their slots is not ready."""
        station = self.station
        if station.max_length is None:
            return math.inf
        load = station.load
        return station.max_length + load.processes * max(0, load.window - load.concurrency)

    @property
    def _is_full(self) -> bool:
        return self.station.max_length is not None and self.backlog >= self._limit - _TINY

    def _refuse(
        self, rates: list[float], fed: list[float], capacity: float
    ) -> tuple[list[float], list[float]]:
        """A full queue: refuse what is published, or drop what is oldest."""
        if self.station.drops_head:
            return rates, fed
        own = sum(fed[:2])
        returned = sum(rates) - own
        room = max(0.0, capacity - returned)
        share = min(1.0, room / own) if own > 0 else 1.0
        kept = list(rates)
        fresh = self._fresh(fed[0])
        fresh[0] += fed[1]
        for one in range(self.classes):
            kept[one] -= fresh[one] * (1 - share)
        return kept, [fed[0] * share, fed[1] * share, fed[2]]

    def _span(
        self,
        inflow: float,
        capacity: float,
        nearest: float,
        conditions: _Conditions,
    ) -> float:
        """How long everything stays as it is now."""
        span = nearest - self.now
        net = inflow - capacity
        if self.backlog > _TINY:
            if net < 0:
                span = min(span, max(self.backlog / -net, self.grain))
            if capacity > 0:
                span = min(span, max(self._slices[0].amount / capacity, self.grain))
        if net > 0 and self.backlog < self._limit - _TINY:
            span = min(span, max((self._limit - self.backlog) / net, _TINY * 10))
        out = capacity if self.backlog > _TINY else min(inflow, capacity)
        if self._brake.policy is not None and self._brake.probe_end is None and out > 0:
            left = (1 - self._brake.progress) * self._runs_to_open(out, conditions) / out
            span = min(span, max(left, _TINY * 10))
        return max(span, _TINY * 2)

    def _is_steady(
        self, rates: list[float], inflow: float, capacity: float, conditions: _Conditions
    ) -> bool:
        """Whether what goes into every retry queue is what comes out of it, now and for good."""
        if self.backlog > _TINY or inflow > capacity:
            return False
        leaving = self._to_waits(rates, conditions.fail)
        for stream, gone in zip(self.returning, leaving, strict=True):
            total = sum(gone)
            found = stream.stretches[0] if stream.stretches else None
            if found is None:
                if total > 0:
                    return False
            elif (
                len(stream.stretches) > 1
                or found.begin > self.now + _TINY
                or not _alike(found, gone, total)
            ):
                return False
        return True

    def _serve(
        self, rates: list[float], inflow: float, capacity: float, span: float
    ) -> list[float]:
        """Take in and hand out for a span; the rates of what consumers begin."""
        if self.backlog <= _TINY and inflow <= capacity:
            self.backlog = 0.0
            self._slices.clear()
            return rates
        if inflow > 0:
            self._take_in(rates, inflow, span)
        out = [0.0] * self.classes
        # Less than the shortest step is left: it goes now, a little faster than it could.
        wanted = min(capacity * span, self.backlog)
        self._take_out(wanted, out)
        if self._is_over_limit():
            dropped = [0.0] * self.classes
            self.totals.dropped += self._take_out(self.backlog - self._limit, dropped)
        return [amount / span for amount in out]

    def _is_over_limit(self) -> bool:
        return self.station.drops_head and self.backlog > self._limit

    def _take_in(self, rates: list[float], inflow: float, span: float) -> None:
        amount = inflow * span
        parts = [rate / inflow for rate in rates]
        last = self._slices[-1] if self._slices else None
        self.backlog += amount
        if last is not None and all(
            abs(a - b) <= _SAME for a, b in zip(last.parts, parts, strict=True)
        ):
            whole = last.amount + amount
            last.parts = [
                (a * last.amount + b * amount) / whole
                for a, b in zip(last.parts, parts, strict=True)
            ]
            last.amount, last.last_in = whole, self.now + span
            return
        self._slices.append(_Slice(amount, parts, self.now, self.now + span))

    def _take_out(self, wanted: float, out: list[float]) -> float:
        """Move so much from the head of the backlog into `out`; how much it was."""
        left = wanted
        while left > 0 and self._slices:
            head = self._slices[0]
            taken = min(left, head.amount)
            for one, part in enumerate(head.parts):
                out[one] += part * taken
            if head.amount - taken <= _TINY:
                self._slices.popleft()
            else:
                gone = taken / head.amount
                head.first_in += (head.last_in - head.first_in) * gone
                head.amount -= taken
            left -= taken
        self.backlog = max(0.0, self.backlog - (wanted - left))
        return wanted - left

    # --- what becomes of the runs ------------------------------------------------------------------

    def _to_waits(self, out: list[float], fail: float) -> list[list[float]]:
        """Rates into each retry queue, by the class that a message has when it comes back."""
        leaving = [[0.0] * self.classes for _ in self.station.waits]
        for one, rate in enumerate(out):
            attempt = one % self.attempts
            if rate > 0 and attempt + 1 < self.attempts:
                failed = rate * (fail if one < self.attempts else 1.0)
                leaving[self.station.wait_after[attempt]][one + 1] += failed
        return leaving

    def _settle(
        self, out: list[float], span: float, conditions: _Conditions, capacity: float
    ) -> None:
        now, run_s = self.now, conditions.run_s
        total = sum(out)
        begin, end = now + run_s, now + span + run_s
        retried = 0.0
        for place, leaving in enumerate(self._to_waits(out, conditions.fail)):
            wait = self.station.waits[place]
            rate = sum(leaving)
            retried += rate
            self.returning[place].push(begin + wait.delay_s, end + wait.delay_s, leaving, now)
            if wait.copies and rate > 0:
                span_out = (begin + wait.delay_s, end + wait.delay_s)
                self.to_copy.append((wait.copies, place, *span_out, rate))
        for failure, entered in enumerate(self.entered):
            poison = out[self.attempts + failure] if self.poisoned else 0.0
            entered.add(begin, end, (out[failure] * conditions.fail + poison) * span)
        hopeless = out[self.attempts - 1] * conditions.fail
        poison = out[-1] if self.poisoned else 0.0
        parked = (hopeless + poison) * span
        self._parked_poison += poison * span
        totals = self.totals
        totals.runs += total * span
        totals.failed += retried * span + parked
        totals.done += total * span - retried * span - parked
        if parked > 0:
            totals.parked += parked
            if self.first_parked is None and totals.parked >= 0.5:
                self.first_parked = begin
        self.log.parked.add(begin, end, parked)
        self.now = now + span
        self._note(total, span, retried * span + parked, run_s, capacity)
        self._braked(total * span, total, conditions)

    def _count(self, fed: list[float], returned: float, span: float) -> None:
        """What came in during a span; a full queue may have refused some of what was published."""
        published = fed[0]
        stretch = self._fed.at(self.now)
        if stretch is not None and stretch.begin <= self.now + _TINY:
            self.totals.refused += (stretch.total - published) * span
        self.totals.published += published * span
        self.totals.copied += fed[1] * span
        self.totals.returned += returned * span
        self.log.arrived.add(self.now, self.now + span, (published + fed[1]) * span)
        self.log.returned.add(self.now, self.now + span, returned * span)
        self.log.redriven.add(self.now, self.now + span, fed[2] * span)

    def _note(
        self, total: float, span: float, failed: float, run_s: float, capacity: float
    ) -> None:
        before, log = self.now - span, self.log
        log.runs.add(before, self.now, total * span)
        log.failed.add(before, self.now, failed)
        log.backlog.to(self.now, self.backlog)
        log.busy.hold(before, self.now, total * run_s)
        log.capacity.hold(before, self.now, capacity)
        head = self._slices[0] if self._slices else None
        log.wait.to(self.now, 0.0 if head is None else max(0.0, self.now - head.first_in))

    def _send_back(self, wave: RedriveWave) -> None:
        """Let the dead letters of now come in again, by the ramp, until they are all back."""
        waiting = self.log.parked.last - self.log.redriven.last
        if waiting <= _TINY or wave.rate <= 0:
            return
        poison = min(1.0, self._parked_poison / waiting)
        self._parked_poison = 0.0
        anew = self.station.plan.redrive.reset
        place = 0 if anew else self.attempts - 1
        at, left = self.now, waiting
        for step in range(_RAMP_STEPS if wave.ramp_s > 0 else 0):
            rate = wave.rate * (step + 0.5) / _RAMP_STEPS
            span = min(wave.ramp_s / _RAMP_STEPS, left / rate)
            self._redriven.push(at, at + span, self._mixed(rate, poison, place), self.now)
            at, left = at + span, left - rate * span
        if left > _TINY:
            rates = self._mixed(wave.rate, poison, place)
            self._redriven.push(at, at + left / wave.rate, rates, self.now)

    def _mixed(self, rate: float, poison: float, place: int) -> list[float]:
        rates = [0.0] * self.classes
        rates[place] = rate * (1 - poison)
        if self.poisoned:
            rates[self.attempts + place] = rate * poison
        return rates


def flows_of(stations: tuple[Station, ...], scenario: Scenario) -> list[Flow]:
    """Every station, played to the end of the scenario.

    Stations that get copies of each other's messages advance side by side, in steps no longer than
    the shortest wait of a returning copy: so each hears of a copy before it arrives.
    """
    horizon = scenario.duration_s
    flows = {station.queue: Flow(station, horizon) for station in stations}
    waits = [wait for station in stations for wait in station.waits]
    coupled = [wait.delay_s for wait in waits if not flows.keys().isdisjoint(wait.copies)]
    step = min(coupled, default=horizon)
    until = 0.0
    while until < horizon:
        _hand_on(flows)
        until = min(horizon, until + step)
        for flow in flows.values():
            flow.advance(until)
    return list(flows.values())


def _hand_on(flows: dict[str, Flow]) -> None:
    """Give copies to the queues that get them; those that nobody rehearses are taken elsewhere."""
    for flow in flows.values():
        for queues, place, begin, end, rate in flow.to_copy:
            for queue in queues:
                if queue in flows:
                    flows[queue].copy_in((flow.station.queue, place), begin, end, rate)
        flow.to_copy.clear()


def _traffic(station: Station, horizon: float, grain: float) -> list[tuple[float, float, float]]:
    """What is published: (begin, end, rate). A burst takes the shortest step: a fluid knows no instant."""
    load = station.load
    ends = [step.at_s for step in load.rates[1:]] + [horizon]
    steady = [
        (step.at_s, min(end, horizon), step.rate)
        for step, end in zip(load.rates, ends, strict=True)
        if step.at_s < horizon and step.rate > 0
    ]
    if load.arrivals is not ArrivalKind.BURSTS:
        return steady
    width = min(grain, load.burst_s)
    bursts = []
    number = 1
    while (at := number * load.burst_s) < horizon:
        rate = load.rate_at(at - load.burst_s / 2)
        if rate > 0:
            bursts.append((at, at + width, rate * load.burst_s / width))
        number += 1
    return bursts


def _conditions(station: Station, horizon: float) -> list[_Conditions]:
    """What holds when, from the outages, slow-downs and crashes of a station."""
    moments = {0.0}
    for outage in station.outages:
        moments |= {outage.start_s, outage.end_s}
    for slow in station.slowdowns:
        moments |= {slow.start_s, slow.start_s + slow.length_s}
    for crash in station.crashes:
        moments |= {crash.start_s, crash.start_s + crash.restart_s}
    return [_conditions_at(station, moment) for moment in sorted(moments) if moment < horizon]


def _conditions_at(station: Station, moment: float) -> _Conditions:
    load = station.load
    run_s, well = load.handler_s, 1 - load.fail
    for slow in station.slowdowns:
        if slow.start_s <= moment < slow.start_s + slow.length_s:
            run_s *= slow.factor
    for outage in station.outages:
        if outage.start_s <= moment < outage.end_s:
            well *= 1 - outage.share
            if outage.handler_s is not None:
                run_s += (outage.handler_s - run_s) * outage.share
    down = sum(
        crash.processes
        for crash in station.crashes
        if crash.start_s <= moment < crash.start_s + crash.restart_s
    )
    alive = max(0, load.processes - down) / load.processes
    return _Conditions(moment, load.slots * alive, max(run_s, 1e-6), 1 - well)
