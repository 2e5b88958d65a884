"""A program with confirms and late acks loses no message under random faults."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from hopback.broker.embedded import EmbeddedBroker, EmbeddedChannel, Fault, run_virtual
from hopback.errors import BrokerError
from hopback.message import Message, Properties
from hopback.topology.model import Queue, QueueType
from hopback.version import BrokerVersion
from tests.properties.ledger import Ledger

if TYPE_CHECKING:
    from hopback.message import Delivery

_COUNT = 30


class _Program:
    """Publishes until confirmed, consumes, acks and reconnects after each fault."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self.handled: set[str] = set()
        self.all_handled = asyncio.Event()

    async def _channel(self) -> EmbeddedChannel:
        while True:
            try:
                return await (await self.broker.connect()).open_channel()
            except BrokerError:
                continue

    async def publish(self) -> None:
        """Publish each message until it is confirmed."""
        channel = await self._channel()
        for number in range(_COUNT):
            message = Message("", "q", b"", Properties(message_id=str(number)))
            while True:
                try:
                    await channel.publish(message)
                    break
                except BrokerError:
                    channel = await self._channel()

    async def consume(self) -> None:
        """Consume on one connection after the other."""
        while True:
            channel = await self._channel()
            try:
                await channel.qos(5)
                await channel.consume("q", self._handler(channel))
                await channel.wait_closed()
            except BrokerError:
                continue

    def _handler(self, channel: EmbeddedChannel) -> _Handler:
        return _Handler(self, channel)


class _Handler:
    def __init__(self, program: _Program, channel: EmbeddedChannel) -> None:
        self._program = program
        self._channel = channel

    def __call__(self, delivery: Delivery) -> None:
        try:
            self._channel.ack(delivery.tag)
        except BrokerError:
            return
        self._program.handled.add(delivery.properties.message_id or "")
        if len(self._program.handled) == _COUNT:
            self._program.all_handled.set()


async def _run_program(broker: EmbeddedBroker, chances: dict[Fault, float]) -> set[str]:
    setup = await (await broker.connect()).open_channel()
    await setup.declare_queue(Queue("q", QueueType.QUORUM, arguments={"x-delivery-limit": 1000}))
    for fault, chance in chances.items():
        broker.faults.chance(fault, chance)
    program = _Program(broker)
    consumer = asyncio.ensure_future(program.consume())
    await program.publish()
    broker.faults.clear()
    await program.all_handled.wait()
    consumer.cancel()
    return program.handled


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    chances=st.dictionaries(st.sampled_from(list(Fault)), st.floats(0, 0.3)),
    latency=st.sampled_from([0.0, 0.05]),
    version=st.sampled_from(["3.10.8", "4.0.5", "4.3.6"]),
)
def test_no_message_is_lost_with_confirms_and_acks_after_handling(
    seed: int, chances: dict[Fault, float], latency: float, version: str
) -> None:
    """Every message is handled at least once, and the ledger of the broker balances."""
    broker = EmbeddedBroker(version=BrokerVersion.parse(version), seed=seed)
    broker.faults.latency = latency
    ledger = Ledger()
    broker.node.listen(ledger.book)
    assert run_virtual(_run_program(broker, chances)) == {str(number) for number in range(_COUNT)}
    ledger.balance(broker.snapshot())
    assert ledger.losses == []
