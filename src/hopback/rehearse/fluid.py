"""The fluid model, which treats queues as flows and tiers as delays. See
`docs/explanation/fluid-model.md`.

All rates are constant between two events, so curves are straight lines and each step is exact.
Events are changes of the traffic, the end of an outage, a change in the returns of a retry queue,
or the time when a backlog is empty. The number of steps depends on the number of events, but not on
the duration or the number of messages.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hopback.rehearse.forecast import Cumulative
from hopback.rehearse.scenario import ArrivalKind, RedriveWave, Scenario

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hopback.policy.breaker import BreakerPolicy
    from hopback.rehearse.station import Station

_FINEST = 50_000
"""Minimum length of a step, as a fraction of the duration. Shorter changes are averaged. No
messages are lost by this.
"""
_SHORTEST_S = 0.005
"""Minimum length of a step in seconds. Handlers rarely take less time."""
_RAMP_STEPS = 10
"""Number of steps of a ramp. All rates are constant in this model, and smaller steps would not be
visible in a chart.
"""
_HOPELESS = 0.5
"""The probe of a breaker fails if at least this fraction of runs fail."""


@dataclass(frozen=True, slots=True)
class _Conditions:
    """The conditions starting at `begin`: number of slots, seconds per run, and the fraction of
    ordinary runs that fail.
    """

    begin: float
    slots: float
    run_s: float
    fail: float


@dataclass(slots=True)
class Totals:
    """Counts of messages."""

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
    """The results of a simulation as curves. A curve is a list of corners."""

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
    """The simulation of a station.

    Messages are divided into classes by attempt. The first classes are for ordinary messages, the
    others for poison messages.
    """

    def __init__(self, station: Station, horizon: float) -> None:
        self.station = station
        self.horizon = horizon
        self.grain: float = max(horizon / _FINEST, _SHORTEST_S)
        self.attempts: int = len(station.wait_after) + 1
        self.poisoned: bool = station.load.poison > 0
        self.classes: int = self.attempts * (2 if self.poisoned else 1)
        self.now: float = 0.0
        self.totals: Totals = Totals()
        self.log: _Log = _Log()
        self.entered: list[Cumulative] = [Cumulative() for _ in station.wait_after]
        """The flow into the retry queue for each failure. The same flow leaves it after the delay.
        """
        self.first_parked: float | None = None
        self._fed = Stream(self.grain)
        self._copies: dict[tuple[str, int], Stream] = {}
        self._redriven = Stream(self.grain)
        self.returning: list[Stream] = [Stream(self.grain) for _ in station.waits]
        self._backlog = Backlog()
        self._conditions = _conditions(station, horizon)
        self._place = 0
        self._breakers = Breakers(station.load.breaker)
        self._parked_poison = 0.0
        self._waves = sorted(station.redrives, key=lambda wave: wave.start_s)
        self.to_copy: list[tuple[tuple[str, ...], int, float, float, float]] = []
        """Flows that are copied to other queues: (queues, index of the retry queue or -1, begin,
        end, rate).
        """
        for begin, end, rate in _traffic(station, horizon, self.grain):
            self._fed.push(begin, end, self._rates_by_class(rate, station.load.poison))
            if station.copies:
                self.to_copy.append((station.copies, -1, begin, end, rate))

    def _rates_by_class(self, rate: float, poison: float, attempt: int = 0) -> list[float]:
        """Return the rates by class for messages of a certain attempt. The first attempt is 0."""
        rates = [0.0] * self.classes
        rates[attempt] = rate * (1 - poison)
        if self.poisoned:
            rates[self.attempts + attempt] = rate * poison
        return rates

    def copy_in(self, source: tuple[str, int], begin: float, end: float, rate: float) -> None:
        """Add copies from another queue, which are ordinary messages here."""
        if begin < self.horizon:
            rates = self._rates_by_class(rate, 0.0)
            stream = self._copies.setdefault(source, Stream(self.grain))
            stream.push(max(begin, self.now), end, rates, self.now)

    def advance(self, until: float) -> None:
        while self.now < until - TINY:
            nearest = self._next_change(until)
            rates = [0.0] * self.classes
            published, nearest = self._add((self._fed,), rates, nearest)
            redriven, nearest = self._add((self._redriven,), rates, nearest)
            copied, nearest = self._add(self._copies.values(), rates, nearest)
            fed = [published, copied, redriven]
            returned, _ = self._add(self.returning, rates, math.inf)
            conditions = self._conditions[self._place]
            capacity, nearest = self._capacity(conditions, nearest)
            limited = self.station.max_length is not None
            if limited and self._backlog.amount >= self._limit - TINY:
                rates, fed = self._refuse(rates, fed, capacity)
            inflow = sum(rates)
            nearest = min(nearest, self._next_return(rates, inflow, capacity, conditions))
            span = self._span(inflow, capacity, nearest, conditions)
            out = self._serve(rates, inflow, capacity, span)
            self._count(fed, returned, span)
            self._settle(out, span, conditions, capacity)

    def _next_change(self, until: float) -> float:
        """Apply the current conditions and start re-drives. Returns the time of the next change."""
        following = self._place + 1
        while following < len(self._conditions) and (
            self._conditions[following].begin <= self.now + TINY
        ):
            self._place, following = following, following + 1
            self._breakers.progress = 0.0
        while self._waves and self._waves[0].start_s <= self.now + TINY:
            self._send_back(self._waves.pop(0))
        if following < len(self._conditions):
            until = min(until, self._conditions[following].begin)
        return min(until, self._waves[0].start_s) if self._waves else until

    def _add(
        self, streams: Iterable[Stream], rates: list[float], nearest: float
    ) -> tuple[float, float]:
        """Add the current flows to `rates`. Returns their sum, and the time until they are
        constant.
        """
        now, total = self.now, 0.0
        for stream in streams:
            found = stream.at(now)
            if found is None:
                continue
            if found.begin > now + TINY:
                nearest = min(nearest, found.begin)
                continue
            nearest = min(nearest, found.end)
            total += found.total
            for one, rate in enumerate(found.rates):
                rates[one] += rate
        return total, nearest

    def _capacity(self, conditions: _Conditions, nearest: float) -> tuple[float, float]:
        """Return the number of runs the consumers could start per second, and until when this is
        valid.
        """
        full = conditions.slots / conditions.run_s
        breakers, now = self._breakers, self.now
        if breakers.policy is None or full <= 0:
            return full, nearest
        if breakers.probe_end is not None and now >= breakers.probe_end - TINY:
            if conditions.fail >= _HOPELESS:
                breakers.open(now)
            else:
                breakers.close()
        if now < breakers.until - TINY:
            return 0.0, min(nearest, breakers.until)
        if breakers.openings and breakers.probe_end is None:
            breakers.probe_end = now + conditions.run_s
        if breakers.probe_end is not None:
            probes = breakers.policy.probes * self.station.load.processes
            return min(probes / conditions.run_s, full), min(nearest, breakers.probe_end)
        return full, nearest

    def _count_towards_opening(self, runs: float, rate: float, conditions: _Conditions) -> None:
        breakers = self._breakers
        if breakers.policy is None or breakers.probe_end is not None:
            return
        wanted = self._runs_to_open(rate, conditions)
        if wanted < math.inf:
            breakers.progress += runs / wanted
            if breakers.progress >= 1 - TINY:
                breakers.open(self.now)

    def _runs_to_open(self, rate: float, conditions: _Conditions) -> float:
        """Return the number of runs until the breakers open. Runs that are in progress at that time
        are included.
        """
        processes = self.station.load.processes
        wanted = self._breakers.runs_to_open(conditions.fail)
        return wanted * processes + min(rate * conditions.run_s, conditions.slots)

    @property
    def _limit(self) -> float:
        """The maximum backlog, including messages that consumers have prefetched."""
        station = self.station
        if station.max_length is None:
            return math.inf
        load = station.load
        return station.max_length + load.processes * max(0, load.window - load.concurrency)

    def _refuse(
        self, rates: list[float], fed: list[float], capacity: float
    ) -> tuple[list[float], list[float]]:
        """Apply the length limit. Either new messages are rejected, or the oldest are dropped."""
        if self.station.drops_head:
            return rates, fed
        own = sum(fed[:2])
        returned = sum(rates) - own
        room = max(0.0, capacity - returned)
        share = min(1.0, room / own) if own > 0 else 1.0
        kept = list(rates)
        fresh = self._rates_by_class(fed[0], self.station.load.poison)
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
        span = nearest - self.now
        net = inflow - capacity
        if self._backlog.amount > TINY:
            if net < 0:
                span = min(span, max(self._backlog.amount / -net, self.grain))
            if capacity > 0:
                span = min(span, max(self._backlog.head / capacity, self.grain))
        if net > 0 and self._backlog.amount < self._limit - TINY:
            span = min(span, max((self._limit - self._backlog.amount) / net, TINY * 10))
        out = capacity if self._backlog.amount > TINY else min(inflow, capacity)
        if self._breakers.policy is not None and self._breakers.probe_end is None and out > 0:
            left = (1 - self._breakers.progress) * self._runs_to_open(out, conditions) / out
            span = min(span, max(left, TINY * 10))
        return max(span, TINY * 2)

    def _next_return(
        self, rates: list[float], inflow: float, capacity: float, conditions: _Conditions
    ) -> float:
        """Return the time until which the retry queues return messages at the current rates.

        This is not more than one delay, since messages that fail now will return after it. There is
        no limit if the same flow enters and leaves a retry queue, and if there is no backlog that
        would change the mixture.
        """
        now, nearest = self.now, math.inf
        calm = self._backlog.amount <= TINY and inflow <= capacity
        # Runs can only fail if there are any, which is not the case with an open breaker or no
        # consumers.
        fails = capacity > 0 and (conditions.fail > 0 or self.poisoned)
        leaving = self._to_waits(rates, conditions.fail)
        for wait, stream, gone in zip(self.station.waits, self.returning, leaving, strict=True):
            total, flows = sum(gone), stream.at(now)
            again = now + wait.delay_s if fails else math.inf
            if flows is None:
                if total > 0 or not calm:
                    nearest = min(nearest, again)
            elif flows.begin > now + TINY:
                nearest = min(nearest, flows.begin, again)
            elif not calm or len(stream.stretches) > 1 or not alike(flows, gone, total):
                nearest = min(nearest, flows.end, again)
        return nearest

    def _serve(
        self, rates: list[float], inflow: float, capacity: float, span: float
    ) -> list[float]:
        """Add and remove messages for a certain time. Returns the rates at which runs are started."""
        backlog = self._backlog
        if self._backlog.amount <= TINY and inflow <= capacity:
            backlog.clear()
            return rates
        if inflow > 0:
            backlog.take_in(rates, inflow, self.now, span)
        out = [0.0] * self.classes
        # The rest is shorter than the minimum step, so remove it at a slightly higher rate.
        backlog.take_out(min(capacity * span, backlog.amount), out)
        if self.station.drops_head and backlog.amount > self._limit:
            dropped = [0.0] * self.classes
            self.totals.dropped += backlog.take_out(backlog.amount - self._limit, dropped)
        return [amount / span for amount in out]

    def _to_waits(self, out: list[float], fail: float) -> list[list[float]]:
        """Return the rates into each retry queue, by the class of the message after its return."""
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
        log = self.log
        log.runs.add(now, self.now, total * span)
        log.failed.add(now, self.now, retried * span + parked)
        log.backlog.to(self.now, self._backlog.amount)
        log.busy.hold(now, self.now, total * run_s)
        log.capacity.hold(now, self.now, capacity)
        log.wait.to(self.now, self._backlog.oldest(self.now))
        self._count_towards_opening(total * span, total, conditions)

    def _count(self, fed: list[float], returned: float, span: float) -> None:
        """Count the messages of a certain time. A full queue may have rejected some of them."""
        published = fed[0]
        stretch = self._fed.at(self.now)
        if stretch is not None and stretch.begin <= self.now + TINY:
            self.totals.refused += (stretch.total - published) * span
        self.totals.published += published * span
        self.totals.copied += fed[1] * span
        self.totals.returned += returned * span
        self.log.arrived.add(self.now, self.now + span, (published + fed[1]) * span)
        self.log.returned.add(self.now, self.now + span, returned * span)
        self.log.redriven.add(self.now, self.now + span, fed[2] * span)

    def _send_back(self, wave: RedriveWave) -> None:
        """Re-drive all current dead letters. The rate increases over the ramp."""
        waiting = self.log.parked.last - self.log.redriven.last
        if waiting <= TINY or wave.rate <= 0:
            return
        poison = min(1.0, self._parked_poison / waiting)
        self._parked_poison = 0.0
        anew = self.station.plan.redrive.reset
        place = 0 if anew else self.attempts - 1
        at, left = self.now, waiting
        for step in range(_RAMP_STEPS if wave.ramp_s > 0 else 0):
            rate = wave.rate * (step + 0.5) / _RAMP_STEPS
            span = min(wave.ramp_s / _RAMP_STEPS, left / rate)
            self._redriven.push(at, at + span, self._rates_by_class(rate, poison, place), self.now)
            at, left = at + span, left - rate * span
        if left > TINY:
            rates = self._rates_by_class(wave.rate, poison, place)
            self._redriven.push(at, at + left / wave.rate, rates, self.now)


def flows_of(stations: tuple[Station, ...], scenario: Scenario) -> list[Flow]:
    """Simulate all stations until the end of the scenario.

    If stations receive copies of each other's messages, they are simulated in parallel. The steps
    are no longer than the shortest delay of a copy, so a copy is always known before it arrives.
    """
    horizon = scenario.duration_s
    flows = {station.queue: Flow(station, horizon) for station in stations}
    waits = [wait for station in stations for wait in station.waits]
    coupled = [wait.delay_s for wait in waits if not flows.keys().isdisjoint(wait.copies)]
    step = min(coupled, default=horizon)
    until = 0.0
    while until < horizon:
        # Pass copies to the bound queues. Queues that are not simulated are skipped.
        for flow in flows.values():
            for queues, place, begin, end, rate in flow.to_copy:
                for queue in (each for each in queues if each in flows):
                    flows[queue].copy_in((flow.station.queue, place), begin, end, rate)
            flow.to_copy.clear()
        until = min(horizon, until + step)
        for flow in flows.values():
            flow.advance(until)
    return list(flows.values())


def _traffic(station: Station, horizon: float, grain: float) -> list[tuple[float, float, float]]:
    """Return the published traffic as a list of (begin, end, rate). A burst has the length of one
    minimum step.
    """
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
    """Return the conditions of a station over time. They depend on outages, slowdowns and crashes."""
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


TINY = 1e-7
"""Seconds or messages. Floats are more precise than this, even after a day."""
SAME = 0.002
"""Rates are considered equal if they differ by less than this fraction."""


@dataclass(slots=True)
class Stretch:
    """A constant flow from `begin` to `end`. `rates` has an item for each class, and `total` is the
    sum.
    """

    begin: float
    end: float
    rates: list[float]
    total: float


class Stream:
    """A flow over time. Consecutive stretches are merged if they are almost equal."""

    __slots__ = ("_grain", "stretches")

    def __init__(self, grain: float) -> None:
        self.stretches: deque[Stretch] = deque()
        self._grain = grain

    def push(self, begin: float, end: float, rates: list[float], now: float = 0.0) -> None:
        """Append a stretch. If it is averaged with the last one, the time before `now` is not
        included.
        """
        total = sum(rates)
        last = self.stretches[-1] if self.stretches else None
        if last is not None and last.begin < now < last.end:
            last.begin = now
        if last is None or begin - last.end > TINY:
            if total > 0:
                self.stretches.append(Stretch(begin, end, rates, total))
            return
        begin = last.end  # keep the order of the retry queue, even if the run time has decreased
        if end - begin <= 0:
            return
        short = last.end - last.begin < self._grain or end - begin < self._grain
        if not short and not alike(last, rates, total):
            self.stretches.append(Stretch(begin, end, rates, total))
            return
        old, new = last.end - last.begin, end - begin
        share = new / (old + new)
        last.rates = [a + (b - a) * share for a, b in zip(last.rates, rates, strict=True)]
        last.total += (total - last.total) * share
        last.end = end

    def at(self, now: float) -> Stretch | None:
        """Return the current stretch, or the next one if there is no flow now."""
        stretches = self.stretches
        while stretches and stretches[0].end <= now + TINY:
            stretches.popleft()
        return stretches[0] if stretches else None


def alike(last: Stretch, rates: list[float], total: float) -> bool:
    """Return True if the rates are close enough to merge them.

    Averages approach 0 after a flow has ended, but never reach it. They are treated as 0.
    """
    most = max(SAME * max(last.total, total), TINY)
    return all(abs(a - b) <= most for a, b in zip(last.rates, rates, strict=True))


@dataclass(slots=True)
class _Slice:
    """Part of a backlog, with the fraction of each class and the arrival time of its first and last
    message.
    """

    amount: float
    parts: list[float]
    first_in: float
    last_in: float


class Backlog:
    """The messages of a queue, oldest first. `amount` is the number of messages."""

    __slots__ = ("_slices", "amount")

    def __init__(self) -> None:
        self._slices: deque[_Slice] = deque()
        self.amount: float = 0.0

    @property
    def head(self) -> float:
        """The number of messages in the first slice."""
        return self._slices[0].amount

    def oldest(self, now: float) -> float:
        """Return the age of the oldest message in seconds."""
        return max(0.0, now - self._slices[0].first_in) if self._slices else 0.0

    def clear(self) -> None:
        self.amount = 0.0
        self._slices.clear()

    def take_in(self, rates: Sequence[float], inflow: float, begin: float, span: float) -> None:
        """Add the messages that arrive within `span`. `inflow` is the sum of the rates."""
        amount, end = inflow * span, begin + span
        parts = [rate / inflow for rate in rates]
        last = self._slices[-1] if self._slices else None
        self.amount += amount
        if last is None or any(abs(a - b) > SAME for a, b in zip(last.parts, parts, strict=True)):
            self._slices.append(_Slice(amount, parts, begin, end))
            return
        whole = last.amount + amount
        last.parts = [
            (a * last.amount + b * amount) / whole for a, b in zip(last.parts, parts, strict=True)
        ]
        last.amount, last.last_in = whole, end

    def take_out(self, wanted: float, out: list[float]) -> float:
        """Move messages from the head to `out` and return how many were moved."""
        left = wanted
        while left > 0 and self._slices:
            head = self._slices[0]
            taken = min(left, head.amount)
            for one, part in enumerate(head.parts):
                out[one] += part * taken
            if head.amount - taken <= TINY:
                self._slices.popleft()
            else:
                gone = taken / head.amount
                head.first_in += (head.last_in - head.first_in) * gone
                head.amount -= taken
            left -= taken
        # Rounding errors add up to more than TINY after millions of messages. If there are no
        # slices, the backlog is empty.
        self.amount = max(0.0, self.amount - (wanted - left)) if self._slices else 0.0
        return wanted - left


@dataclass(slots=True)
class Breakers:
    """The circuit breakers of a station: how close they are to opening, and until when they are
    open.
    """

    policy: BreakerPolicy | None
    progress: float = 0.0
    openings: int = 0
    until: float = -math.inf
    probe_end: float | None = None

    def runs_to_open(self, fail: float) -> float:
        """Return the expected number of runs of a process until enough consecutive ones have
        failed.
        """
        policy = self.policy
        if policy is None or fail <= 0:
            return math.inf
        if fail >= 1:
            return float(policy.failures)
        rare = fail ** -min(policy.failures, 500)
        return (rare - 1) / (1 - fail)

    def open(self, now: float) -> None:
        """Open the breakers. Each pause is twice as long as the previous one."""
        assert self.policy is not None  # noqa: S101 - who has no policy never opens
        doubled = self.policy.cool_down * 2.0 ** min(self.openings, 32)
        self.until = now + min(doubled, self.policy.longest_cool_down)
        self.openings += 1
        self.progress = 0.0
        self.probe_end = None

    def close(self) -> None:
        self.openings = 0
        self.progress = 0.0
        self.probe_end = None
