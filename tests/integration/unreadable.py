"""A publish with an unreadable header table, which no Hopback client sends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hopback.wire import MethodReceived
from hopback.wire.events import Delivered
from hopback.wire.frames import frame

if TYPE_CHECKING:
    from tests.integration.raw_client import RawClient

__all__ = ["UNREADABLE", "publish_with_unused_flags", "refusal_of"]

UNREADABLE = {
    "unknown type": b"\x01kz\x00",
    "unknown type inside": b"\x01kF\x00\x00\x00\x04\x01kz\x00",
    "beyond the end": b"\x01kS\x00\x00\x00\x09abc",
    "no value": b"\x01k",
    "NaN": b"\x01kd\x7f\xf8" + bytes(6),
    "infinity inside": b"\x01kF\x00\x00\x00\x07\x01kf\xff\x80\x00\x00",
}
"""Invalid entries of a table by their error."""


async def refusal_of(client: RawClient, entries: bytes) -> tuple[str, int, str]:
    """Publish a message with these header entries and return the method, code and text of the
    answer.
    """
    properties = b"\x20\x00" + len(entries).to_bytes(4, "big") + entries
    client.writer.write(
        frame(1, 1, b"\x00\x3c\x00\x28\x00\x00\x00\x06nosuch\x00")
        + frame(2, 1, b"\x00\x3c\x00\x00" + (1).to_bytes(8, "big") + properties)
        + frame(3, 1, b"x")
    )
    async with asyncio.timeout(10):
        answer = await client.event()
    assert isinstance(answer, MethodReceived)
    return answer.name, answer.arguments["reply_code"], answer.arguments["reply_text"]


async def publish_with_unused_flags(client: RawClient) -> bytes:
    """Publish a message with both unused property flags, and return its body as it is delivered."""
    queue = (await client.call(1, "queue.declare", exclusive=True))["queue"]
    client.send(1, "basic.consume", queue=queue, no_ack=True)
    await client.event()
    client.publish(queue, b"x", properties=b"\x10\x03\x02")
    delivered = await client.event()
    assert isinstance(delivered, Delivered), delivered
    return delivered.body
