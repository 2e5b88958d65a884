"""When a line writes: once in a turn of the loop, whatever else happens in it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hopback.wire import Side, WireConnection
from hopback.wire.transport import Wire

if TYPE_CHECKING:
    from hopback.errors import BrokerError
    from hopback.wire import Event


class _Socket(asyncio.Transport):
    """Remembers what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes += 1


class _Nobody:
    """Hears and does nothing."""

    def on_event(self, event: Event) -> None:
        """Nothing."""

    def on_writable(self) -> None:
        """Nothing."""

    def on_lost(self, error: BrokerError | None) -> None:
        """Nothing."""


def test_reading_between_asking_to_write_and_the_writing_adds_no_further_writes() -> None:
    """Ten speakers that say something in every turn need one write a turn, also after ten arrivals."""

    async def run() -> int:
        wire, socket = Wire(WireConnection(Side.CLIENT), _Nobody()), _Socket()
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
