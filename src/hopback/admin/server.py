"""Serving the application with uvicorn, on this machine only where nobody is asked who they are."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

import uvicorn

from hopback.errors import HopbackError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.types import ASGIApp

__all__ = ["PublicWithoutAuth", "refuse_public", "serve"]

_GRACE_S = 5
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class PublicWithoutAuth(HopbackError):
    """The service would be reachable from elsewhere, and nobody would be asked who they are."""

    remedy: ClassVar[str] = (
        "Configure tokens or keys (--config), or listen on 127.0.0.1 and let a proxy ask."
    )


def refuse_public(host: str, *, asks_who: bool) -> None:
    """Refuse an address that others can reach, unless they are asked who they are."""
    if not asks_who and not _is_loopback(host):
        raise PublicWithoutAuth(
            f"expected an address of this machine only (127.0.0.1), got {host!r}: no sign-in is configured"
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class _Server(uvicorn.Server):
    """Says where it listens once it does."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[str, int], object]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM end it in order; uvicorn itself would send them on afterwards."""
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
        """Listen, then tell."""
        await super().startup(sockets)  # type: ignore[arg-type]
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._on_ready(str(host), int(port))


async def serve(
    app: ASGIApp,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    on_ready: Callable[[str, int], object] = lambda _host, _port: None,
    certificate: str | None = None,
    key: str | None = None,
    proxied: bool = False,
) -> None:
    """Serve until a signal comes. `on_ready` is told where; port 0 takes a free one."""
    config = uvicorn.Config(
        app,
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
    await _Server(config, on_ready).serve()
