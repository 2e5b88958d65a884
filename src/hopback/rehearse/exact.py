"""The exact engine, which simulates each message with the runtime and the embedded broker in
virtual time.

Except for the handlers, everything is real: topology, routing, TTLs, dead-lettering, prefetch,
consumers, settlement, counts and breakers. The scenario defines how long handlers take and when
they fail.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING

from hopback.broker.embedded import EmbeddedBroker, EventKind, Refusal, run_virtual
from hopback.broker.embedded.virtual_time import LoopClock
from hopback.message import Message, Properties
from hopback.policy.outcome import Retry
from hopback.policy.redrive import RedriveOccasion, plan_of, redrive_message
from hopback.rehearse.forecast import Forecast, Track, forecast_of, sample_times
from hopback.rehearse.scenario import ArrivalKind, Crash, RedriveWave, Scenario
from hopback.rehearse.station import Station, stations_of
from hopback.runtime.app import App
from hopback.runtime.context import Context  # noqa: TC001  read when the handler is inspected
from hopback.runtime.service import Service, ServiceOptions
from hopback.runtime.settling import Environment
from hopback.topology.hazards import RULES
from hopback.waiting import first_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from hopback.broker.embedded.stored import UnackedDelivery
    from hopback.topology.model import Topology

_FAILED = Retry("rehearsed failure")
_POISON = b"poison"
_PLAIN = b"plain"
_WATCH_S = 600.0
"""How often services check their consumers. Checking more often would only be slower."""
_AT_ONCE = 1e-4
"""How long a re-drive waits if the dead-letter queue seems to be empty."""


def rehearse_exact(
    topology: Topology,
    scenario: Scenario,
    *,
    progress: Callable[[float], object] | None = None,
) -> Forecast:
    """Compute a forecast with the embedded broker and the runtime. Must not be called from a
    coroutine.

    `progress` is called with the fraction that is done, from 0 to 1.
    """
    stations = stations_of(topology, scenario)
    run = _Run(topology, scenario, stations, progress)
    # Start the clock at 0. A float with seconds since the epoch is not precise enough.
    run_virtual(run.run_all(), start=0.0)
    tracks = [counter.track() for counter in run.counters]
    return forecast_of("exact", topology, scenario, tracks)


class _UnusedSink:
    """A sink for channels that don't need to handle events."""

    def deliver(self, taken: UnackedDelivery) -> None:
        """Ignore a message of a queue that is not part of the rehearsal."""

    def on_cancel(self, tag: str) -> None:
        """Ignore the end of a consumer."""

    def on_close(self, refusal: Refusal) -> None:
        """Ignore an error. The publisher already counts it."""


class _Counter:
    """The counters and samples of a station."""

    def __init__(self, station: Station, broker: EmbeddedBroker) -> None:
        self.station = station
        self._broker = broker
        self.published = 0
        self.refused = 0
        self.copied = 0
        self.runs = 0
        self.failed = 0
        self.parked = 0
        self.redriven = 0
        self.first_parked_s: float | None = None
        self.entered = [0] * len(station.waits)
        self.capacity = 0.0
        self.most: dict[str, tuple[float, float]] = {}
        """Maximum depth of each queue directly after a burst or a failure, and the time."""
        self.copied_by: list[tuple[_Counter, int]] = []
        """Stations that send copies to this queue when messages return, with the index of their
        retry queue.
        """
        self._alive: OrderedDict[bytes, float] = OrderedDict()
        """The publish or re-drive time of each message that is neither done nor dead-lettered. The
        key is its body.
        """
        self._rows: list[tuple[float, ...]] = []
        self._waits: list[list[int]] = [[] for _ in station.waits]
        self._numbers: list[int] = []
        self._times: list[float] = []

    def born(self, body: bytes, now: float) -> None:
        """Count a message that was published to this station."""
        self._alive[body] = now

    def gone(self, body: bytes) -> None:
        """Count a message that is done or dead-lettered. A returned copy may be unknown."""
        self._alive.pop(body, None)

    def look(self, name: str, now: float) -> None:
        """Update the maximum depth of a queue."""
        depth = self.depth_of(name)
        if depth > self.most.get(name, (0.0, 0.0))[0]:
            self.most[name] = (depth, now)

    def depth_of(self, name: str) -> int:
        """Return the depth of a queue, including unacked messages and dead letters it still holds."""
        queue = self._broker.node.queues[name]
        return len(queue.ready) + queue.unacked + len(queue.safe) + len(queue.delays)

    def return_count(self, place: int) -> int:
        """Return the number of messages that have left a retry queue."""
        wait = self.station.waits[place]
        return max(0, self.entered[place] - self.depth_of(wait.queue))

    def sample(self, now: float) -> None:
        self._numbers.append(self._broker.node.copies)
        self._times.append(now)
        station = self.station
        for place, wait in enumerate(station.waits):
            self._waits[place].append(self.depth_of(wait.queue))
        copied = self.copied + sum(other.return_count(place) for other, place in self.copied_by)
        # We don't know which messages were dropped by a full queue, only its head.
        dropping = station.max_length is not None and station.drops_head
        oldest = max(0.0, now - next(iter(self._alive.values()), now))
        self._rows.append(
            (
                self.published - self.refused + copied,
                sum(self.entered) - sum(waits[-1] for waits in self._waits),
                self.runs,
                self.failed,
                self.parked,
                self.redriven,
                self.depth_of(station.queue),
                self._head_wait(now),
                self._head_wait(now) if dropping else oldest,
                self.capacity,
                copied,
            )
        )

    def _head_wait(self, now: float) -> float:
        """Return the time the first ready message has spent in the queue.

        Copies are numbered in order of arrival, so the number shows when a message arrived. The
        time is interpolated between two samples.
        """
        head = self._broker.node.queues[self.station.queue].ready.head()
        if head is None:
            return 0.0
        place = bisect_left(self._numbers, head.number)
        if place == 0 or place >= len(self._numbers):
            return 0.0
        low, high = self._numbers[place - 1], self._numbers[place]
        share = (head.number - low) / max(1, high - low)
        came = self._times[place - 1] + (self._times[place] - self._times[place - 1]) * share
        return max(0.0, now - came)

    def track(self) -> Track:
        columns = [list(column) for column in zip(*self._rows, strict=True)]
        arrived, returned, runs, failed, parked, redriven, depth, *rest = columns
        wait_s, oldest_s, capacity, copied = rest
        left = depth[-1] + sum(waits[-1] for waits in self._waits)
        gone = self.runs - self.failed + self.parked - self.redriven
        return Track(
            station=self.station,
            arrived=arrived,
            returned=returned,
            runs=runs,
            failed=failed,
            parked=parked,
            redriven=redriven,
            depth=depth,
            waits=self._waits,
            wait_s=wait_s,
            oldest_s=oldest_s,
            capacity=capacity,
            first_parked_s=self.first_parked_s,
            most=self.most,
            published=self.published,
            copied=copied[-1],
            refused=self.refused,
            dropped=max(0.0, arrived[-1] - left - gone),
            done=self.runs - self.failed,
        )


class _Run:
    """A single rehearsal."""

    def __init__(
        self,
        topology: Topology,
        scenario: Scenario,
        stations: Sequence[Station],
        progress: Callable[[float], object] | None,
    ) -> None:
        self._topology = topology
        self._scenario = scenario
        self._progress = progress
        self._broker = EmbeddedBroker(version=scenario.version, seed=scenario.seed)
        self.counters = [_Counter(station, self._broker) for station in stations]
        self._copy_ids = 0
        self._tasks: set[asyncio.Task[object]] = set()
        self._services: dict[int, asyncio.Task[object]] = {}
        self._random = random.Random(scenario.seed)

    async def run_all(self) -> None:
        """Start the consumers and the traffic, and run until the end of the scenario."""
        loop = asyncio.get_running_loop()
        processes = max(counter.station.load.processes for counter in self.counters)
        for number in range(processes):
            await self._start(number)
        by_queue = {counter.station.queue: counter for counter in self.counters}
        for counter in self.counters:
            for place, wait in enumerate(counter.station.waits):
                for queue in (each for each in wait.copies if each in by_queue):
                    by_queue[queue].copied_by.append((counter, place))
        channel = self._broker.node.connect("others").open_channel(_UnusedSink())
        # Copies may be routed to queues that are not part of the rehearsal. Consume these messages.
        stations = [counter.station for counter in self.counters]
        found = {queue for station in stations for queue in station.copies}
        found |= {queue for one in stations for wait in one.waits for queue in wait.copies}
        for queue in sorted(found - by_queue.keys()):
            channel.consume(queue, no_ack=True)
        begin = loop.time()
        for counter in self.counters:
            self._spawn(self._feed(counter, begin))
            for wave in counter.station.redrives:
                self._spawn(self._send_back(counter, wave, begin))
            for crash in counter.station.crashes:
                self._spawn(self._crash(crash, counter.station, begin))
        for moment in sample_times(self._scenario):
            await asyncio.sleep(max(0.0, begin + moment - loop.time()))
            self._sample(moment)
        tasks = [*self._tasks, *self._services.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _sample(self, moment: float) -> None:
        for counter in self.counters:
            # The number of runs the consumers could start per second, ignoring open breakers.
            load = counter.station.load
            seconds, alive = load.handler_s, load.processes
            for slow in counter.station.slowdowns:
                if slow.start_s <= moment < slow.start_s + slow.length_s:
                    seconds *= slow.factor
            for outage in counter.station.outages:
                if outage.start_s <= moment < outage.end_s and outage.handler_s is not None:
                    seconds += (outage.handler_s - seconds) * outage.share
            for crash in counter.station.crashes:
                if crash.start_s <= moment < crash.start_s + crash.restart_s:
                    alive -= crash.processes
            counter.capacity = load.slots / load.processes * max(0, alive) / max(seconds, 1e-6)
            counter.sample(moment)
        if self._progress is not None:
            self._progress(moment / self._scenario.duration_s)

    def _spawn(self, work: Coroutine[object, object, object]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, number: int) -> None:
        """Start a process. It handles all queues that have more than `number` processes."""
        app = App(self._topology.name, topology=self._topology)
        for counter in self.counters:
            load = counter.station.load
            if number < load.processes:
                app.handler(
                    load.queue,
                    concurrency=load.concurrency,
                    prefetch=load.prefetch,
                    breaker=load.breaker,
                )(self._handler(counter, number))
        if not app.handlers:
            return
        environment = Environment(
            clock=LoopClock(lambda: 0.0),
            chance=self._random.random,
            host="rehearsal",
            make_copy_id=self._make_copy_id,
        )
        options = ServiceOptions(accept=[rule.name for rule in RULES], watch=_WATCH_S)
        service = Service(app, self._broker, options=options, environment=environment)
        running: asyncio.Task[object] = asyncio.create_task(service.run())
        self._services[number] = running
        await first_of(running, service.ready.wait())
        if running.done():
            await running

    def _make_copy_id(self) -> str:
        self._copy_ids += 1
        return f"{self._copy_ids:024x}"

    def _handler(
        self, counter: _Counter, number: int
    ) -> Callable[[bytes, Context], Coroutine[object, object, Retry | None]]:
        """Create a handler that takes as long and fails as often as the scenario specifies."""
        station = counter.station
        load = station.load
        chance = random.Random(f"{self._scenario.seed}/{load.queue}/{number}").random
        time = asyncio.get_running_loop().time
        most = len(station.wait_after) + 1
        poison = _POISON + load.queue.encode() + b" "

        async def run(body: bytes, context: Context) -> Retry | None:
            now = time()
            seconds, fail = load.handler_s, load.fail
            for slow in station.slowdowns:
                if slow.start_s <= now < slow.start_s + slow.length_s:
                    seconds *= slow.factor
            if load.spread_s:
                seconds += load.spread_s * (2 * chance() - 1)
            failed = body.startswith(poison)
            for outage in station.outages:
                if outage.start_s <= now < outage.end_s and (
                    outage.share >= 1 or chance() < outage.share
                ):
                    failed = True
                    seconds = seconds if outage.handler_s is None else outage.handler_s
            if not failed and fail:
                failed = chance() < fail
            await asyncio.sleep(seconds)
            counter.runs += 1
            if not failed:
                counter.gone(body)
                return None
            counter.failed += 1
            attempt = context.attempt
            if attempt >= most:
                counter.parked += 1
                counter.gone(body)
                if counter.first_parked_s is None:
                    counter.first_parked_s = time()
            else:
                place = station.wait_after[attempt - 1]
                counter.entered[place] += 1
                counter.look(station.waits[place].queue, now)
            return _FAILED

        return run

    async def _crash(self, crash: Crash, station: Station, begin: float) -> None:
        """Kill processes and restart them later. The broker requeues their deliveries."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, begin + crash.start_s - loop.time()))
        numbers = [
            n for n in range(min(crash.processes, station.load.processes)) if n in self._services
        ]
        dying = [self._services.pop(number) for number in numbers]
        for task in dying:
            task.cancel()
        await asyncio.gather(*dying, return_exceptions=True)
        await asyncio.sleep(max(0.0, begin + crash.start_s + crash.restart_s - loop.time()))
        for number in numbers:
            await self._start(number)

    async def _feed(self, counter: _Counter, begin: float) -> None:
        """Publish the messages of a station."""
        station, scenario = counter.station, self._scenario
        loop = asyncio.get_running_loop()
        chance = random.Random(f"{scenario.seed}/{station.queue}").random
        channel = self._broker.node.connect("producer").open_channel(_UnusedSink())
        exchange, routing_key = station.entrance.exchange, station.entrance.routing_key
        properties = Properties(delivery_mode=2)
        plain, poison = (kind + station.queue.encode() + b" " for kind in (_PLAIN, _POISON))
        copies = [other for other in self.counters if other.station.queue in station.copies]
        share = station.load.poison
        for moment, count in _moments(station, scenario.duration_s, chance):
            wait = begin + moment - loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            for _ in range(count):
                kind = poison if share and chance() < share else plain
                body = kind + b"%d" % counter.published
                counter.published += 1
                message = Message(exchange, routing_key, body, properties)
                if channel.publish(message, mandatory=True) is EventKind.REFUSED:
                    counter.refused += 1
                else:
                    counter.born(body, moment)
                for other in copies:
                    other.copied += 1
                    other.born(body, moment)
            if count > 1:
                counter.look(station.queue, moment)

    async def _send_back(self, counter: _Counter, wave: RedriveWave, begin: float) -> None:
        """Re-drive the dead letters of a station like `hopback dlq redrive` does. The rate
        increases over the ramp.
        """
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, begin + wave.start_s - loop.time()))
        plan = counter.station.plan
        connection = await self._broker.connect("re-drive")
        channel = await connection.open_channel()
        plans = self._topology.plans
        started, on_ramp = loop.time(), wave.rate * wave.ramp_s / 2
        left = counter.parked - counter.redriven
        sent = 0
        while left > 0:
            delivery = await channel.get(plan.parking.queue)
            if delivery is None:
                await asyncio.sleep(_AT_ONCE)
                left -= 1
                continue
            if plan_of(delivery, plans) is not plan:
                # belongs to another station, so it is requeued when the connection is closed
                continue
            occasion = RedriveOccasion(loop.time(), "rehearsal")
            await channel.publish(redrive_message(delivery, plan, occasion))
            channel.ack(delivery.tag)
            counter.redriven += 1
            counter.born(delivery.body, loop.time() - begin)
            sent, left = sent + 1, left - 1
            # Increase the rate over the ramp.
            due = wave.ramp_s + (sent - on_ramp) / wave.rate
            if sent < on_ramp:
                due = float((2 * sent * wave.ramp_s / wave.rate) ** 0.5)
            await asyncio.sleep(max(0.0, started + due - loop.time()))
        with suppress(Exception):
            await connection.close()


def _moments(
    station: Station, duration_s: float, chance: Callable[[], float]
) -> Iterator[tuple[float, int]]:
    """Yield the times of publishes and the number of messages published at each time."""
    load = station.load
    if load.arrivals is ArrivalKind.BURSTS:
        number = 1
        while (at := number * load.burst_s) < duration_s:
            yield at, round(load.rate_at(at - load.burst_s / 2) * load.burst_s)
            number += 1
        return
    draw = random.Random(f"{chance()}").expovariate
    poisson = load.arrivals is ArrivalKind.POISSON
    ends = [step.at_s for step in load.rates[1:]] + [duration_s]
    for step, until in zip(load.rates, ends, strict=True):
        end = min(until, duration_s)
        if step.rate <= 0:
            continue
        at = step.at_s
        number = 0
        while True:
            number += 1
            at = at + draw(step.rate) if poisson else step.at_s + number / step.rate
            if at >= end:
                break
            yield at, 1
