"""Pipelined requests are answered in order and with the texts of RabbitMQ.

Both brokers are compared.
"""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from hopback.broker.server import BrokerServer, ClockKind, ServerSettings
from hopback.version import BrokerVersion
from hopback.wire.frames import BODY, HEADER, METHOD, frame
from hopback.wire.methods import BY_ID, METHODS, decode_arguments, encode_arguments
from tests.integration.raw_client import RawClient

if TYPE_CHECKING:
    from tests.harness.shared import SharedNode

pytestmark = [pytest.mark.broker, pytest.mark.socket]

_SILENCE_S = 0.5
"""A broker has answered all requests if it sends no data for this time."""
_PATIENCE_S = 15.0
"""RabbitMQ may pause between answers. Wait this long for as many bytes as from the embedded broker."""


def _method(channel: int, name: str, **arguments: Any) -> bytes:
    return frame(METHOD, channel, encode_arguments(METHODS[name], arguments))


def _publish(key: str, exchange: str = "", size: int = 1, **more: Any) -> bytes:
    header = b"\0\x3c\0\0" + size.to_bytes(8, "big") + b"\0\0"
    method = _method(1, "basic.publish", exchange=exchange, routing_key=key, **more)
    return method + frame(HEADER, 1, header) + frame(BODY, 1, b"x" * size)


_DECLARE = _method(1, "queue.declare", queue="pipelined", auto_delete=True)
_CLOSE = _method(1, "channel.close", reply_code=200)
_GOODBYE = _method(0, "connection.close", reply_code=200)

_WRITES = {
    "a forged reply address": _publish("amq.rabbitmq.reply-to.AAAA.BBBB"),
    "a reply address without a key": _publish("amq.rabbitmq.reply-to.AAAA") + _CLOSE,
    "an error, then a close": _publish("x", exchange="none") + _CLOSE,
    "a declaration, then a close": _DECLARE + _CLOSE,
    "a return and its confirm, then a close": (
        _method(1, "confirm.select") + _publish("nowhere", mandatory=True) + _CLOSE
    ),
    "a confirm, then a goodbye": _method(1, "confirm.select") + _publish("nowhere") + _GOODBYE,
    "an unknown tag, then a close": _method(1, "basic.ack", delivery_tag=77) + _CLOSE,
    "get, purge and delete, then a close": (
        _DECLARE
        + _method(1, "basic.get", queue="pipelined")
        + _method(1, "queue.purge", queue="pipelined")
        + _method(1, "queue.delete", queue="pipelined")
        + _CLOSE
    ),
    "an empty commit, then a close": _method(1, "tx.select") + _method(1, "tx.commit") + _CLOSE,
    "a channel that is used before it is open": (
        _method(2, "channel.open")
        + _method(2, "queue.declare", queue="pipelined-2", auto_delete=True)
        + _method(2, "channel.close", reply_code=200)
    ),
    "flow off": _method(1, "channel.flow", active=False),
    "flow on": _method(1, "channel.flow", active=True),
    "the largest body frame": _publish("nowhere", size=131_072, mandatory=True),
    "a body frame that is too large": _publish("nowhere", size=131_073, mandatory=True),
    "the highest channel": _method(65_535, "channel.open"),
    "one channel too many": b"".join(_method(n, "channel.open") for n in range(2, 2049)),
    "a declaration, then no frame": _DECLARE + b"garbagegarbage",
    "a declaration, then a server's method": (
        _DECLARE + _method(1, "queue.declare-ok", queue="pipelined")
    ),
}


def _shown(raw: bytes) -> list[tuple[object, ...]]:
    """The methods in these bytes, with the code and text of those that refuse."""
    shown: list[tuple[object, ...]] = []
    position = 0
    while len(raw) - position >= 8:
        kind, channel, size = struct.unpack_from(">BHI", raw, position)
        if kind == METHOD:
            method = BY_ID[struct.unpack_from(">I", raw, position + 7)[0]]
            told = decode_arguments(method, raw[position + 7 : position + 7 + size])
            shown.append((channel, method.name, told.get("reply_code"), told.get("reply_text")))
        position += size + 8
    return shown


async def _answers(
    url: str, write: bytes, least: int = 0
) -> tuple[dict[object, list[object]], int]:
    """The answers of a broker to one write, by channel, and their size.

    The connection must still be open.
    """
    async with RawClient(url) as client:
        client.writer.write(write)
        raw = b""
        with suppress(TimeoutError):
            while True:
                async with asyncio.timeout(_SILENCE_S if len(raw) >= least else _PATIENCE_S):
                    data = await client.reader.read(65_536)
                assert data, "the broker hung up before the client did"
                raw += data
    found: dict[object, list[object]] = {}
    for channel, *told in _shown(raw):
        found.setdefault(channel, []).append(told)
    return found, len(raw)


@pytest.mark.parametrize("name", _WRITES)
async def test_pipelined_requests_are_answered_like_rabbitmq(
    rabbitmq: SharedNode, name: str
) -> None:
    """All requests before a close are answered."""
    settings = ServerSettings(
        port=0, http_port=None, clock=ClockKind.SYSTEM, version=BrokerVersion(3, 10)
    )
    async with BrokerServer(settings) as server:
        ours, size = await _answers(server.url, _WRITES[name], 1)
    theirs, _ = await _answers(rabbitmq.url, _WRITES[name], size)
    assert ours == theirs
    assert ours, "expected an answer"
