"""Messages cross between us, pika and aio-pika: bodies bit for bit, headers in value and type."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import aio_pika
import pika  # type: ignore[import-untyped]
import pika.compat  # type: ignore[import-untyped]
import pytest

from hopback.broker.rabbitmq import RabbitMQ
from hopback.fields import (
    Float32,
    Int8,
    Int16,
    Int32,
    LongStr,
    Timestamp,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
)
from hopback.message import Message, Properties
from hopback.topology.model import Queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from hopback.broker.rabbitmq import RabbitChannel

_BODY = bytes(range(256)) * 3
_MOMENT = 1_700_000_000
_OTHERS: dict[str, Any] = {
    "content_type": "application/json",
    "content_encoding": "utf-8",
    "priority": 7,
    "correlation_id": "corr",
    "reply_to": "back",
    "expiration": "60000",
    "message_id": "m-1",
    "type": "order.created",
    "user_id": "guest",
    "app_id": "shop",
}


@pytest.fixture
async def channel(amqp_url: str) -> AsyncIterator[RabbitChannel]:
    """Our side, with a queue `q`."""
    connection = await RabbitMQ(amqp_url).connect()
    channel = await connection.open_channel()
    await channel.declare_queue(Queue("q"))
    yield channel
    await connection.close()


@pytest.fixture
def pika_channel(amqp_url: str, channel: RabbitChannel) -> Iterator[Any]:
    """The pika channel, which needs no event loop."""
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    yield connection.channel()
    connection.close()


def _with_types(value: Any) -> Any:
    """The value with its types spelled out: 1, True and Int32(1) differ."""
    if isinstance(value, dict):
        return {key: _with_types(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_types(inner) for inner in value]
    return type(value), value


_EVERY_TYPE: dict[str, Any] = {
    "bool": True,
    "int8": Int8(-8),
    "uint8": UInt8(200),
    "int16": Int16(-300),
    "uint16": UInt16(60_000),
    "int32": Int32(-70_000),
    "uint32": UInt32(4_000_000_000),
    "int64": -(2**40),
    "float32": Float32(1.5),
    "float64": 0.1,
    "decimal": Decimal("-12.50"),
    "text": "naïve ☂",
    "long string": LongStr(b"\xff\xfe"),
    "bytes": b"\x00\xff",
    "array": [1, "two", None, [True]],
    "table": {"inner": {"deep": Int32(1)}},
    "timestamp": Timestamp(_MOMENT),
    "none": None,
}


async def test_every_header_type_round_trips_through_rabbitmq(
    channel: RabbitChannel,
) -> None:
    """Values, types and bodies are equal."""
    properties = Properties(
        headers=_EVERY_TYPE, delivery_mode=2, timestamp=_MOMENT, cluster_id="east", **_OTHERS
    )
    await channel.publish(Message("", "q", _BODY, properties))
    found = await channel.get("q")
    assert found is not None
    assert found.body == _BODY
    assert _with_types(dict(found.properties.headers)) == _with_types(_EVERY_TYPE)
    assert found.properties == properties


async def test_unsigned_64_bit_header_round_trips_through_rabbitmq(channel: RabbitChannel) -> None:
    """It exceeds a signed 64-bit integer."""
    headers = {"L": UInt64(2**63 + 5)}
    await channel.publish(Message("", "q", b"", Properties(headers=headers)))
    found = await channel.get("q")
    assert found is not None
    assert _with_types(dict(found.properties.headers)) == _with_types(headers)


_PIKA_SENDS: dict[str, Any] = {
    "bool": False,
    "int": 5,
    "long": pika.compat.long(7),
    "big": 2**40,
    "decimal": Decimal("3.14"),
    "text": "naïve",
    "bytes": b"\x00\x01",
    "array": [1, "two"],
    "table": {"a": {"b": 1}},
    "timestamp": datetime.fromtimestamp(_MOMENT, UTC).replace(tzinfo=None),
    "none": None,
}
_WE_READ: dict[str, Any] = {
    "bool": False,
    "int": Int32(5),
    "long": 7,
    "big": 2**40,
    "decimal": Decimal("3.14"),
    "text": "naïve",
    "bytes": b"\x00\x01",
    "array": [Int32(1), "two"],
    "table": {"a": {"b": Int32(1)}},
    "timestamp": Timestamp(_MOMENT),
    "none": None,
}


async def test_hopback_reads_messages_of_pika(channel: RabbitChannel, pika_channel: Any) -> None:
    """Every property and every header type that pika can send."""
    properties = pika.BasicProperties(
        headers=_PIKA_SENDS, delivery_mode=2, timestamp=_MOMENT, cluster_id="east", **_OTHERS
    )
    pika_channel.basic_publish("", "q", _BODY, properties)
    found = None
    while found is None:
        found = await channel.get("q")
    assert found.body == _BODY
    assert _with_types(dict(found.properties.headers)) == _with_types(_WE_READ)
    assert found.properties == Properties(
        headers=_WE_READ, delivery_mode=2, timestamp=_MOMENT, cluster_id="east", **_OTHERS
    )


async def test_pika_reads_messages_of_hopback(channel: RabbitChannel, pika_channel: Any) -> None:
    """Every property and every header type that pika can read."""
    properties = Properties(headers=_WE_READ, delivery_mode=2, timestamp=_MOMENT, **_OTHERS)
    await channel.publish(Message("", "q", _BODY, properties))
    _, found, body = pika_channel.basic_get("q", auto_ack=True)
    assert body == _BODY
    assert found.headers == {**_PIKA_SENDS, "timestamp": found.headers["timestamp"]}
    assert (
        found.headers["timestamp"].timestamp() == _MOMENT
        or found.headers["timestamp"].replace(tzinfo=UTC).timestamp() == _MOMENT
    )
    assert {name: getattr(found, name) for name in _OTHERS} == _OTHERS
    assert (found.delivery_mode, found.timestamp) == (2, _MOMENT)


async def test_messages_of_pika_are_republished_unchanged(
    channel: RabbitChannel, pika_channel: Any
) -> None:
    properties = pika.BasicProperties(headers=_PIKA_SENDS, timestamp=_MOMENT, **_OTHERS)
    pika_channel.queue_declare("copy")
    pika_channel.basic_publish("", "q", _BODY, properties)
    found = None
    while found is None:
        found = await channel.get("q")
    await channel.publish(Message("", "copy", found.body, found.properties))
    _, copy, body = pika_channel.basic_get("copy", auto_ack=True)
    assert body == _BODY
    assert {name: getattr(copy, name) for name in _OTHERS} == _OTHERS
    assert copy.headers.keys() == _PIKA_SENDS.keys()
    assert {type(value) for value in copy.headers.values()} == {
        type(value) for value in _PIKA_SENDS.values()
    }


_AIO_SENDS: dict[str, Any] = {
    "bool": True,
    "int": 5,
    "big": 2**40,
    "float": 0.25,
    "decimal": Decimal("2.50"),
    "text": "naïve",
    "array": [1, "two"],
    "table": {"a": 1},
    "timestamp": datetime.fromtimestamp(_MOMENT, UTC),
    "none": None,
}


async def test_hopback_reads_messages_of_aio_pika(channel: RabbitChannel, amqp_url: str) -> None:
    """The integer widths are chosen by aio-pika."""
    connection = await aio_pika.connect(amqp_url)
    theirs = await connection.channel()
    message = aio_pika.Message(
        _BODY,
        headers=_AIO_SENDS,
        delivery_mode=2,
        timestamp=_MOMENT,
        **{**_OTHERS, "expiration": 60},
    )
    await theirs.default_exchange.publish(message, "q")
    found = await channel.get("q")
    await connection.close()
    assert found is not None
    assert found.body == _BODY
    headers = dict(found.properties.headers)
    assert headers.pop("timestamp") == Timestamp(_MOMENT)
    assert headers == {key: value for key, value in _AIO_SENDS.items() if key != "timestamp"}
    assert type(headers["decimal"]) is Decimal
    assert found.properties.timestamp == _MOMENT
    assert {name: getattr(found.properties, name) for name in _OTHERS} == _OTHERS


async def test_aio_pika_reads_messages_of_hopback(channel: RabbitChannel, amqp_url: str) -> None:
    headers = {**_AIO_SENDS, "timestamp": Timestamp(_MOMENT)}
    properties = Properties(headers=headers, delivery_mode=2, timestamp=_MOMENT, **_OTHERS)
    await channel.publish(Message("", "q", _BODY, properties))
    connection = await aio_pika.connect(amqp_url)
    theirs = await connection.channel()
    found = await (await theirs.get_queue("q")).get(no_ack=True)
    await connection.close()
    assert found.body == _BODY
    assert dict(found.headers) == _AIO_SENDS
    assert (found.message_id, found.correlation_id, found.type) == ("m-1", "corr", "order.created")
    assert found.expiration == 60
    assert found.timestamp == datetime.fromtimestamp(_MOMENT, UTC)
