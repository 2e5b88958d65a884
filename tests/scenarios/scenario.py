"""A scenario: a design on a broker with its consumers and their recorded runs.

A test takes a `scenario`. It runs with the minimal consuming loop and with the runtime, on the
faithful and the hardened form, in virtual time on the embedded broker. Some tests also run on
RabbitMQ, with short waits.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import pytest

from hopback.broker.embedded import EmbeddedBroker, EventKind, run_virtual
from hopback.broker.embedded.virtual_time import LoopClock
from hopback.broker.rabbitmq import RabbitMQ
from hopback.message import Message, Properties
from hopback.policy import RedriveOccasion, redrive_message
from hopback.topology.expand import retry_queues
from hopback.topology.model import Queue
from hopback.version import BrokerVersion
from tests.scenarios.consumers import ScriptedConsumer
from tests.scenarios.runners import PolicyRunner, RuntimeRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from hopback.broker.embedded import Event, Faults
    from hopback.broker.port import Broker, Channel
    from hopback.fields import Headers
    from hopback.topology.model import Topology
    from hopback.topology.plan import Plan
    from tests.scenarios.consumers import Reaction, Run
    from tests.scenarios.runners import Runner

__all__ = [
    "EVERY_VERSION",
    "FAITHFUL",
    "HARDENED",
    "POLICY",
    "RUNTIME",
    "QueuedMessage",
    "Scenario",
    "for_design",
]

P = ParamSpec("P")

POLICY, RUNTIME = "policy", "runtime"
FAITHFUL, HARDENED = "faithful", "hardened"
_V4_0 = BrokerVersion(4, 0)
EVERY_VERSION = (BrokerVersion(3, 10), _V4_0, BrokerVersion(4, 3))

_INSTANT = 1e-5
_DAY = 86_400.0
_QUIET_LOOKS = 6
_RUNNERS: dict[str, type[PolicyRunner | RuntimeRunner]] = {
    POLICY: PolicyRunner,
    RUNTIME: RuntimeRunner,
}


@dataclass(frozen=True, slots=True)
class Setting:
    """The variant of a scenario. `version` is None for RabbitMQ."""

    runner: str
    form: str
    version: BrokerVersion | None

    def __str__(self) -> str:
        return f"{self.runner}-{self.form}-{self.version or 'rabbitmq'}"


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A message in a queue."""

    body: bytes
    properties: Properties
    routing_key: str
    redelivered: bool

    @property
    def headers(self) -> Headers:
        return self.properties.headers


class Scenario:
    """A design with consumers. A consumer without reactions always succeeds."""

    def __init__(self, setting: Setting, topology: Topology, broker: Broker) -> None:
        self.setting = setting
        self.topology = topology
        self.broker = broker
        self.consumers: dict[str, ScriptedConsumer] = {
            plan.queue: ScriptedConsumer(plan.queue) for plan in topology.plans
        }
        self.journal: list[Event] = []
        self._clock = LoopClock(time.time)
        self._began = self._clock.now()
        self._has_new_event = asyncio.Event()
        self._runner: Runner | None = None

    # --- setup -------------------------------------------------------------------------------------

    @property
    def is_hardened(self) -> bool:
        return self.setting.form == HARDENED

    @property
    def is_virtual(self) -> bool:
        """Whether time is virtual. Then times are exact."""
        return self.setting.version is not None

    @property
    def version(self) -> BrokerVersion:
        """The version of the embedded broker."""
        assert self.setting.version is not None
        return self.setting.version

    @property
    def embedded(self) -> EmbeddedBroker:
        """The embedded broker with its faults and its journal."""
        assert isinstance(self.broker, EmbeddedBroker)
        return self.broker

    @property
    def faults(self) -> Faults:
        return self.embedded.faults

    def plan(self, queue: str) -> Plan:
        plan = self.topology.plan(queue)
        assert plan is not None, queue
        return plan

    def consumer(self, queue: str, *reactions: Reaction, **how: Any) -> ScriptedConsumer:
        """Set the reactions of a queue's consumer. See `ScriptedConsumer`."""
        self.plan(queue)
        self.consumers[queue] = ScriptedConsumer(queue, reactions, **how)
        return self.consumers[queue]

    def script(self, queue: str, script: Callable[[Run], Reaction], **how: Any) -> ScriptedConsumer:
        """Set a function that computes the reactions of a queue's consumer."""
        return self.consumer(queue, script=script, **how)

    def remove_consumers(self, *queues: str) -> None:
        for queue in queues:
            del self.consumers[queue]

    def other_runs(self, consumer: ScriptedConsumer) -> dict[str, int]:
        """Return the number of runs of the other consumers by queue, without those that never ran."""
        return {
            other.queue: len(other.runs)
            for other in self.consumers.values()
            if other is not consumer and other.runs
        }

    # --- time --------------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the time in seconds since 1970."""
        return self._clock.now()

    def elapsed(self) -> float:
        """Return the seconds since the first publish."""
        return self._clock.now() - self._began

    async def open(self) -> None:
        """Declare the topology and start the consumers. A publish does it as well."""
        if self._runner is not None:
            return
        if isinstance(self.broker, EmbeddedBroker):
            self.broker.node.listen(self._note)
        self._runner = _RUNNERS[self.setting.runner](self)
        await self._runner.start()
        self._began = self._clock.now()

    async def close(self) -> None:
        """Stop the consumers."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.stop()

    def _note(self, event: Event) -> None:
        self.journal.append(event)
        self._has_new_event.set()

    async def wait(self, seconds: float) -> None:
        """Wait and let all due events happen."""
        await asyncio.sleep(seconds + _INSTANT)

    async def drain(self, *, runs: int = 0) -> None:
        """Wait until all consumed queues are empty and at least `runs` runs have happened."""
        async with asyncio.timeout(_DAY if self.is_virtual else 60):
            await (self._wait_until_empty() if self.is_virtual else self._wait_until_quiet(runs))

    async def _wait_until_empty(self) -> None:
        while True:
            self._has_new_event.clear()
            await asyncio.sleep(_INSTANT)
            if not any(map(self._count, self._queues_to_drain())):
                return
            await self._has_new_event.wait()

    async def _wait_until_quiet(self, runs: int) -> None:
        """Check several times, because messages that move inside a real broker are invisible."""
        looks = 0
        while looks < _QUIET_LOOKS or sum(len(one.runs) for one in self.consumers.values()) < runs:
            await asyncio.sleep(0.05)
            waiting = [await self._ready(queue) for queue in self._queues_to_drain()]
            assert self._runner is not None
            looks = 0 if any(waiting) or self._runner.busy else looks + 1

    def _queues_to_drain(self) -> list[str]:
        """Return the consumed queues and their retry queues."""
        waiting = [name for one in self.consumers for name, _ in retry_queues(self.plan(one))]
        return [*self.consumers, *waiting]

    def _count(self, name: str) -> int:
        queue = self.embedded.node.queues[name]
        held = len(queue.safe.dead_letters) + len(queue.delays.entries)
        return len(queue.ready) + queue.unacked + held

    async def _ready(self, name: str) -> int:
        channel = await self._channel()
        state = await channel.declare_queue(Queue(name), passive=True)
        await channel.close()
        return state.messages

    # --- producer and operator -----------------------------------------------------------------------

    async def _channel(self) -> Channel:
        if not hasattr(self, "_operator"):
            self._operator = await self.broker.connect("operator")
        return await self._operator.open_channel()

    async def publish(
        self, exchange: str, key: str, body: bytes = b"{}", *, headers: Headers | None = None
    ) -> None:
        """Publish a mandatory, persistent message and wait for the confirm."""
        await self.open()
        properties = Properties(
            headers=headers or {}, delivery_mode=2, timestamp=int(self.now()), message_id="m-1"
        )
        await self.send(Message(exchange, key, body, properties))

    async def send(self, message: Message) -> None:
        channel = await self._channel()
        await channel.publish(message)
        await channel.close()

    async def redrive(self, queue: str, **occasion: Any) -> Message:
        """Get the oldest dead letter of a queue, publish it for re-drive, then ack it."""
        plan, channel = self.plan(queue), await self._channel()
        delivery = await channel.get(plan.parking.queue)
        assert delivery is not None, f"{plan.parking.queue} is empty"
        message = redrive_message(delivery, plan, RedriveOccasion(self.now(), "job-1", **occasion))
        await channel.publish(message)
        channel.ack(delivery.tag)
        await channel.close()
        return message

    # --- inspection ----------------------------------------------------------------------------------

    def events(self, name: str) -> list[Mapping[str, Any]]:
        """Return the fields of the runtime's events of that name. The minimal loop has no events."""
        assert self._runner is not None
        return [fields for found, fields in self._runner.events if found == name]

    async def contents(self, queue: str, expected: int | None = None) -> list[QueuedMessage]:
        """Return the messages of a queue, oldest first. On RabbitMQ wait until it has `expected`
        messages.
        """
        if self.is_virtual:
            stored = self.embedded.snapshot().queue(queue).messages
            return [
                QueuedMessage(m.body, m.properties, m.routing_key, m.redelivered) for m in stored
            ]
        found = await self._get_all(queue, expected or 0)
        return [QueuedMessage(d.body, d.properties, d.routing_key, d.redelivered) for d in found]

    async def _get_all(self, queue: str, expected: int) -> list[Any]:
        """Get all messages of a queue and requeue them by closing the channel."""
        async with asyncio.timeout(20):
            while await self._ready(queue) < expected:  # noqa: ASYNC110  another process
                await asyncio.sleep(0.05)
        channel = await self._channel()
        found = []
        while delivery := await channel.get(queue):
            found.append(delivery)
        await channel.close()
        return found

    async def only(self, queue: str) -> QueuedMessage:
        """Return the only message of a queue."""
        found = await self.contents(queue, 1)
        assert len(found) == 1, f"expected one message in {queue}, found {len(found)}"
        return found[0]

    async def sizes(self, *queues: str) -> list[int]:
        """Return the number of messages of each queue, including unacked ones."""
        return [len(await self.contents(queue)) for queue in queues]

    def arrivals(self, queue: str) -> list[tuple[float, str, str]]:
        """Return time, exchange and routing key of each message that entered a queue."""
        return [
            (round(event.at - self._began, 3), event.exchange, event.routing_key)
            for event in self.journal
            if event.kind is EventKind.ENQUEUED and event.queue == queue
        ]

    def drops(self) -> list[tuple[str, str]]:
        """Return queue and reason of each message that the broker dropped."""
        return [(e.queue, e.reason) for e in self.journal if e.kind is EventKind.DROPPED]

    def ran_at(self, consumer: ScriptedConsumer, expected: list[float]) -> bool:
        """Return whether the consumer ran at exactly these times. In real time only the number is
        compared.
        """
        if self.is_virtual:
            return consumer.times == expected
        return len(consumer.times) == len(expected)

    async def close_operator(self) -> None:
        """Close the operator's connection."""
        if hasattr(self, "_operator"):
            await self._operator.close()


def _settings(
    runners: Iterable[str], forms: Iterable[str], versions: Iterable[BrokerVersion], *, real: bool
) -> list[Any]:
    """Return the combinations of runner, form and version.

    Versions differ in the broker and the decisions, so outside the main flows the runtime runs on
    the newest one only. On RabbitMQ the minimal loop runs the faithful form.
    """
    forms, runners, every = tuple(forms), tuple(runners), tuple(versions)
    found = [
        Setting(runner, form, version)
        for runner in runners
        for form in forms
        for version in (every if real or runner == POLICY else every[-1:])
    ]
    shown = [pytest.param(setting, id=str(setting)) for setting in found]
    for runner in runners if real else ():
        for form in forms if runner == RUNTIME else (FAITHFUL,):
            setting = Setting(runner, form, None)
            shown.append(pytest.param(setting, id=str(setting), marks=pytest.mark.broker))
    return shown


def for_design(
    design: Callable[..., Topology],
    *,
    runners: Iterable[str] = (POLICY, RUNTIME),
    forms: Iterable[str] = (FAITHFUL, HARDENED),
    versions: Iterable[BrokerVersion] = (_V4_0,),
    quick: Mapping[str, Any] | None = None,
) -> Callable[[Callable[Concatenate[Scenario, P], Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Make a test from a scenario, with both runners on both forms of a design.

    `quick` contains the design's parameters for short waits. With it the scenario also runs on
    RabbitMQ.
    """

    def decorate(
        test_body: Callable[Concatenate[Scenario, P], Coroutine[Any, Any, None]],
    ) -> Callable[..., None]:
        def test(setting: Setting, request: pytest.FixtureRequest, **given: Any) -> None:
            broker: Broker
            if setting.version is None:
                broker = RabbitMQ(request.getfixturevalue("amqp_url"))
                topology = design(hardened=setting.form == HARDENED, **(quick or {}))
                asyncio.run(_run_test_body(test_body, setting, topology, broker, given))
            else:
                broker = EmbeddedBroker(version=setting.version)
                topology = design(hardened=setting.form == HARDENED)
                run_virtual(_run_test_body(test_body, setting, topology, broker, given))

        _copy_signature(test, test_body)
        settings = _settings(runners, forms, versions, real=quick is not None)
        shown: Callable[..., None] = pytest.mark.parametrize("setting", settings)(test)
        return shown

    return decorate


async def _run_test_body(
    test_body: Callable[..., Coroutine[Any, Any, None]],
    setting: Setting,
    topology: Topology,
    broker: Broker,
    given: Mapping[str, Any],
) -> None:
    scenario = Scenario(setting, topology, broker)
    try:
        await test_body(scenario, **given)
    finally:
        await scenario.close()
        await scenario.close_operator()


def _copy_signature(test: Callable[..., None], test_body: Callable[..., object]) -> None:
    """Present the test to pytest with the fixtures of the scenario and a setting instead of the scenario."""
    kind = inspect.Parameter.KEYWORD_ONLY
    _, *given = inspect.signature(test_body).parameters.values()
    names = ["setting", "request", *(parameter.name for parameter in given)]
    test.__name__, test.__doc__ = test_body.__name__, test_body.__doc__
    test.__qualname__, test.__module__ = test_body.__qualname__, test_body.__module__
    signature = inspect.Signature([inspect.Parameter(name, kind) for name in names])
    test.__signature__ = signature  # type: ignore[attr-defined]
