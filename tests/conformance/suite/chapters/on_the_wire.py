"""Behaviour visible on the wire: many frames in one write, limits of frames and channels, closing."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from hopback.wire import Side, WireConnection, parse_url
from hopback.wire.frames import BODY, HEADER, HEARTBEAT, HEARTBEAT_FRAME, METHOD, frame
from hopback.wire.handshake import ClientHandshake, Tuning
from hopback.wire.methods import BY_ID, METHODS, decode_arguments, encode_arguments
from tests.conformance.suite.row import Mismatch, Tag, equal, row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conformance.suite.subject import Subject

_TIMEOUT_S = 15.0
"""Timeout of a read. Answers on a busy machine are slow."""
_FRAME_MAX = 131_072
"""The limit that RabbitMQ proposes and this client accepts."""
_CHANNEL_MAX = 2047
"""The limit that RabbitMQ proposes and this client accepts."""


class _RawConnection:
    """A connection that writes raw bytes and reads methods one by one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def method(self) -> tuple[int, str, dict[str, Any]]:
        """Return channel, name and arguments of the next method. Contents are skipped."""
        while True:
            async with asyncio.timeout(_TIMEOUT_S):
                head = await self.reader.readexactly(7)
                size = int.from_bytes(head[3:], "big")
                payload = (await self.reader.readexactly(size + 1))[:-1]
            if head[0] == METHOD:
                found = BY_ID[int.from_bytes(payload[:4], "big")]
                channel = int.from_bytes(head[1:3], "big")
                return channel, found.name, decode_arguments(found, payload)

    async def answers(self, write: bytes, *expected: str) -> None:
        """Write the bytes at once and compare the answers: `channel method`, refusals with code and text."""
        self.writer.write(write)
        found = []
        for _ in expected:
            try:
                channel, name, arguments = await self.method()
                text = [
                    arguments[key]
                    for key in ("reply_code", "reply_text", "reason")
                    if key in arguments
                ]
                found.append(" ".join(map(str, (channel, name, *text))))
            except (TimeoutError, asyncio.IncompleteReadError) as error:
                raise Mismatch(f"expected {expected}, found {found} and then {error!r}") from error
        # Only the answers of one channel have a defined order.
        equal("answers", sorted(found, key=_channel), sorted(expected, key=_channel))

    async def stays_open(self) -> None:
        """Check that the broker keeps the connection open after further requests."""
        self.writer.write(_method(1, "basic.qos", prefetch_count=1) * 100)
        await self.writer.drain()
        await self.is_silent()

    async def is_silent(self) -> None:
        """Check that the broker sends no byte for a moment and keeps the connection open."""
        try:
            async with asyncio.timeout(0.3):
                data = await self.reader.read(1)
        except TimeoutError:
            return
        raise Mismatch(f"expected no data and an open connection, found {data!r}")


def _channel(answer: str) -> int:
    return int(answer.partition(" ")[0])


@asynccontextmanager
async def _open_raw(subject: Subject) -> AsyncIterator[_RawConnection]:
    """Open a connection with channel 1."""
    address = parse_url(subject.address)
    reader, writer = await asyncio.open_connection(*address.hosts[0])
    core = WireConnection(Side.CLIENT)
    handshake = ClientHandshake(
        core,
        address.credentials,
        virtual_host=address.virtual_host,
        tuning=Tuning(_CHANNEL_MAX, _FRAME_MAX, 0),
    )
    try:
        while not handshake.done:
            writer.write(core.take())
            async with asyncio.timeout(_TIMEOUT_S):
                for event in core.receive(await reader.read(65_536)):
                    handshake.on_event(event)
        found = _RawConnection(reader, writer)
        await found.answers(_method(1, "channel.open"), "1 channel.open-ok")
        yield found
    finally:
        writer.close()


def _method(channel: int, name: str, **arguments: Any) -> bytes:
    return frame(METHOD, channel, encode_arguments(METHODS[name], arguments))


def _publish(key: str, exchange: str = "", size: int = 1, **more: Any) -> bytes:
    """Return the frames of a message whose body is one frame."""
    header = b"\0\x3c\0\0" + size.to_bytes(8, "big") + b"\0\0"
    method = _method(1, "basic.publish", exchange=exchange, routing_key=key, **more)
    return method + frame(HEADER, 1, header) + frame(BODY, 1, b"x" * size)


_CLOSE = _method(1, "channel.close", reply_code=200)
_GOODBYE = _method(0, "connection.close", reply_code=200)


@row("W.1", "An error is sent before the answer to a close in the same write", Tag.SOCKET)
async def error_before_close(subject: Subject) -> None:
    async with _open_raw(subject) as connection:
        await connection.answers(
            _publish("key", exchange="no-such-exchange") + _CLOSE,
            "1 channel.close 404 NOT_FOUND - no exchange 'no-such-exchange' in vhost '/'",
            "1 channel.close-ok",
        )
    async with _open_raw(subject) as connection:
        await connection.answers(
            _method(1, "basic.ack", delivery_tag=77) + _CLOSE,
            "1 channel.close 406 PRECONDITION_FAILED - unknown delivery tag 77",
            "1 channel.close-ok",
        )


@row("W.2", "Requests before a close in the same write are answered", Tag.SOCKET)
async def answers_before_close(subject: Subject) -> None:
    queue = subject.name()
    write = (
        _method(1, "queue.declare", queue=queue)
        + _method(1, "basic.get", queue=queue)
        + _method(1, "queue.purge", queue=queue)
        + _method(1, "queue.delete", queue=queue)
        + _method(1, "tx.select")
        + _method(1, "tx.commit")
        + _CLOSE
    )
    expected = (
        "1 queue.declare-ok",
        "1 basic.get-empty",
        "1 queue.purge-ok",
        "1 queue.delete-ok",
        "1 tx.select-ok",
        "1 tx.commit-ok",
        "1 channel.close-ok",
    )
    async with _open_raw(subject) as connection:
        await connection.answers(write, *expected)


@row(
    "W.3",
    "A return and its confirm precede the answer to a close in the same write",
    Tag.SOCKET,
)
async def return_before_close(subject: Subject) -> None:
    nowhere = _method(1, "confirm.select") + _publish(subject.name(), mandatory=True)
    async with _open_raw(subject) as connection:
        await connection.answers(
            nowhere + _CLOSE,
            "1 confirm.select-ok",
            "1 basic.return 312 NO_ROUTE",
            "1 basic.ack",
            "1 channel.close-ok",
        )
    async with _open_raw(subject) as connection:
        await connection.answers(
            nowhere + _GOODBYE,
            "1 confirm.select-ok",
            "1 basic.return 312 NO_ROUTE",
            "1 basic.ack",
            "0 connection.close-ok",
        )


@row(
    "W.4",
    "After connection.close-ok the broker keeps the socket open and reads it until the "
    "client closes it",
    Tag.SOCKET,
)
async def open_after_goodbye(subject: Subject) -> None:
    async with _open_raw(subject) as connection:
        await connection.answers(_GOODBYE, "0 connection.close-ok")
        await connection.stays_open()


@row(
    "W.5",
    "A body frame may have 131,072 bytes, eight more than frame_max permits",
    Tag.SOCKET,
)
async def largest_body_frame(subject: Subject) -> None:
    nowhere = subject.name()
    async with _open_raw(subject) as connection:
        await connection.answers(
            _publish(nowhere, size=_FRAME_MAX, mandatory=True), "1 basic.return 312 NO_ROUTE"
        )
    async with _open_raw(subject) as connection:
        await connection.answers(
            _publish(nowhere, size=_FRAME_MAX + 1, mandatory=True),
            "0 connection.close 501 FRAME_ERROR - type 3, all octets = <<>>:"
            " {frame_too_large,131073,131064}",
        )


@row("W.6", "channel_max limits the number of channels, not their ids", Tag.SOCKET)
async def channel_limit(subject: Subject) -> None:
    async with _open_raw(subject) as connection:
        await connection.answers(_method(65_535, "channel.open"), "65535 channel.open-ok")
        rest = range(2, _CHANNEL_MAX)
        await connection.answers(
            b"".join(_method(number, "channel.open") for number in rest),
            *(f"{number} channel.open-ok" for number in rest),
        )
        await connection.answers(
            _method(_CHANNEL_MAX, "channel.open"),
            "0 connection.close 530 NOT_ALLOWED - number of channels opened (2047) has reached"
            " the negotiated channel_max (2047)",
        )


@row("W.7", "A channel may be opened, used and closed in one write", Tag.SOCKET)
async def open_and_use(subject: Subject) -> None:
    write = (
        _method(2, "channel.open")
        + _method(2, "queue.declare", queue=subject.name())
        + _method(2, "channel.close", reply_code=200)
    )
    expected = ("2 channel.open-ok", "2 queue.declare-ok", "2 channel.close-ok")
    async with _open_raw(subject) as connection:
        await connection.answers(write, *expected)


@row(
    "W.8",
    "channel.flow off closes the connection (540). on is answered",
    Tag.SOCKET,
)
async def flow(subject: Subject) -> None:
    async with _open_raw(subject) as connection:
        await connection.answers(_method(1, "channel.flow", active=True), "1 channel.flow-ok")
        await connection.answers(
            _method(1, "channel.flow", active=False),
            "0 connection.close 540 NOT_IMPLEMENTED - active=false",
        )


@row(
    "W.9",
    "An invalid frame (501) or a method of the server (503) closes the connection",
    Tag.SOCKET,
)
async def nonsense(subject: Subject) -> None:
    declare = _method(1, "queue.declare", queue=subject.name())
    async with _open_raw(subject) as connection:
        await connection.answers(
            declare + b"garbagegarbage",
            "1 queue.declare-ok",
            "0 connection.close 501 FRAME_ERROR - type 103, all octets = <<>>:"
            " {frame_too_large,1650550629,131064}",
        )
    async with _open_raw(subject) as connection:
        await connection.answers(
            declare + _method(1, "queue.declare-ok", queue="q"),
            "1 queue.declare-ok",
            "0 connection.close 503 COMMAND_INVALID - unimplemented method",
        )


@row(
    "W.11",
    "An unexpected frame closes the connection: on channel 0 or a channel that is not "
    "open (504), within a message or without one (505), a method of the server (503)",
    Tag.SOCKET,
)
async def out_of_place(subject: Subject) -> None:
    declare = METHODS["queue.declare"].id
    publish = _method(1, "basic.publish", routing_key=subject.name())
    header = frame(HEADER, 1, b"\0\x3c\0\0" + (1).to_bytes(8, "big") + b"\0\0")
    other = frame(HEADER, 1, b"\0\x32\0\0" + (1).to_bytes(8, "big") + b"\0\0")
    channel_0 = "504 CHANNEL_ERROR - unexpected method in connection state running"
    not_open = "504 CHANNEL_ERROR - expected 'channel.open'"
    no_method = "505 UNEXPECTED_FRAME - expected method frame, got non method frame instead"
    no_header = (
        "505 UNEXPECTED_FRAME - expected content header for class 60, got non content header frame"
        " instead"
    )
    no_body = "505 UNEXPECTED_FRAME - expected content body, got non content body frame instead"
    for write, reason, method in (
        (_method(0, "queue.declare", queue="q"), channel_0, declare),
        (_method(0, "connection.open", virtual_host="/"), channel_0, METHODS["connection.open"].id),
        (_method(0, "connection.start"), channel_0, METHODS["connection.start"].id),
        (_method(5, "queue.declare", queue="q"), not_open, declare),
        (_method(5, "channel.open-ok"), not_open, METHODS["channel.open-ok"].id),
        (
            _method(1, "channel.open"),
            "504 CHANNEL_ERROR - second 'channel.open' seen",
            METHODS["channel.open"].id,
        ),
        (
            _method(1, "connection.close"),
            "503 COMMAND_INVALID - unimplemented method",
            METHODS["connection.close"].id,
        ),
        (
            frame(HEADER, 0, b"abc"),
            '501 FRAME_ERROR - type 2, all octets = <<"abc">>: unknown_frame',
            0,
        ),
        (frame(BODY, 0, b"abc"), '505 UNEXPECTED_FRAME - type 3, all octets = <<"abc">>', 0),
        (frame(HEARTBEAT, 1, b""), "505 UNEXPECTED_FRAME - type 8, all octets = <<>>", 0),
        (header, no_method, 0),
        (frame(BODY, 5, b"x"), no_method, 0),
        (publish + _method(1, "queue.declare", queue="q"), no_header, METHODS["basic.publish"].id),
        (publish + frame(BODY, 1, b"x"), no_header, METHODS["basic.publish"].id),
        (publish + header + header, no_body, METHODS["basic.publish"].id),
        (
            publish + other,
            "505 UNEXPECTED_FRAME - expected content header for class 60, got one for class 50"
            " instead",
            METHODS["basic.publish"].id,
        ),
    ):
        await _check_close(subject, write, reason, method)


@row(
    "W.12",
    "Arguments that are too short or too long, and frames of unknown type, close the "
    "connection (501)",
    Tag.SOCKET,
)
async def undecodable(subject: Subject) -> None:
    declared = encode_arguments(METHODS["queue.declare"], {"queue": "q"})
    for name, arguments in (
        ("queue.declare", declared[4:-3]),
        ("queue.declare", b""),
        ("queue.declare", declared[4:] + b"xx"),
        ("queue.declare", declared[4:] + bytes(200)),
        ("queue.purge", b"\0\0\x09abc\0"),
        ("basic.ack", b"\0\0\1"),
        ("basic.ack", bytes(12)),
        ("tx.select", b"x"),
    ):
        method = METHODS[name].id
        reason = f"501 FRAME_ERROR - cannot decode <<{','.join(map(str, arguments))}>>"
        reason = reason if len(reason) <= 259 else f"{reason[:256]}..."
        write = frame(METHOD, 1, method.to_bytes(4, "big") + arguments)
        await _check_close(subject, write, reason, method)
    for kind, payload, shown in (
        (METHOD, b"\0\x32\0", "<<0,50,0>>"),
        (METHOD, b"", "<<>>"),
        (HEADER, b"\0\x3c\0\0", "<<0,60,0,0>>"),
        (4, b"abc", '<<"abc">>'),
        (HEARTBEAT, b"abc", '<<"abc">>'),
    ):
        reason = f"501 FRAME_ERROR - type {kind}, all octets = {shown}: unknown_frame"
        await _check_close(subject, frame(kind, 1 if kind != HEARTBEAT else 0, payload), reason, 0)


@row(
    "W.13",
    "Names, keys and tags that are not UTF-8 close the connection (501), except in a publish. NUL "
    "is accepted",
    Tag.SOCKET,
)
async def names_of_any_bytes(subject: Subject) -> None:
    odd, queue = "\udcff", subject.name()
    for write in (
        _method(1, "queue.declare", queue=odd),
        _method(1, "queue.declare", queue=odd, passive=True),
        _method(1, "queue.bind", queue=queue, exchange="amq.direct", routing_key=odd),
        _method(1, "queue.delete", queue=odd),
        _method(1, "exchange.declare", exchange=odd, type="fanout"),
        _method(1, "exchange.delete", exchange=odd),
        _method(1, "basic.consume", queue=queue, consumer_tag=odd),
        _method(1, "basic.cancel", consumer_tag=odd),
        _method(1, "basic.get", queue=odd),
        _method(1, "channel.close", reply_code=200, reply_text=odd),
    ):
        await _check_close(subject, write, "501 FRAME_ERROR - Malformed UTF-8 in shortstr", 0)
    async with _open_raw(subject) as connection:
        await connection.answers(_publish(odd, mandatory=True), "1 basic.return 312 NO_ROUTE")
        name = f"{queue}\0"
        await connection.answers(
            _method(1, "queue.declare", queue=name) + _method(1, "queue.delete", queue=name),
            "1 queue.declare-ok",
            "1 queue.delete-ok",
        )


@row("W.14", "A heartbeat may occur between any two frames, also within a message", Tag.SOCKET)
async def heartbeats(subject: Subject) -> None:
    queue = subject.name()
    header = frame(HEADER, 1, b"\0\x3c\0\0" + (2).to_bytes(8, "big") + b"\0\0")
    frames = (
        _method(1, "confirm.select"),
        _method(1, "queue.declare", queue=queue),
        _method(1, "basic.publish", routing_key=queue),
        header,
        frame(BODY, 1, b"x"),
        frame(BODY, 1, b"y"),
    )
    async with _open_raw(subject) as connection:
        mixed = b"".join(part + HEARTBEAT_FRAME for part in frames)
        answers = ("1 confirm.select-ok", "1 queue.declare-ok", "1 basic.ack")
        await connection.answers(HEARTBEAT_FRAME + mixed, *answers)
        delete = _method(1, "queue.delete", queue=queue)
        mixed = HEARTBEAT_FRAME.join((delete, _CLOSE, b""))
        await connection.answers(mixed, "1 queue.delete-ok", "1 channel.close-ok")


async def _check_close(subject: Subject, write: bytes, reason: str, method: int) -> None:
    """Check that the bytes close the connection with this code, text and method."""
    async with _open_raw(subject) as connection:
        connection.writer.write(write)
        while True:
            channel, name, arguments = await connection.method()
            if name == "connection.close":
                break
        found = f"{arguments['reply_code']} {arguments['reply_text']}"
        equal("close", (channel, found), (0, reason))
        equal(
            "method",
            (arguments["class_id"], arguments["method_id"]),
            (method >> 16, method & 0xFFFF),
        )


@row(
    "W.10",
    "During an alarm the next publish blocks its connection: the broker reports this and "
    "stops reading. Other connections continue. Afterwards the pending data is processed",
    Tag.NODE,
    Tag.DESTRUCTIVE,
    Tag.SOCKET,
)
async def alarm_on_the_wire(subject: Subject) -> None:
    queue = subject.name()
    declare = _method(1, "queue.declare", queue=queue)
    async with _open_raw(subject) as publisher, _open_raw(subject) as consumer:
        await publisher.answers(
            declare + _method(1, "confirm.select") + _publish(queue),
            "1 queue.declare-ok",
            "1 confirm.select-ok",
            "1 basic.ack",
        )
        await subject.node.raise_alarm()
        try:
            await publisher.answers(declare, "1 queue.declare-ok")
            await publisher.answers(
                _publish(queue) + _method(2, "channel.open"), "0 connection.blocked low on memory"
            )
            await consumer.answers(
                _method(1, "basic.consume", queue=queue), "1 basic.consume-ok", "1 basic.deliver"
            )
            await consumer.answers(
                _method(1, "basic.ack", delivery_tag=1) + declare, "1 queue.declare-ok"
            )
            await publisher.is_silent()
        finally:
            await subject.node.clear_alarm()
        await publisher.answers(b"", "0 connection.unblocked", "2 channel.open-ok", "1 basic.ack")
        await consumer.answers(b"", "1 basic.deliver")
