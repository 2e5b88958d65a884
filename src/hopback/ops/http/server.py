"""Run the service with uvicorn. If no sign-in is configured, it may only listen on loopback addresses."""

from __future__ import annotations

import asyncio
import signal
import socket
import struct
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from hopback.endpoint import is_loopback
from hopback.errors import HopbackError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.types import ASGIApp

_GRACE_S = 5  # seconds for open requests during shutdown, because event streams would never end
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class PublicWithoutAuth(HopbackError):
    """Other machines could reach the service without authentication."""

    remedy: ClassVar[str] = (
        "Configure tokens or keys (--config), or listen on 127.0.0.1 behind a proxy that authenticates."
    )


def refuse_public(host: str, *, asks_who: bool) -> None:
    """Raise PublicWithoutAuth if other machines can reach the address and no sign-in is configured."""
    is_local = host == "localhost" or is_loopback(host.strip("[]"))
    if not asks_who and not is_local:
        raise PublicWithoutAuth(
            f"expected an address of this machine only (127.0.0.1), got {host!r}: no sign-in is configured"
        )


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Connection timeouts in seconds."""

    head_s: float = 10.0
    """Time to receive a complete request head. It starts with the connection or with the first byte
    of the head. Even slow clients only need one second.
    """
    idle_s: float = 5.0
    """Time between a response and the next request."""
    stalled_s: float = 60.0
    """Time for which a client may stop reading a response."""


class _HttpConnection(H11Protocol):
    """Close connections with an incomplete request head or an unread response. uvicorn would wait
    forever.
    """

    timeouts: Timeouts
    _head: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head = self.loop.call_later(self.timeouts.head_s, self._hang_up)

    def data_received(self, data: bytes) -> None:
        """Stop the timer when the request head is complete. Partial data does not restart it."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            _cancel(self._head)
            self._head = None
        elif self._head is None:
            self._head = self.loop.call_later(self.timeouts.head_s, self._hang_up)

    def _hang_up(self) -> None:
        begun = bool(self.conn.trailing_data[0])
        if begun and not self.transport.is_closing():
            self.transport.write(
                b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            )
        self.transport.close()

    def pause_writing(self) -> None:
        """Start the timer, because the client does not read."""
        super().pause_writing()
        self._stalled = self.loop.call_later(self.timeouts.stalled_s, self._reset)

    def _reset(self) -> None:
        """Close the connection without sending the rest. The kernel would otherwise keep it until
        the client reads.
        """
        taken = self.transport.get_extra_info("socket")
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def resume_writing(self) -> None:
        """Stop the timer, because the client has resumed reading."""
        super().resume_writing()
        _cancel(self._stalled)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        _cancel(self._head)
        _cancel(self._stalled)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


class _HttpServer(uvicorn.Server):
    """Report the address when the server starts to listen."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[str, int], object]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Shut down on SIGINT and SIGTERM. uvicorn would raise the signal a second time after the
        shutdown.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    async def startup(self, sockets: object = None) -> None:
        """Start to listen and report the address."""
        await super().startup(sockets)  # type: ignore[arg-type]
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._on_ready(str(host), int(port))


_PATIENT = Timeouts()


async def serve(
    app: ASGIApp,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    on_ready: Callable[[str, int], object] = lambda _host, _port: None,
    certificate: str | None = None,
    key: str | None = None,
    proxied: bool = False,
    timeouts: Timeouts = _PATIENT,
) -> None:
    """Run the service until it receives a signal.

    `on_ready` is called with the host and the port. If `port` is 0, a free port is used.
    """
    connection = type("_HttpConnection", (_HttpConnection,), {"timeouts": timeouts})
    config = uvicorn.Config(
        app,
        http=connection,
        ws="none",
        timeout_keep_alive=timeouts.idle_s,  # type: ignore[arg-type]  # uvicorn only adds it to a time
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        ssl_certfile=certificate,
        ssl_keyfile=key,
        proxy_headers=proxied,
        timeout_graceful_shutdown=_GRACE_S,
        h11_max_incomplete_event_size=64 * 1024,
    )
    await _HttpServer(config, on_ready).serve()
