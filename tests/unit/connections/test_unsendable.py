"""Messages that AMQP cannot carry raise the same error in both clients and are not sent."""

from __future__ import annotations

import gc
import logging
from datetime import date
from typing import TYPE_CHECKING

import pytest

from hopback import Publisher
from hopback.broker import EmbeddedBroker
from hopback.errors import InvalidMessage
from hopback.fields import Float32, LongStr, RawValue
from hopback.message import Message, Properties
from hopback.topology.model import Queue
from hopback.wire.tables import encode_entries
from tests.unit.connections.memory import connect

if TYPE_CHECKING:
    from hopback.broker.port import Channel

_UNSENDABLE: dict[str, Message] = {
    **{
        f"header {value!r:.20}": Message("", "q", b"x", Properties(headers={"h": value}))  # type: ignore[dict-item]
        for value in (
            date(2026, 1, 1), {1, 2}, 2**70, "\ud800", [object], {"inner": 1j}, float("nan"),
            [float("inf")], Float32("-inf"), "x" * 140_000,
        )
    },
    "header name": Message("", "q", b"x", Properties(headers={1: "x"})),  # type: ignore[dict-item]
    "long header name": Message("", "q", b"x", Properties(headers={"n" * 256: 1})),
    "no table": Message("", "q", b"x", Properties(headers=["x"])),  # type: ignore[arg-type]
    "priority": Message("", "q", b"x", Properties(priority="high")),  # type: ignore[arg-type]
    "large priority": Message("", "q", b"x", Properties(priority=256)),
    "timestamp": Message("", "q", b"x", Properties(timestamp=-1)),
    "long id": Message("", "q", b"x", Properties(message_id="i" * 256)),
    "number as a text": Message("", "q", b"x", Properties(type=5)),  # type: ignore[arg-type]
    "body": Message("", "q", "text"),  # type: ignore[arg-type]
    "no exchange": Message(None, "q", b"x"),  # type: ignore[arg-type]
    "long key": Message("", "k" * 256, b"x"),
}  # fmt: skip


async def _refusal(channel: Channel, message: Message) -> str:
    with pytest.raises(InvalidMessage, match="not sent") as refused:
        channel.publish(message)
    return str(refused.value)


@pytest.mark.parametrize("message", _UNSENDABLE.values(), ids=_UNSENDABLE)
async def test_unsendable_message_raises_same_error_on_both_brokers(
    message: Message, caplog: pytest.LogCaptureFixture
) -> None:
    server, connection = await connect()
    rabbit = await connection.open_channel()
    embedded = await (await EmbeddedBroker().connect()).open_channel()
    await embedded.declare_queue(Queue("q"))
    caplog.set_level(logging.ERROR, "asyncio")
    assert await _refusal(rabbit, message) == await _refusal(embedded, message)
    assert server.published() == []
    fate = rabbit.publish(Message("", "q", b"y"))  # the channel is still usable
    await embedded.publish(Message("", "q", b"y"))
    server.send(1, "basic.ack", delivery_tag=1)
    await fate
    await embedded.close()
    gc.collect()
    assert "never retrieved" not in caplog.text


_FORGED = "amq.rabbitmq.reply-to.AAAA.BBBB"


@pytest.mark.parametrize(
    "properties",
    [
        Properties(headers={"CC": ["a", _FORGED]}),
        Properties(headers={"BCC": (_FORGED,)}),
        Properties(headers={"CC": [LongStr(_FORGED.encode() + b"\xff")]}),
        Properties(headers={"CC": RawValue(encode_entries({"": [_FORGED]})[1:])}),
        Properties(headers={"CC": ["a"]}, further_headers=((b"CC", [_FORGED]),)),
        Properties(further_headers=((b"BCC", [_FORGED]),)),
    ],
)
async def test_copy_to_direct_reply_address_is_refused(properties: Properties) -> None:
    """RabbitMQ 3.10 and 4.0 close the connection if such an address is forged."""
    broker = EmbeddedBroker()
    channel = await (await broker.connect()).open_channel()
    await channel.declare_queue(Queue("q"))
    async with Publisher(broker) as publisher:
        with pytest.raises(InvalidMessage, match="expected routing keys that are not direct reply"):
            await publisher.send(Message("", "q", b"x", properties))
        # Other exchanges do not deliver replies. Other values of the array are ignored.
        await publisher.send(Message("amq.fanout", "q", b"x", properties), mandatory=False)
        await publisher.send(
            Message("", "q", b"y", Properties(headers={"CC": [_FORGED.encode(), 1]}))
        )
    assert [one.body for one in broker.snapshot().queue("q").ready] == [b"y"]
