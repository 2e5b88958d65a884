"""Random programs run on RabbitMQ and on the embedded broker, with equal results.

The default is a fixed set of programs that takes a minute. HOPBACK_LONG=1 runs many more, different
ones each time.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hopback.broker.embedded import EmbeddedBroker
from hopback.broker.rabbitmq import RabbitMQ
from hopback.message import Message, Properties
from hopback.topology.model import Binding, Exchange, Queue, QueueType
from hopback.version import BrokerVersion
from tests.conformance.broker_pair import BrokerPair
from tests.harness.rabbitmq import RabbitNode
from tests.harness.versions import SUITES, build

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from hopback.broker.port import QueueState
    from hopback.fields import FieldValue
    from hopback.testing import BrokerThread
    from tests.conformance.broker_pair import Held, Step
    from tests.harness.shared import SharedNode

_LONG = os.environ.get("HOPBACK_LONG") == "1"
_SETTINGS = settings(
    max_examples=400 if _LONG else 40,
    stateful_step_count=60 if _LONG else 25,
    derandomize=not _LONG,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    # A failing step waits for seconds, so shrinking takes long.
    phases=tuple(Phase) if _LONG else (Phase.generate,),
)
_SIZE = 4
_CONTROL = 2
_WAYS: tuple[tuple[str, dict[str, bool]], ...] = (
    ("ack", {}),
    ("nack", {"requeue": True}),
    ("nack", {"requeue": False}),
    ("reject", {"requeue": True}),
    ("reject", {"requeue": False}),
)
channels = st.integers(0, 1)
picks = st.integers(0, 20)


@dataclass(slots=True)
class _Consumer:
    """A consumer on both brokers, and the number of its known deliveries."""

    channel: int
    queue: str
    taken: int = 0


class SideBySide(RuleBasedStateMachine):
    """Queues in a ring, each dead-lettering to the next or to none, two exchanges, two channels.

    Each queue receives dead letters from one other queue, and a deleted queue is not declared
    again, so that concurrent actions of RabbitMQ have one order.
    """

    def __init__(self, url: str, version: BrokerVersion) -> None:
        super().__init__()
        self._url, self._version = url, version
        self._runner = asyncio.Runner()
        self._prefix = f"twins-{uuid.uuid4().hex[:8]}"
        self._generations = [0] * _SIZE
        self._queues: list[str] = []
        self._unacked: list[tuple[int, Held]] = []
        self._consumers: dict[str, _Consumer] = {}
        self._sent = 0
        self._brokers: BrokerPair | None = None

    @property
    def brokers(self) -> BrokerPair:
        """The two brokers, connected in the first step."""
        assert self._brokers is not None
        return self._brokers

    def _name(self, number: int) -> str:
        return f"{self._prefix}.q{number}.{self._generations[number]}"

    def _existing(self, pick: int) -> str:
        return self._queues[pick % len(self._queues)]

    @property
    def _exchanges(self) -> list[str]:
        return [f"{self._prefix}.direct", f"{self._prefix}.topic"]

    def _do(self, step: Step, channel: int = _CONTROL) -> object:
        return self._runner.run(self.brokers.do(channel, step))

    @initialize()
    def connect(self) -> None:
        opening = BrokerPair.open(RabbitMQ(self._url), EmbeddedBroker(version=self._version))
        self._brokers = self._runner.run(opening)
        for exchange in map(Exchange, self._exchanges, ("direct", "topic")):
            self._do(lambda channel, exchange=exchange: channel.declare_exchange(exchange))  # type: ignore[misc]

    # --- topology

    @rule(
        number=st.integers(0, _SIZE - 1),
        quorum=st.booleans(),
        dies=st.booleans(),
        length=st.sampled_from((None, None, 1, 2)),
        limit=st.sampled_from((None, None, 1, 3)),
    )
    def declare(
        self, number: int, *, quorum: bool, dies: bool, length: int | None, limit: int | None
    ) -> None:
        """Declare a queue. If it exists, the arguments are compared."""
        arguments: dict[str, FieldValue] = {}
        if dies:
            target = self._name((number + 1) % _SIZE)
            arguments |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target}
        if length is not None:
            arguments["x-max-length"] = length
        if quorum and limit is not None:
            arguments["x-delivery-limit"] = limit
        kind = QueueType.QUORUM if quorum else QueueType.CLASSIC
        queue = Queue(self._name(number), kind, arguments=arguments)
        self._do(lambda channel: _messages(channel.declare_queue(queue)))
        if queue.name not in self._queues:
            self._queues.append(queue.name)

    @precondition(lambda self: self._queues)
    @rule(pick=picks, topic=st.booleans(), key=st.sampled_from(("a", "a.b", "*.b", "a.#", "#")))
    def bind(self, pick: int, *, topic: bool, key: str) -> None:
        binding = Binding(self._exchanges[topic], self._existing(pick), key)
        self._do(lambda channel: channel.bind(binding))

    @precondition(lambda self: self._queues)
    @rule(pick=picks)
    def purge(self, pick: int) -> None:
        """Purge a queue and compare the counts."""
        self._do(lambda channel: channel.purge_queue(self._existing(pick)))

    @precondition(lambda self: len(self._queues) > 2)
    @rule(pick=picks)
    def delete(self, pick: int) -> None:
        """Delete a queue with its consumers."""
        name = self._existing(pick)
        self._do(lambda channel: channel.delete_queue(name))
        self._queues.remove(name)
        self._generations[int(name.split(".q")[1][0])] += 1
        self._unacked = [each for each in self._unacked if each[1].queue != name]
        self._consumers = {tag: each for tag, each in self._consumers.items() if each.queue != name}

    # --- messages

    def _message(self, exchange: str, key: str, **properties: Any) -> Message:
        self._sent += 1
        content = Properties(delivery_mode=2, headers={"n": self._sent}, **properties)
        return Message(exchange, key, str(self._sent).encode(), content)

    @precondition(lambda self: self._queues)
    @rule(pick=picks, channel=channels, priority=st.sampled_from((None, None, 1, 9)))
    def publish(self, pick: int, channel: int, priority: int | None) -> None:
        """Publish to a queue by name."""
        message = self._message("", self._existing(pick), priority=priority)
        self._do(lambda one: one.publish(message), channel)

    @rule(topic=st.booleans(), key=st.sampled_from(("a", "a.b", "b", "")), channel=channels)
    def publish_to_exchange(self, *, topic: bool, key: str, channel: int) -> None:
        """Publish to an exchange. The message is stored or returned."""
        message = self._message(self._exchanges[topic], key)
        self._do(lambda one: one.publish(message), channel)

    @precondition(lambda self: self._queues)
    @rule(pick=picks)
    def publish_and_expire(self, pick: int) -> None:
        """Publish a message that expires soon, and wait."""
        message = self._message("", self._existing(pick), expiration="40")
        self._do(lambda one: one.publish(message), 0)
        self._runner.run(asyncio.sleep(0.15))

    @precondition(lambda self: self._queues)
    @rule(pick=picks, channel=channels)
    def get(self, pick: int, channel: int) -> None:
        """Get a message, if there is one, without settling it."""
        queue = self._existing(pick)
        if self._consumes(channel, queue):
            return
        held = self._runner.run(self.brokers.get(channel, queue))
        if held is not None:
            self._unacked.append((channel, held))

    def _consumes(self, channel: int, queue: str) -> bool:
        """Return whether a channel consumes from the queue. Such a channel does not get from it.

        The order of messages that a quorum queue receives back from both is undefined.
        """
        return any(
            each.queue == queue and each.channel == channel for each in self._consumers.values()
        )

    @precondition(lambda self: self._queues)
    @rule(pick=picks, channel=channels, prefetch=st.integers(1, 3))
    def consume(self, pick: int, channel: int, prefetch: int) -> None:
        """Start a consumer, at most one per queue."""
        queue = self._existing(pick)
        is_consumed = any(each.queue == queue for each in self._consumers.values())
        has_unacked = any(
            number == channel and held.queue == queue for number, held in self._unacked
        )
        if not is_consumed and not has_unacked:
            tag = f"c{self._sent}-{len(self._consumers)}-{uuid.uuid4().hex[:4]}"
            self._runner.run(self.brokers.consume(channel, queue, tag, prefetch))
            self._consumers[tag] = _Consumer(channel, queue)

    @precondition(lambda self: self._unacked)
    @rule(pick=picks, how=st.sampled_from(_WAYS))
    def settle(self, pick: int, how: tuple[str, dict[str, bool]]) -> None:
        """Settle a random unacked message."""
        channel, held = self._unacked.pop(pick % len(self._unacked))
        way, options = how
        self.brokers.settle(channel, held, way, **options)

    @precondition(lambda self: self._unacked)
    @rule(pick=picks)
    def ack_multiple(self, pick: int) -> None:
        """Ack all unacked messages up to a random one."""
        channel, held = self._unacked[pick % len(self._unacked)]
        self.brokers.settle(channel, held, "ack", multiple=True)
        self._unacked = [
            (number, each)
            for number, each in self._unacked
            if number != channel or each.tags[0] > held.tags[0]
        ]

    @rule(channel=channels)
    def close_channel(self, channel: int) -> None:
        """Close a channel with its unacked messages and open a new one."""
        self._runner.run(self.brokers.reopen(channel))
        self._unacked = [each for each in self._unacked if each[0] != channel]
        self._consumers = {
            tag: each for tag, each in self._consumers.items() if each.channel != channel
        }

    # --- comparison

    @invariant()
    def brokers_agree(self) -> None:
        if self._brokers is None:
            return
        self._runner.run(self.brokers.agree(self._queues))
        for tag, consumer in self._consumers.items():
            arrived = self.brokers.arrivals(tag, consumer.queue, consumer.taken)
            consumer.taken += len(arrived)
            self._unacked.extend((consumer.channel, held) for held in arrived)

    def teardown(self) -> None:
        """At the end all messages are requeued and consumed, equal on both brokers."""
        if self._brokers is None:
            return
        try:
            for channel in (0, 1):
                self.close_channel(channel)
                self.brokers_agree()
            for queue in self._queues:
                while self._runner.run(self.brokers.get(0, queue)) is not None:
                    pass
        finally:
            self._runner.run(self.brokers.close(self._queues, self._exchanges))
            self._runner.close()


async def _messages(declared: Awaitable[QueueState]) -> int:
    """Return the number of messages. Quorum queues update the number of consumers late."""
    return (await declared).messages


@pytest.mark.broker
def test_random_programs_have_equal_results_on_rabbitmq_and_embedded_broker(
    rabbitmq: SharedNode, vhost: str
) -> None:
    version = rabbitmq.management.call("GET", "/overview")["rabbitmq_version"]
    _run_programs(rabbitmq.url + vhost, version)


@pytest.mark.broker
@pytest.mark.all_brokers
@pytest.mark.parametrize("suite", SUITES)
def test_random_programs_have_equal_results_on_newer_rabbitmq(suite: str) -> None:
    with RabbitNode(build(suite)) as node:
        _run_programs(node.url, node.management.call("GET", "/overview")["rabbitmq_version"])


@pytest.mark.socket
@pytest.mark.hopback_broker(clock="system", version="4.3")
def test_random_programs_have_equal_results_over_a_socket(hopback_broker: BrokerThread) -> None:
    _run_programs(hopback_broker.url, "4.3", divisor=4)


def _run_programs(url: str, version: str, *, divisor: int = 1) -> None:
    known = BrokerVersion.parse(version)

    class Machine(SideBySide):
        def __init__(self) -> None:
            super().__init__(url, known)

    settings_ = settings(_SETTINGS, max_examples=_SETTINGS.max_examples // divisor)
    run_state_machine_as_test(Machine, settings=settings_)
