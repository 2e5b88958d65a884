"""Play one message's life: a real plan, real decisions, the embedded broker, virtual time.

The handler of one queue follows a script; every other consumer succeeds at once. What the
timeline tells is what the broker did, not what the plan intended.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, assert_never

from hopback.broker.embedded import EmbeddedBroker, EventKind, run_virtual
from hopback.message import Message, Properties
from hopback.policy import Occasion, attempt_of, decide, effects
from hopback.policy import decision as decided
from hopback.policy.decision import Hold, Publish, Settle, Settlement
from hopback.policy.delays import delay, read_delayed
from hopback.testing.timeline import Timeline, TimelineEvent, TimelineStep, telling_headers
from hopback.topology.delays import DUE, is_delay_level, longest_delay_ms
from hopback.topology.durations import format_duration
from hopback.topology.entrance import CannotSimulate, find_entrance
from hopback.topology.expand import retry_queues
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from hopback.broker.embedded import Event, Node
    from hopback.broker.port import Channel
    from hopback.fields import Headers
    from hopback.message import Delivery
    from hopback.policy.decision import Decision
    from hopback.testing.script import Script
    from hopback.topology.entrance import Entrance
    from hopback.topology.model import Topology
    from hopback.topology.plan import Plan

__all__ = ["DEFAULT_VERSION", "play", "simulate"]

DEFAULT_VERSION = BrokerVersion(4, 0)
"""The RabbitMQ that is simulated when nothing else is said."""

_MOST_RUNS = 10_000  # what runs on after that never ends
_MOST_IDLE_DEADLINES = 100
"""A dead letter that cannot be delivered is tried again forever; so often we watch it."""


def simulate(
    topology: Topology,
    *,
    queue: str,
    script: Script,
    exchange: str | None = None,
    routing_key: str | None = None,
    version: BrokerVersion = DEFAULT_VERSION,
    delay_ms: int | None = None,
) -> Timeline:
    """The life of one message for `queue` whose handler follows `script`, in no time at all.

    With `delay_ms` it is published to come later. CannotSimulate if the queue has no plan, nothing
    leads there, or the topology has no queues for such a delay. Not to be called from a
    coroutine: `play` is the same for those.
    """
    plan = topology.plan(queue)
    if plan is None:
        known = ", ".join(plan.queue for plan in topology.plans) or "none"
        raise CannotSimulate(f"expected a queue with a plan ({known}), got {queue!r}")
    longest_ms = longest_delay_ms(topology)
    if delay_ms is not None and delay_ms > longest_ms:
        held = (
            f"of at most {format_duration(longest_ms)}" if longest_ms else "that it can hold: none"
        )
        raise CannotSimulate(
            f"expected a delay {held}, got {format_duration(delay_ms)}; declare its queues with"
            " `app.delays(longest=…)`"
        )
    entrance = find_entrance(topology, queue, exchange, routing_key)
    return run_virtual(play(topology, plan, entrance, script, version, delay_ms))


async def play(
    topology: Topology,
    plan: Plan,
    entrance: Entrance,
    script: Script,
    version: BrokerVersion,
    delay_ms: int | None = None,
) -> Timeline:
    """Play on a loop that is running in virtual time already."""
    broker = EmbeddedBroker(version=version)
    connection = await broker.connect("simulate")
    channel = await connection.open_channel()
    for exchange in topology.exchanges:
        await channel.declare_exchange(exchange)
    for queue in topology.queues:
        await channel.declare_queue(queue)
    for binding in topology.bindings:
        await channel.bind(binding)
    player = _Player(topology, plan, script, version, broker.node, channel)
    await player.publish(entrance, delay_ms)
    await player.run()
    await connection.close()
    return Timeline(
        topology=topology.name,
        queue=plan.queue,
        version=version,
        exchange=entrance.exchange,
        routing_key=entrance.routing_key,
        entries=tuple(player.entries),
    )


class _Player:
    """Consumes, decides, carries out, and writes down what the broker says."""

    def __init__(
        self,
        topology: Topology,
        plan: Plan,
        script: Script,
        version: BrokerVersion,
        node: Node,
        channel: Channel,
    ) -> None:
        self.entries: list[TimelineEvent] = []
        self._plan = plan
        self._script = script
        self._version = version
        self._node = node
        self._channel = channel
        self._others = [other.queue for other in topology.plans if other is not plan]
        self._longest_delay_ms = longest_delay_ms(topology)
        self._waits = dict(retry_queues(plan)) | {
            queue.name: ttl
            for queue in topology.queues
            if is_delay_level(queue.name)
            and isinstance(ttl := queue.arguments.get("x-message-ttl"), int)
        }
        self._runs = 0
        self._start = asyncio.get_running_loop().time()

    async def publish(self, entrance: Entrance, delay_ms: int | None) -> None:
        """Send the message on its way, at once or later."""
        self._node.listen(self._note)
        properties = Properties(message_id="simulated", delivery_mode=2)
        message = Message(entrance.exchange, entrance.routing_key, b"simulated", properties)
        if delay_ms is not None:
            message = delay(message, delay_ms, round(self._start * 1000) + delay_ms)
        await self._channel.publish(message)

    async def run(self) -> None:
        """Go on until nothing is ready and no deadline brings anything more."""
        idle = 0
        while idle <= _MOST_IDLE_DEADLINES and self._runs <= _MOST_RUNS:
            seen = len(self.entries)
            if not await self._consume() and not await self._wait():
                return
            idle = 0 if len(self.entries) > seen else idle + 1

    async def _consume(self) -> bool:
        """Handle what is ready, and tell whether anything was."""
        found = False
        for other in self._others:
            while copy := await self._channel.get(other):
                delayed = read_delayed(copy) if other == DUE else None
                if delayed is not None:
                    await self._channel.publish(delayed.message)
                self._channel.ack(copy.tag)
                found = True
        delivery = await self._channel.get(self._plan.queue)
        if delivery is not None:
            await self._handle(delivery)
        return found or delivery is not None

    async def _wait(self) -> bool:
        """Sleep until the broker's next deadline; False if there is none."""
        due = self._node.next_deadline()
        if due is not None:
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
        return due is not None

    async def _handle(self, delivery: Delivery) -> None:
        self._runs += 1
        outcome = self._script.outcome(self._runs)
        decision = decide(
            delivery,
            outcome,
            self._plan,
            version=self._version,
            longest_delay_ms=self._longest_delay_ms,
        )
        attempt = attempt_of(delivery, self._plan)
        text = f"attempt {attempt} of {self._plan.attempts} {_told(decision)}"
        self._add(TimelineStep.RUN, delivery.queue, text, delivery.properties.headers)
        occasion = Occasion(now=asyncio.get_running_loop().time(), host="simulated")
        for effect in effects(decision, delivery, self._plan, occasion):
            match effect:
                case Publish(message=message):
                    await self._channel.publish(message)
                case Hold(delay=seconds):
                    await asyncio.sleep(seconds)
                case Settle(how=Settlement.ACK):
                    self._channel.ack(delivery.tag)
                case Settle(how=how):
                    self._channel.nack(delivery.tag, requeue=how is Settlement.RELEASE)
                case _:
                    assert_never(effect)
        if isinstance(decision, decided.Ack):
            self._add(TimelineStep.DONE, delivery.queue, "")

    def _note(self, event: Event) -> None:
        """Write down what the broker tells of our message."""
        if event.kind is EventKind.ENQUEUED:
            if event.queue == self._plan.queue:
                step = TimelineStep.RETURNED if self._runs else TimelineStep.PUBLISHED
                self._add(step, event.queue, _way(event))
            elif event.queue in self._waits:
                self._add(
                    TimelineStep.WAITS, event.queue, format_duration(self._waits[event.queue])
                )
            elif event.queue == DUE:
                self._add(TimelineStep.DUE, event.queue, "")
            elif event.queue == self._plan.parking.queue:
                self._add(TimelineStep.PARKED, event.queue, "", event.headers)
            else:
                step = TimelineStep.EXTRA if self._runs else TimelineStep.COPY
                self._add(step, event.queue, _way(event), event.headers)
        elif event.kind is EventKind.REQUEUED:
            self._add(TimelineStep.RETURNED, event.queue, "by release")
        elif event.kind is EventKind.DROPPED:
            self._add(
                TimelineStep.LOST, event.queue or self._plan.queue, event.reason, event.headers
            )

    def _add(
        self, step: TimelineStep, queue: str, text: str, headers: Headers | None = None
    ) -> None:
        elapsed_ms = round((asyncio.get_running_loop().time() - self._start) * 1000)
        told = telling_headers(headers or {}, self._plan)
        self.entries.append(TimelineEvent(elapsed_ms, step, queue, text, told))


def _way(event: Event) -> str:
    """How it came: the exchange and the key."""
    key = f" as {event.routing_key}" if event.routing_key else ""
    return f"through {event.exchange or 'the default exchange'}{key}"


def _told(decision: Decision) -> str:
    match decision:
        case decided.Ack():
            return "succeeds"
        case decided.Retry(counted=False, by=by):
            return f"snoozes, leaves by {by}"
        case decided.Retry(by=by):
            return f"fails, leaves by {by}"
        case decided.Park(by=by, reason=reason):
            return f"is parked by {by}: {reason}"
        case decided.Requeue(delay=seconds):
            return f"snoozes, waits {seconds:g}s in the process"
        case decided.Keep():
            return "cannot be moved and stays unsettled"
        case _:
            assert_never(decision)
