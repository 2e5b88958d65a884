"""The ledger of the embedded broker balances after every action of clients and operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hopback.broker.embedded import Node, Refusal, advance
from hopback.broker.embedded.snapshot import snapshot
from hopback.clock import ManualClock
from hopback.message import Message, Properties
from hopback.topology.model import Binding, Policy, Queue, QueueType
from hopback.version import BrokerVersion
from tests.properties.ledger import Ledger

if TYPE_CHECKING:
    from hopback.broker.embedded.stored import UnackedDelivery
    from hopback.fields import FieldValue

_NAMES = ("a", "b", "c")
_BOTH = (QueueType.CLASSIC, QueueType.QUORUM)
_names = st.sampled_from(_NAMES)
_headers: st.SearchStrategy[dict[str, FieldValue]] = st.sampled_from(
    [{}, {}, {}, {"CC": ["b"]}, {"BCC": ["c"]}, {"x-death": ["broken"]}, {"x": 1}]
)
_arguments = st.fixed_dictionaries(
    {},
    optional={
        "x-dead-letter-exchange": st.sampled_from(["", "amq.fanout", "missing"]),
        "x-message-ttl": st.sampled_from([0, 50, 5000]),
        "x-max-length": st.integers(0, 3),
        "x-overflow": st.sampled_from(["drop-head", "reject-publish"]),
        "x-expires": st.just(60_000),
        "x-single-active-consumer": st.just(True),
    },
)
_quorum = st.fixed_dictionaries(
    {},
    optional={
        "x-dead-letter-strategy": st.just("at-least-once"),
        "x-delivery-limit": st.integers(-1, 2),
        "x-delayed-retry-type": st.just("all"),
        "x-delayed-retry-min": st.just(100),
    },
)
_QueueChoice: TypeAlias = "tuple[QueueType, dict[str, FieldValue], dict[str, FieldValue], str]"


class _Sink:
    """Discards deliveries. The rules read tags from the channel."""

    def deliver(self, taken: UnackedDelivery) -> None:
        pass

    def on_cancel(self, tag: str) -> None:
        pass

    def on_close(self, refusal: Refusal) -> None:
        pass


class Conservation(RuleBasedStateMachine):
    """Clients, an operator and time act on one node. The ledger balances after every step."""

    @initialize(
        version=st.sampled_from(["3.10.8", "3.13.3", "4.0.5", "4.3.6"]),
        kinds=st.lists(st.tuples(st.sampled_from(_BOTH), _arguments, _quorum, _names), min_size=3),
    )
    def begin(self, version: str, kinds: list[_QueueChoice]) -> None:
        """Start a node with a random version, two channels and a queue of each name."""
        self.clock = ManualClock()
        self.node = Node(BrokerVersion.parse(version), self.clock, consumer_timeout=120)
        self.ledger = Ledger()
        self.node.listen(self.ledger.book)
        self.channels = [self.node.connect().open_channel(_Sink()) for _ in range(2)]
        for name, (kind, arguments, more, key) in zip(_NAMES, kinds, strict=False):
            self.declare(name, kind, arguments, more, key)

    @rule(name=_names, kind=st.sampled_from(_BOTH), arguments=_arguments, more=_quorum, key=_names)
    def declare(
        self,
        name: str,
        kind: QueueType,
        arguments: dict[str, FieldValue],
        more: dict[str, FieldValue],
        key: str,
    ) -> None:
        if "x-dead-letter-exchange" in arguments:
            arguments = {**arguments, "x-dead-letter-routing-key": key}
        extra = more if kind is QueueType.QUORUM else {}
        self._try(0, Queue(name, kind, arguments={**arguments, **extra}))

    def _try(self, index: int, queue: Queue) -> None:
        try:
            self.channels[index].declare_queue(queue)
            self.channels[index].bind(Binding("amq.fanout", queue.name))
        except Refusal:
            self._reopen(index)

    def _reopen(self, index: int) -> None:
        session = self.channels[index].session
        if not session.is_open:
            session = self.node.connect()
        if not self.channels[index].is_open:
            self.channels[index] = session.open_channel(_Sink())

    @rule(
        key=_names,
        exchange=st.sampled_from(["", "", "amq.fanout"]),
        headers=_headers,
        expiration=st.sampled_from([None, None, "0", "100"]),
        mode=st.sampled_from([1, 2]),
        mandatory=st.booleans(),
    )
    def publish(
        self,
        key: str,
        exchange: str,
        headers: dict[str, FieldValue],
        expiration: str | None,
        mode: int,
        mandatory: bool,
    ) -> None:
        """Publish a message to one queue or to all."""
        properties = Properties(
            headers=headers, expiration=expiration, delivery_mode=mode, priority=mode * 3
        )
        message = Message(exchange, key, b"body", properties)
        self.channels[0].publish(message, mandatory=mandatory)

    @rule(name=_names, index=st.integers(0, 1), prefetch=st.integers(0, 2), no_ack=st.booleans())
    def consume(self, name: str, index: int, prefetch: int, no_ack: bool) -> None:
        channel = self.channels[index]
        channel.qos(prefetch)
        try:
            channel.consume(name, no_ack=no_ack)
        except Refusal:
            self._reopen(index)

    @rule(name=_names, index=st.integers(0, 1))
    def get(self, name: str, index: int) -> None:
        """Get one message."""
        try:
            self.channels[index].get(name)
        except Refusal:
            self._reopen(index)

    @precondition(lambda self: any(channel.unacked for channel in self.channels))
    @rule(
        data=st.data(),
        how=st.sampled_from(["ack", "nack", "reject"]),
        requeue=st.booleans(),
        multiple=st.booleans(),
    )
    def settle(self, data: st.DataObject, how: str, requeue: bool, multiple: bool) -> None:
        """Settle a random unacked message."""
        channel = data.draw(st.sampled_from([each for each in self.channels if each.unacked]))
        tag = data.draw(st.sampled_from(sorted(channel.unacked)))
        if how == "ack":
            channel.ack(tag, multiple=multiple)
        elif how == "nack":
            channel.nack(tag, requeue=requeue, multiple=multiple)
        else:
            channel.reject(tag, requeue=requeue)

    @rule(name=_names, how=st.sampled_from(["ack", "nack", "reject"]), requeue=st.booleans())
    def handle(self, name: str, how: str, requeue: bool) -> None:
        """Get one message and settle it."""
        self.get(name, 1)
        channel = self.channels[1]
        held = max(channel.unacked, default=None)
        if held is not None:
            getattr(channel, how)(held, **({} if how == "ack" else {"requeue": requeue}))

    @rule(index=st.integers(0, 1))
    def recover(self, index: int) -> None:
        self.channels[index].recover()

    @rule(index=st.integers(0, 1), whole=st.booleans())
    def close(self, index: int, whole: bool) -> None:
        """Close a channel or its connection."""
        channel = self.channels[index]
        (channel.session if whole else channel).close()
        self._reopen(index)

    @rule(seconds=st.sampled_from([0.01, 0.1, 10.0, 200.0]))
    def wait(self, seconds: float) -> None:
        """Advance time: messages expire, delayed retries become ready, consumers time out."""
        advance(self.node, self.clock, self.clock.now() + seconds)
        for index in range(2):
            self._reopen(index)

    @rule(name=_names, delete=st.booleans())
    def remove(self, name: str, delete: bool) -> None:
        """Purge or delete a queue."""
        channel = self.channels[0]
        try:
            (channel.delete_queue if delete else channel.purge_queue)(name)
        except Refusal:
            self._reopen(0)

    @rule(
        definition=st.sampled_from(
            [{"max-length": 1}, {"dead-letter-exchange": "amq.fanout"}, {"overflow": "drop-head"}]
        )
    )
    def set_policy(self, definition: dict[str, FieldValue]) -> None:
        self.node.policies.put(Policy("p", "[ab]", definition))

    @rule()
    def clear_policy(self) -> None:
        self.node.policies.remove("p")

    @rule()
    def restart(self) -> None:
        self.node.restart()
        for index in range(2):
            self._reopen(index)

    @invariant()
    def ledger_balances_and_counts_match(self) -> None:
        if not hasattr(self, "node"):
            return
        self.ledger.balance(snapshot(self.node))
        for name, queue in self.node.queues.items():
            found = snapshot(self.node).queue(name)
            assert queue.unacked == len(found.unacked)
            assert queue.byte_count == sum(len(message.body) for message in found.ready)
            assert len(queue.ready) == len(found.ready)


TestConservation = Conservation.TestCase
TestConservation.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
