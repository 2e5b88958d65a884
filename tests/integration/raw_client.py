"""A client that sends whatever a test wants, for tests of the server's side of the protocol."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from hopback.wire import Credentials, MethodReceived, Side, WireConnection
from hopback.wire.handshake import ClientHandshake, Tuning
from hopback.wire.methods import METHODS, encode_arguments

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.wire import Event

__all__ = ["RawClient"]

_PATIENCE = 10.0
_PAUSE = 0.2


class RawClient:
    """One connection whose every event is awaited in turn."""

    def __init__(self, url: str) -> None:
        self._place = urlsplit(url)
        self.core = WireConnection(Side.CLIENT)
        self._events: list[Event] = []
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        await self.connect()
        await self.log_in()
        await self.call(1, "channel.open")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        # At once: pending data would otherwise keep the socket open beyond the test.
        self.writer.transport.abort()
        with suppress(OSError):
            await self.writer.wait_closed()

    async def connect(self) -> None:
        """Open the socket without sending anything."""
        self.reader, self.writer = await asyncio.open_connection(
            self._place.hostname, self._place.port
        )

    async def log_in(
        self, user: str = "guest", password: str = "guest", **options: Any
    ) -> ClientHandshake:
        """Run the handshake. Raise ConnectionFailed if it is refused."""
        tuning = Tuning(**options.pop("tuning", {"heartbeat": 0}))
        credentials = Credentials(user, lambda: password)
        handshake = ClientHandshake(self.core, credentials, tuning=tuning, **options)
        while not handshake.done:
            handshake.on_event(await self.event())
        return handshake

    async def event(self) -> Event:
        """Return the next event of the broker. Raise EOFError when it has closed the connection."""
        self.flush()
        while not self._events:
            async with asyncio.timeout(_PATIENCE):
                data = await self.reader.read(65_536)
            if not data:
                raise EOFError("the broker closed the connection")
            self._events += self.core.receive(data)
        return self._events.pop(0)

    async def is_silent(self, seconds: float = 0.05) -> bool:
        """Return whether the broker sends no event for a moment."""
        try:
            async with asyncio.timeout(seconds):
                await self.event()
        except TimeoutError:
            return True
        return False

    def send(self, channel: int, name: str, **arguments: Any) -> None:
        self.core.send(channel, name, **arguments)

    def publish(self, key: str, body: bytes = b"m", exchange: str = "", **more: Any) -> None:
        """Publish on channel 1, with raw properties (none by default)."""
        properties = more.pop("properties", b"\0\0")
        fields = {"exchange": exchange, "routing_key": key, **more}
        payload = encode_arguments(METHODS["basic.publish"], fields)
        frame = b"\x01\x00\x01" + len(payload).to_bytes(4, "big") + payload + b"\xce"
        self.core.content(1, frame, properties, body)

    def flush(self) -> None:
        """Write all pending frames."""
        self.writer.write(self.core.take())

    async def method(self, name: str) -> dict[str, Any]:
        """The arguments of the next event, which must be this method."""
        event = await self.event()
        assert isinstance(event, MethodReceived), event
        assert event.name == name, event
        return event.arguments

    async def call(self, channel: int, name: str, **arguments: Any) -> dict[str, Any]:
        """Send a request and return its answer."""
        self.send(channel, name, **arguments)
        return await self.method(METHODS[name].replies[0])

    async def rest(self, show: Callable[[Event], object], least: int = 0) -> list[object]:
        """Read this number of events, and all that follow without a pause."""
        heard: list[object] = []
        with suppress(TimeoutError, EOFError, OSError):
            while True:
                async with asyncio.timeout(_PATIENCE if len(heard) < least else _PAUSE):
                    heard.append(show(await self.event()))
        return heard
