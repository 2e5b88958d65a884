"""Random programs on RabbitMQ and on the embedded broker, side by side.

By default a fixed set of programs within a minute; HOPBACK_LONG=1 plays many more, each time
others.
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
from tests.conformance.twins import Twins
from tests.harness.rabbitmq import RabbitNode
from tests.harness.versions import SUITES, build

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from hopback.broker.port import QueueState
    from hopback.fields import FieldValue
    from hopback.testing import BrokerThread
    from tests.conformance.twins import Held, Step
    from tests.harness.shared import SharedNode

_LONG = os.environ.get("HOPBACK_LONG") == "1"
_SETTINGS = settings(
    max_examples=400 if _LONG else 40,
    stateful_step_count=60 if _LONG else 25,
    derandomize=not _LONG,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    # A step that fails takes seconds to be sure of it, so looking for a shorter program takes long.
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
    """A consumer on both sides, and how many of its deliveries are known."""

    channel: int
    queue: str
    taken: int = 0


class SideBySide(RuleBasedStateMachine):
    """Queues in a ring, each dead-lettering to the next or nowhere; two exchanges; two channels.

    Each queue gets dead letters from one other only, and a deleted one is never declared again:
    so whatever RabbitMQ does at the same time has one order.
    """

    def __init__(self, url: str, version: BrokerVersion) -> None:
        super().__init__()
        self._url, self._version = url, version
        self._runner = asyncio.Runner()
        self._prefix = f"twins-{uuid.uuid4().hex[:8]}"
        self._generations = [0] * _SIZE
        self._queues: list[str] = []
        self._held: list[tuple[int, Held]] = []
        self._consumers: dict[str, _Consumer] = {}
        self._sent = 0
        self._twins: Twins | None = None

    @property
    def twins(self) -> Twins:
        """The two brokers; connected in the first step."""
        assert self._twins is not None
        return self._twins

    def _name(self, number: int) -> str:
        return f"{self._prefix}.q{number}.{self._generations[number]}"

    def _existing(self, pick: int) -> str:
        return self._queues[pick % len(self._queues)]

    @property
    def _exchanges(self) -> list[str]:
        return [f"{self._prefix}.direct", f"{self._prefix}.topic"]

    def _do(self, step: Step, channel: int = _CONTROL) -> object:
        return self._runner.run(self.twins.do(channel, step))

    @initialize()
    def connect(self) -> None:
        """Open both connections and declare the exchanges."""
        opening = Twins.open(RabbitMQ(self._url), EmbeddedBroker(version=self._version))
        self._twins = self._runner.run(opening)
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
        """Declare a queue; one that exists is compared, and perhaps refused."""
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
        """Bind a queue."""
        binding = Binding(self._exchanges[topic], self._existing(pick), key)
        self._do(lambda channel: channel.bind(binding))

    @precondition(lambda self: self._queues)
    @rule(pick=picks)
    def purge(self, pick: int) -> None:
        """Purge a queue; both must count the same."""
        self._do(lambda channel: channel.purge_queue(self._existing(pick)))

    @precondition(lambda self: len(self._queues) > 2)
    @rule(pick=picks)
    def delete(self, pick: int) -> None:
        """Delete a queue under whoever uses it."""
        name = self._existing(pick)
        self._do(lambda channel: channel.delete_queue(name))
        self._queues.remove(name)
        self._generations[int(name.split(".q")[1][0])] += 1
        self._held = [each for each in self._held if each[1].queue != name]
        self._consumers = {tag: each for tag, each in self._consumers.items() if each.queue != name}

    # --- messages

    def _message(self, exchange: str, key: str, **properties: Any) -> Message:
        self._sent += 1
        content = Properties(delivery_mode=2, headers={"n": self._sent}, **properties)
        return Message(exchange, key, str(self._sent).encode(), content)

    @precondition(lambda self: self._queues)
    @rule(pick=picks, channel=channels, priority=st.sampled_from((None, None, 1, 9)))
    def publish(self, pick: int, channel: int, priority: int | None) -> None:
        """Publish to a queue by its name."""
        message = self._message("", self._existing(pick), priority=priority)
        self._do(lambda one: one.publish(message), channel)

    @rule(topic=st.booleans(), key=st.sampled_from(("a", "a.b", "b", "")), channel=channels)
    def publish_to_exchange(self, *, topic: bool, key: str, channel: int) -> None:
        """Publish to an exchange: stored, or returned."""
        message = self._message(self._exchanges[topic], key)
        self._do(lambda one: one.publish(message), channel)

    @precondition(lambda self: self._queues)
    @rule(pick=picks)
    def publish_and_expire(self, pick: int) -> None:
        """Publish a message that soon expires, and let its time pass."""
        message = self._message("", self._existing(pick), expiration="40")
        self._do(lambda one: one.publish(message), 0)
        self._runner.run(asyncio.sleep(0.15))

    @precondition(lambda self: self._queues)
    @rule(pick=picks, channel=channels)
    def get(self, pick: int, channel: int) -> None:
        """Take a message, if there is one, and hold it."""
        queue = self._existing(pick)
        if self._consumes(channel, queue):
            return
        held = self._runner.run(self.twins.get(channel, queue))
        if held is not None:
            self._held.append((channel, held))

    def _consumes(self, channel: int, queue: str) -> bool:
        """Whether a channel consumes from the queue: beside that it shall not get from it.

        What a quorum queue gets back from both at once has no certain order.
        """
        return any(
            each.queue == queue and each.channel == channel for each in self._consumers.values()
        )

    @precondition(lambda self: self._queues)
    @rule(pick=picks, channel=channels, prefetch=st.integers(1, 3))
    def consume(self, pick: int, channel: int, prefetch: int) -> None:
        """Start a consumer, one to a queue."""
        queue = self._existing(pick)
        taken = any(each.queue == queue for each in self._consumers.values())
        holding = any(number == channel and held.queue == queue for number, held in self._held)
        if not taken and not holding:
            tag = f"c{self._sent}-{len(self._consumers)}-{uuid.uuid4().hex[:4]}"
            self._runner.run(self.twins.consume(channel, queue, tag, prefetch))
            self._consumers[tag] = _Consumer(channel, queue)

    @precondition(lambda self: self._held)
    @rule(pick=picks, how=st.sampled_from(_WAYS))
    def settle(self, pick: int, how: tuple[str, dict[str, bool]]) -> None:
        """Settle one of the messages held, some way or other."""
        channel, held = self._held.pop(pick % len(self._held))
        way, options = how
        self.twins.settle(channel, held, way, **options)

    @precondition(lambda self: self._held)
    @rule(pick=picks)
    def ack_multiple(self, pick: int) -> None:
        """Ack everything up to one of the messages held."""
        channel, held = self._held[pick % len(self._held)]
        self.twins.settle(channel, held, "ack", multiple=True)
        self._held = [
            (number, each)
            for number, each in self._held
            if number != channel or each.tags[0] > held.tags[0]
        ]

    @rule(channel=channels)
    def close_channel(self, channel: int) -> None:
        """Close a channel with all it holds, and open it anew."""
        self._runner.run(self.twins.reopen(channel))
        self._held = [each for each in self._held if each[0] != channel]
        self._consumers = {
            tag: each for tag, each in self._consumers.items() if each.channel != channel
        }

    # --- what a client sees

    @invariant()
    def both_show_the_same(self) -> None:
        """After each step the two are seen to be the same."""
        if self._twins is None:
            return
        self._runner.run(self.twins.agree(self._queues))
        for tag, consumer in self._consumers.items():
            arrived = self.twins.arrivals(tag, consumer.queue, consumer.taken)
            consumer.taken += len(arrived)
            self._held.extend((consumer.channel, held) for held in arrived)

    def teardown(self) -> None:
        """At last everything comes back and is taken out: the same on both sides."""
        if self._twins is None:
            return
        try:
            for channel in (0, 1):
                self.close_channel(channel)
                self.both_show_the_same()
            for queue in self._queues:
                while self._runner.run(self.twins.get(0, queue)) is not None:
                    pass
        finally:
            self._runner.run(self.twins.close(self._queues, self._exchanges))
            self._runner.close()


async def _messages(declared: Awaitable[QueueState]) -> int:
    """What a declare says of messages; quorum queues hear late of consumers that are gone."""
    return (await declared).messages


@pytest.mark.broker
def test_random_programs_look_the_same_on_rabbitmq_and_embedded(
    rabbitmq: SharedNode, vhost: str
) -> None:
    """Whatever a client does, it sees the same on RabbitMQ and on the embedded broker."""
    version = rabbitmq.management.call("GET", "/overview")["rabbitmq_version"]
    _play(rabbitmq.url + vhost, version)


@pytest.mark.broker
@pytest.mark.all_brokers
@pytest.mark.parametrize("suite", SUITES)
def test_random_programs_look_the_same_on_other_versions(suite: str) -> None:
    """The same on RabbitMQ 4.0 and 4.3."""
    with RabbitNode(build(suite)) as node:
        _play(node.url, node.management.call("GET", "/overview")["rabbitmq_version"])


@pytest.mark.socket
@pytest.mark.hopback_broker(clock="system", version="4.3")
def test_random_programs_look_the_same_on_the_socket(hopback_broker: BrokerThread) -> None:
    """The same over a socket as in the process."""
    _play(hopback_broker.url, "4.3", fewer=4)


def _play(url: str, version: str, *, fewer: int = 1) -> None:
    known = BrokerVersion.parse(version)

    class Machine(SideBySide):
        def __init__(self) -> None:
            super().__init__(url, known)

    chosen = settings(_SETTINGS, max_examples=_SETTINGS.max_examples // fewer)
    run_state_machine_as_test(Machine, settings=chosen)
