"""Simulate how a message is processed with a failure plan, the embedded broker and virtual time.

A script defines the outcomes of the handler. All other consumers succeed. The result is a timeline
that contains the time, queue, event and relevant headers of each step.

A script is a number of failures (`3`), `always`, or one character per run:

=========  =============================================================
character  the run
=========  =============================================================
`.`        succeeds
`x` `r`    fails and may be retried
`p`        fails permanently and parks the message
`s`        is not due yet and snoozes the message for one second
=========  =============================================================

After the last character, all runs succeed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, assert_never

from hopback.broker.embedded import EmbeddedBroker, Event, EventKind, Node, run_virtual
from hopback.durations import format_duration
from hopback.headers import deaths
from hopback.message import Delivery, Message, Properties
from hopback.policy import Occasion, attempt_of, decide, effects
from hopback.policy import decision as decided
from hopback.policy.decision import Decision, Hold, Publish, Settle, Settlement
from hopback.policy.delays import read_delayed
from hopback.policy.outcome import Done, Outcome, Park, Retry, Snooze
from hopback.topology.delays import DUE, is_delay_level, longest_delay_ms
from hopback.topology.diagram import Ids, label
from hopback.topology.expand import retry_queues
from hopback.topology.plan import Fact, Plan
from hopback.topology.routing import CannotSimulate, Entrance, find_entrance
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopback.broker.port import Channel
    from hopback.fields import Headers
    from hopback.topology.model import Topology

_MOST_PLANNED_RUNS = 10_000  # limits the length of a simulation
_DONE = Done()
_OUTCOMES: dict[str, Outcome] = {
    ".": _DONE,
    "x": Retry("simulated failure"),
    "r": Retry("simulated failure"),
    "p": Park("simulated hopeless failure"),
    "s": Snooze(1.0),
}


@dataclass(frozen=True, slots=True)
class Script:
    """The outcomes of a handler. After the last one, every run returns `rest`."""

    outcomes: tuple[Outcome, ...] = ()
    rest: Outcome = _DONE

    @classmethod
    def parse(cls, text: str) -> Script:
        """Parse `3`, `always` or a pattern such as `xx.p`.

        Raises:
            ValueError: If the text is not a valid script.
        """
        words = text.strip().lower()
        if words == "always":
            return cls(rest=_OUTCOMES["x"])
        if words.isascii() and words.isdigit() and int(words) <= _MOST_PLANNED_RUNS:
            return cls((_OUTCOMES["x"],) * int(words))
        if not words or len(words) > _MOST_PLANNED_RUNS or not set(words) <= set(_OUTCOMES):
            raise ValueError(
                f"expected a number up to {_MOST_PLANNED_RUNS}, always, or one character per run"
                f" (. ok, x or r fail, p park, s snooze), got {text!r}"
            )
        return cls(tuple(_OUTCOMES[letter] for letter in words))

    def outcome(self, run: int) -> Outcome:
        """Return the outcome of run number `run`, starting at 1."""
        return self.outcomes[run - 1] if run <= len(self.outcomes) else self.rest


_EXPLAINING = (Fact.ATTEMPT, Fact.RETRIES, Fact.REASON, Fact.ERROR, Fact.STATUS)
_OWN = ("hopback-attempts", "hopback-queue", "hopback-snoozes")


class TimelineStep(StrEnum):
    """The steps of a timeline."""

    PUBLISHED = "published"
    """The message was published to the simulated queue."""
    RUN = "run"
    """The handler was called."""
    WAITS = "waits"
    """The message was added to a retry queue."""
    DUE = "due"
    """The delay has expired."""
    RETURNED = "returned"
    """The message returned to its queue."""
    PARKED = "parked"
    """The message was added to the dead-letter queue."""
    DONE = "done"
    """The handler succeeded and the message was acknowledged."""
    COPY = "copy"
    """Another queue received a copy of the published message."""
    EXTRA = "extra copy"
    """Another queue received a copy because of a retry."""
    LOST = "lost"
    """The broker dropped the message."""


_FOR_OTHERS = (TimelineStep.COPY, TimelineStep.EXTRA)


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """A step of a timeline. `at_ms` is the time since the message was published."""

    at_ms: int
    step: TimelineStep
    queue: str
    text: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def description(self) -> str:
        return self.text if self.step is TimelineStep.RUN else f"{self.step} {self.text}".rstrip()


@dataclass(frozen=True, slots=True)
class Timeline:
    """The steps of a message published to `exchange` with `routing_key`."""

    topology: str
    queue: str
    version: BrokerVersion
    exchange: str
    routing_key: str
    entries: tuple[TimelineEvent, ...]

    @property
    def runs(self) -> int:
        return sum(entry.step is TimelineStep.RUN for entry in self.entries)

    @property
    def duration_ms(self) -> int:
        """The time from the publish to the last step."""
        return self.entries[-1].at_ms if self.entries else 0

    @property
    def last_event(self) -> TimelineEvent:
        """The last step of the message itself, ignoring copies for other queues."""
        return next(entry for entry in reversed(self.entries) if entry.step not in _FOR_OTHERS)

    @property
    def extra_copies(self) -> Mapping[str, int]:
        """The number of copies that retries sent to each of the other queues."""
        return Counter(entry.queue for entry in self.entries if entry.step is TimelineStep.EXTRA)


def select_headers(headers: Headers, plan: Plan) -> dict[str, str]:
    """Return the headers to show, i.e. retry counts, headers of the design, and the entries of
    `x-death`.
    """
    every = (*plan.retry_stamps, *plan.park_stamps)
    stamps = (stamp.header for stamp in every if stamp.fact in _EXPLAINING)
    names = dict.fromkeys((plan.count_header or "", *stamps, *_OWN))
    told = {name: str(headers[name]) for name in names if name in headers}
    died = ", ".join(f"{death.reason} {death.queue} ×{death.count}" for death in deaths(headers))
    return {**told, "x-death": died} if died else told


DEFAULT_VERSION = BrokerVersion(4, 0)
"""The RabbitMQ version that is simulated by default."""

_MOST_RUNS = 10_000  # protects against endless loops
_MOST_IDLE_DEADLINES = 100
"""Stop after this number of retries of an undeliverable dead letter. The broker would keep trying
forever.
"""


def simulate(
    topology: Topology,
    *,
    queue: str,
    script: Script,
    exchange: str | None = None,
    routing_key: str | None = None,
    version: BrokerVersion = DEFAULT_VERSION,
) -> Timeline:
    """Simulate the processing of one message. Use `play` in a coroutine.

    Args:
        topology: The topology to use.
        queue: The queue the message is published to.
        script: The outcomes of the handler.
        exchange: The exchange to publish to.
        routing_key: The routing key to publish with.
        version: The RabbitMQ version to simulate.

    Raises:
        CannotSimulate: If the queue does not have a plan or is not bound to an exchange.
    """
    plan = topology.plan(queue)
    if plan is None:
        known = ", ".join(plan.queue for plan in topology.plans) or "none"
        raise CannotSimulate(f"expected a queue with a plan ({known}), got {queue!r}")
    entrance = find_entrance(topology, queue, exchange, routing_key)
    return run_virtual(play(topology, plan, entrance, script, version))


async def play(
    topology: Topology,
    plan: Plan,
    entrance: Entrance,
    script: Script,
    version: BrokerVersion,
) -> Timeline:
    """Run the simulation. The event loop must use virtual time."""
    broker = EmbeddedBroker(version=version)
    connection = await broker.connect("simulate")
    channel = await connection.open_channel()
    for exchange in topology.exchanges:
        await channel.declare_exchange(exchange)
    for queue in topology.queues:
        await channel.declare_queue(queue)
    for binding in topology.bindings:
        await channel.bind(binding)
    message_run = _MessageRun(topology, plan, script, version, broker.node, channel)
    await message_run.publish(entrance)
    await message_run.run()
    await connection.close()
    return Timeline(
        topology=topology.name,
        queue=plan.queue,
        version=version,
        exchange=entrance.exchange,
        routing_key=entrance.routing_key,
        entries=tuple(message_run.entries),
    )


class _MessageRun:
    """Consumes the message, applies decisions and records the events of the broker."""

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

    async def publish(self, entrance: Entrance) -> None:
        self._node.listen(self._note)
        properties = Properties(message_id="simulated", delivery_mode=2)
        message = Message(entrance.exchange, entrance.routing_key, b"simulated", properties)
        await self._channel.publish(message)

    async def run(self) -> None:
        """Run until there is no message to process and no pending deadline."""
        idle = 0
        while idle <= _MOST_IDLE_DEADLINES and self._runs <= _MOST_RUNS:
            seen = len(self.entries)
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
            if not found and delivery is None:
                due = self._node.next_deadline()
                if due is None:
                    return
                await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
            idle = 0 if len(self.entries) > seen else idle + 1

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
        """Add an event of the broker to the timeline."""
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
        told = select_headers(headers or {}, self._plan)
        self.entries.append(TimelineEvent(elapsed_ms, step, queue, text, told))


def _way(event: Event) -> str:
    """Describe the exchange and routing key of an event."""
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


_ARROWS = {
    TimelineStep.PUBLISHED: "publisher->>{queue}",
    TimelineStep.RETURNED: "{last}->>{queue}",
    TimelineStep.RUN: "{queue}->>handler",
    TimelineStep.WAITS: "handler-->>{queue}",
    TimelineStep.PARKED: "handler-->>{queue}",
    TimelineStep.DONE: "handler->>{queue}",
    TimelineStep.COPY: "publisher->>{queue}",
    TimelineStep.EXTRA: "{last}->>{queue}",
    TimelineStep.LOST: "{last}-x{queue}",
}


def sequence_of(timeline: Timeline) -> str:
    """Render a timeline as a Mermaid sequence diagram."""
    names = dict.fromkeys([timeline.queue, *(entry.queue for entry in timeline.entries)])
    ids = Ids()
    known = {name: ids.of("q", name) for name in names}
    lines = ["sequenceDiagram", "    participant publisher"]
    for name, alias in known.items():
        lines.append(f"    participant {alias} as {label(name)}")
        if name == timeline.queue:
            lines.append("    participant handler")
    # Draw one arrow per entry. A returning message starts at its last retry queue.
    last = known[timeline.queue]
    for entry in timeline.entries:
        arrow = _ARROWS[entry.step].format(queue=known[entry.queue], last=last)
        text = f"{format_duration(entry.at_ms)}, {entry.description}"
        lines.append(f"    {arrow}: {label(text)}")
        if entry.step is TimelineStep.WAITS:
            last = known[entry.queue]
    return "\n".join(lines) + "\n"
