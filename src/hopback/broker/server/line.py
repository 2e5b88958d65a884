"""The socket of one client: what is queued in a turn leaves at its end, confirms gathered before."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Protocol

from hopback.wire.transport import Owner, Wire

if TYPE_CHECKING:
    from hopback.errors import BrokerError
    from hopback.wire.connection import WireConnection

__all__ = ["LineOwner", "ServerLine"]

_log = logging.getLogger("hopback.broker")

_HIGH_WATER = 512 * 1024
"""How much may wait for a slow reader before deliveries to it stop."""
_GOODBYE_SECONDS = 3.0
"""How long a client that broke the protocol may take to read why. Hanging up at once would throw away
what it has not read yet."""
_FLOOD = 8 * 1024 * 1024
"""How much may wait in answers alone before we stop reading what it asks."""


class LineOwner(Owner, Protocol):
    """Who is told what happens on a server's line."""

    def on_opened(self, peer: tuple[str, int], here: tuple[str, int]) -> None:
        """Somebody is there: where it is, and where it has reached us."""

    def before_write(self) -> None:
        """What is queued will be written now: add what was held back to be gathered."""

    def after_write(self) -> None:
        """What was queued is with the socket."""

    def on_bytes(self) -> None:
        """The client said something."""


class ServerLine(Wire):
    """A wire that keeps a slow or flooding client from taking memory, or others from their turn."""

    def __init__(self, connection: WireConnection, owner: LineOwner) -> None:
        super().__init__(connection, owner)
        self._told = owner
        self._socket: asyncio.Transport | None = None
        self._choked = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - a stream has one
        self._socket = transport
        transport.set_write_buffer_limits(high=_HIGH_WATER)
        found = transport.get_extra_info("socket")
        if found is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        super().connection_made(transport)
        peer, here = (
            (str(address[0]), int(address[1])) if address else ("", 0)
            for address in map(transport.get_extra_info, ("peername", "sockname"))
        )
        self._told.on_opened(peer, here)

    def data_received(self, data: bytes) -> None:
        """Bytes in; a fault of ours costs this client its connection and nobody else anything."""
        self._told.on_bytes()
        try:
            super().data_received(data)
        except Exception:
            _log.exception("a client's bytes led to an error in the broker")
            self.abort()

    def fail(self, error: BrokerError) -> None:
        """Say why the connection ends, and let the client read it."""
        self._error = self._error or error
        self.await_end(_GOODBYE_SECONDS)

    def resume_writing(self) -> None:
        """The client reads again."""
        if self._choked:
            self._choked = False
            self.resume_reading()
        super().resume_writing()

    def flush(self) -> None:
        """Write what is queued now, confirms gathered."""
        self._told.before_write()
        super().flush()
        found = self._socket
        if found is not None and not self._choked and found.get_write_buffer_size() > _FLOOD:
            self._choked = True
            self.pause_reading()
        self._told.after_write()
