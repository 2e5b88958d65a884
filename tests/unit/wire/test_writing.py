"""When a connection writes: once per turn of the loop, or at once for a single awaited frame.

And how it reads.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hopback.wire import MethodReceived, Side, WireConnection
from hopback.wire.frames import PROTOCOL_HEADER
from hopback.wire.transport import Wire

if TYPE_CHECKING:
    from hopback.errors import BrokerError
    from hopback.wire import Event


class _Socket(asyncio.Transport):
    """Records written bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes += 1


class _IgnoringHandler:
    """Ignores all events."""

    def on_event(self, event: Event) -> None:
        """Ignore the event."""

    def on_writable(self) -> None:
        """Ignore the event."""

    def on_lost(self, error: BrokerError | None) -> None:
        """Ignore the event."""


def test_reads_between_request_and_write_add_no_writes() -> None:
    async def run() -> int:
        wire, socket = Wire(WireConnection(Side.CLIENT), _IgnoringHandler()), _Socket()
        wire.connection_made(socket)
        loop = asyncio.get_running_loop()

        def speak(turns: int) -> None:
            wire.connection.heartbeat()
            wire.wake()
            if turns:
                loop.call_soon(speak, turns - 1)

        for _ in range(10):
            speak(20)
            wire.data_received(b"")
        before = socket.writes
        for _ in range(25):
            await asyncio.sleep(0)
        return socket.writes - before

    assert asyncio.run(run()) <= 22


def test_urgent_frame_is_written_before_end_of_turn() -> None:
    async def run() -> tuple[int, int]:
        wire, socket = Wire(WireConnection(Side.CLIENT), _IgnoringHandler()), _Socket()
        wire.connection_made(socket)
        before = socket.writes
        wire.connection.heartbeat()
        wire.hurry()
        at_once = socket.writes - before
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return at_once, socket.writes - before

    assert asyncio.run(run()) == (1, 1)


def test_urgent_frame_is_written_with_pending_frames() -> None:
    async def run() -> tuple[int, int]:
        wire, socket = Wire(WireConnection(Side.CLIENT), _IgnoringHandler()), _Socket()
        wire.connection_made(socket)
        before = socket.writes
        wire.connection.heartbeat()
        wire.wake()
        wire.connection.heartbeat()
        wire.hurry()
        at_once = socket.writes - before
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return at_once, socket.writes - before

    assert asyncio.run(run()) == (0, 1)


class _Client(_IgnoringHandler):
    """Records its events."""

    def __init__(self) -> None:
        self.told: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.told.append(event)


def test_reused_read_buffer_keeps_parsed_values() -> None:
    server = WireConnection(Side.SERVER)
    server.receive(PROTOCOL_HEADER)
    server.send(
        0, "connection.start", version_major=0, version_minor=9, server_properties={"product": "x"},
        mechanisms=b"PLAIN", locales=b"en_US",
    )  # fmt: skip
    sent = server.take()

    async def run() -> list[Event]:
        client = _Client()
        wire = Wire(WireConnection(Side.CLIENT), client)
        wire.connection_made(_Socket())
        for part in (sent[:5], sent[5:40], sent[40:]):
            wire.get_buffer(-1)[: len(part)] = part
            wire.buffer_updated(len(part))
        return client.told

    (told,) = asyncio.run(run())
    assert isinstance(told, MethodReceived)
    assert told.arguments["server_properties"] == {"product": "x"}
    assert told.arguments["locales"] == b"en_US"
