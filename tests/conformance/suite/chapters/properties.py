"""Messages: sizes, properties, headers and their types."""

from __future__ import annotations

from dataclasses import fields, replace
from decimal import Decimal
from typing import TYPE_CHECKING

from hopback.errors import BrokerError, PreconditionFailed
from hopback.fields import (
    Float32,
    Headers,
    Int8,
    Int16,
    Int32,
    LongStr,
    RawValue,
    Timestamp,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
)
from hopback.headers import deaths
from hopback.message import Message, Properties
from hopback.topology.model import ExchangeType
from tests.conformance.suite.chapters.arrangements import BOTH, V4_0, nested
from tests.conformance.suite.row import equal, expect, row

if TYPE_CHECKING:
    from hopback.fields import FieldValue
    from hopback.message import Delivery
    from tests.conformance.suite.subject import Subject

# Bytes in a mebibyte, the unit of RabbitMQ's limits.
_MIB = 1024 * 1024
_FRAME_BYTES = 131_072  # RabbitMQ's default frame_max, without the 8 bytes of the frame
_WITHOUT_TEXT = 14 + 1 + 4 + 2 + 5
"""Bytes of a header frame without the text of one header: class, size and flags, the delivery mode, and the
lengths of the table, its key and the text."""
_VALUES: dict[str, FieldValue] = {
    "text": "größer",
    "empty": "",
    "not-utf8": LongStr(b"\xff\xfe"),
    "bytes": b"\x00\x01",
    "true": True,
    "false": False,
    "null": None,
    "int8": Int8(-8),
    "uint8": UInt8(200),
    "int16": Int16(-1600),
    "uint16": UInt16(60_000),
    "int32": Int32(-100_000),
    "uint32": UInt32(4_000_000_000),
    "int64": -(2**60),
    "float": 1.5,
    "float32": Float32(0.25),
    "decimal": Decimal("12.34"),
    "timestamp": Timestamp(1_700_000_000),
}


def _with_types(value: FieldValue) -> object:
    """Return the value with the types of its parts, so that equal numbers of different types differ."""
    if isinstance(value, list | tuple):
        return [_with_types(inner) for inner in value]
    if isinstance(value, dict):
        return {key: _with_types(inner) for key, inner in value.items()}
    return type(value).__name__, value


async def _publish_and_take(
    subject: Subject, queue: str, properties: Properties, body: bytes = b""
) -> Delivery:
    await subject.channel.publish(Message("", queue, body, properties))
    return await subject.take_done(queue)


@row("10.1", "A body of more than 16 MiB gives 406 from 4.0 on and is accepted before")
async def large_body(subject: Subject) -> None:
    queue = await subject.classic()
    exact = await _publish_and_take(subject, queue, Properties(), b"x" * (16 * _MIB))
    equal("16 MiB", len(exact.body), 16 * _MIB)
    channel = await subject.open_channel()
    fate = channel.publish(Message("", queue, b"x" * (16 * _MIB + 1)))
    if subject.version < V4_0:
        await fate
        equal("kept", await subject.count(queue), 1)
        return
    error = await subject.end_of(channel)
    expect(isinstance(error, PreconditionFailed), f"406, not {error!r}")
    await subject.error_of(lambda _: fate)
    equal("kept", await subject.count(queue), 0)


@row("10.2", "Headers must fit into one frame")
async def headers_of_a_frame(subject: Subject) -> None:
    queue = await subject.classic()
    fits = Properties(headers={"h": "x" * (_FRAME_BYTES - _WITHOUT_TEXT)})
    equal(
        "fits",
        (await _publish_and_take(subject, queue, fits)).properties.headers["h"],
        fits.headers["h"],
    )
    connection = await subject.connect()
    channel = await connection.open_channel()
    large = Message("", queue, b"", Properties(headers={"h": f"x{fits.headers['h']}"}))
    error: BrokerError | None = None
    try:
        await channel.publish(large)
    except BrokerError as found:
        error = found
    expect(error is not None, "the publish fails")
    await subject.stays(queue, 0, 0.1)


@row("10.3a", "Headers of every type keep value and type")
async def header_types(subject: Subject) -> None:
    for kind in BOTH:
        queue = await subject.queue(kind)
        headers: Headers = {**_VALUES, "array": [*_VALUES.values()], "table": {"inner": _VALUES}}
        found = (
            await _publish_and_take(subject, queue, Properties(headers=headers))
        ).properties.headers
        for name, value in headers.items():
            if not (kind == "quorum" and name in ("array", "table")):
                equal(name, _with_types(found[name]), _with_types(value))


@row("10.3b", "Headers are delivered sorted by name from 4.0 on, and in the sent order before")
async def header_order(subject: Subject) -> None:
    queue = await subject.classic()
    found = await _publish_and_take(subject, queue, Properties(headers={"b": 1, "c": 2, "a": 3}))
    equal(
        "order", list(found.properties.headers), list(subject.since({"3.0": "bca", "4.0": "abc"}))
    )


@row(
    "10.3d",
    "A value nested 1000 deep is unchanged, as is a nested table with a repeated key",
)
async def header_depth(subject: Subject) -> None:
    twice = RawValue(b"F\0\0\0\x06\x01aV\x01aV")
    for kind in BOTH:
        queue = await subject.queue(kind)
        found = await _publish_and_take(
            subject, queue, Properties(headers={"d": nested(1000), "t": twice})
        )
        equal("nested", found.properties.headers["d"], nested(1000))
        equal("twice", found.properties.headers["t"], twice)


@row(
    "10.3e",
    "A repeated header is kept before 4.0. From then on only the first is kept. Any name "
    "is accepted",
)
async def header_repeated(subject: Subject) -> None:
    for kind in BOTH:
        queue = await subject.queue(kind)
        sent = Properties(headers={"a": 1}, further_headers=((b"a", "two"), (b"\xff", None)))
        found = (await _publish_and_take(subject, queue, sent)).properties
        kept = set(subject.since({"3.0": sent.further_headers, "4.0": sent.further_headers[1:]}))
        equal("first", found.headers["a"], 1)
        equal("further", set(found.further_headers), kept)


@row(
    "10.3f",
    "An empty header table and an absent one are different, also at delivery",
)
async def empty_headers(subject: Subject) -> None:
    for kind in BOTH:
        queue = await subject.queue(kind)
        for sent in (Properties(app_id="a"), Properties(app_id="a", headers={})):
            found = (await _publish_and_take(subject, queue, sent)).properties
            if "x-delivery-count" not in found.headers:  # 3.10 counts in every quorum queue
                equal("has a table", found.has_headers, sent.has_headers)


@row(
    "10.3g",
    "Bytes that are not UTF-8 are accepted in every property, header, routing key and x-death",
)
async def any_bytes(subject: Subject) -> None:
    odd = "a\udcff"
    dead, exchange = await subject.classic(), await subject.exchange(ExchangeType.FANOUT)
    to_dead: Headers = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    queue = await subject.classic(to_dead)
    await subject.bind(exchange, queue)
    sent = Properties(
        content_type=odd, content_encoding=odd, correlation_id=odd, reply_to=odd, message_id=odd, type=odd,
        app_id=odd, cluster_id=odd, headers={"h": LongStr(b"\xff")}, further_headers=((b"\xff", None),),
        delivery_mode=2,
    )  # fmt: skip
    await subject.channel.publish(Message(exchange, odd, b"", sent))
    taken = await subject.take(queue)
    equal("routing key", taken.routing_key, odd)
    equal("properties", taken.properties, sent)
    subject.channel.nack(taken.tag, requeue=False)
    died = await subject.take_done(dead)
    (death,) = deaths(died.properties.headers)
    equal("routing keys of the death", death.routing_keys, (odd,))
    kept = replace(died.properties, headers=sent.headers)
    equal("properties of the dead letter", kept, sent)


@row("10.3c", "A 64-bit unsigned header keeps its value")
async def unsigned_64(subject: Subject) -> None:
    queue = await subject.classic()
    found = await _publish_and_take(subject, queue, Properties(headers={"u": UInt64(2**40)}))
    equal("value", found.properties.headers["u"], 2**40)


@row("10.4", "Every property is delivered as it was sent, empty or not")
async def every_property(subject: Subject) -> None:
    full = Properties(
        content_type="application/json", content_encoding="gzip", headers={"h": 1}, delivery_mode=2,
        priority=7, correlation_id="c", reply_to="r", expiration="60000", message_id="i",
        timestamp=1_700_000_000, type="t", user_id=subject.facilities.user, app_id="a", cluster_id="k",
    )  # fmt: skip
    for kind in BOTH:
        queue = await subject.queue(kind)
        found = (await _publish_and_take(subject, queue, full)).properties
        for name in (field.name for field in fields(Properties)):
            value = getattr(found, name)
            if name == "headers":
                value = {key: each for key, each in value.items() if key != "x-delivery-count"}
            equal(name, value, getattr(full, name))


@row("10.5", "Another user's id gives 406. The own id is accepted")
async def user_id(subject: Subject) -> None:
    queue = await subject.classic()
    channel = await subject.open_channel()
    fate = channel.publish(Message("", queue, b"", Properties(user_id="another-user")))
    error = await subject.end_of(channel)
    expect(isinstance(error, PreconditionFailed), f"406, not {error!r}")
    expect("user_id" in str(error), f"user_id is named in {error}")
    await subject.error_of(lambda _: fate)
    await subject.put(queue, user_id=subject.facilities.user)
    equal("kept", await subject.count(queue), 1)


@row("10.6a", "Delivery mode 1 stays 1 through queues and dead-lettering")
async def transient_stays(subject: Subject) -> None:
    for kind in BOTH:
        dead = await subject.classic()
        arguments: Headers = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
        queue = await subject.queue(kind, arguments)
        await subject.channel.publish(Message("", queue, b"", Properties(delivery_mode=1)))
        subject.channel.nack((await subject.take(queue)).tag, requeue=False)
        equal("mode", (await subject.take_done(dead)).properties.delivery_mode, 1)


@row("10.6b", "An unknown delivery mode gives 406 before 4.0 and is accepted later")
async def unknown_mode(subject: Subject) -> None:
    queue = await subject.classic()
    channel = await subject.open_channel()
    fate = channel.publish(Message("", queue, b"", Properties(delivery_mode=3)))
    if subject.version >= V4_0:
        await fate
        return
    error = await subject.end_of(channel)
    expect(isinstance(error, PreconditionFailed), f"406, not {error!r}")
    await subject.error_of(lambda _: fate)


@row("10.7", "Priority is a byte, timestamp counts seconds, and both keep their extreme values")
async def extremes(subject: Subject) -> None:
    queue = await subject.classic()
    for priority, timestamp in ((0, 0), (255, 2**40)):
        sent = Properties(priority=priority, timestamp=timestamp)
        found = (await _publish_and_take(subject, queue, sent)).properties
        equal("values", (found.priority, found.timestamp), (priority, timestamp))


@row("10.8", "Bodies are unchanged, whether empty or many frames long")
async def bodies(subject: Subject) -> None:
    for kind in BOTH:
        queue = await subject.queue(kind)
        for body in (b"", b"\x00\xce", bytes(range(256)) * 1500):
            equal("body", (await _publish_and_take(subject, queue, Properties(), body)).body, body)
