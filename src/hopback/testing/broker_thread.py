"""The broker on a socket in a thread of its own, for tests in any style and with any client."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Self, TypeVar

from hopback.broker.server import BrokerServer, ClockKind, ServerSettings

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from hopback.broker.embedded import NodeSnapshot
    from hopback.broker.server import Advanced
    from hopback.topology.model import Policy

__all__ = ["BrokerThread"]

T = TypeVar("T")

_PATIENCE_S = 60.0  # far more than an answer takes on a slow machine: what takes longer hangs


class BrokerThread:
    """A server that runs beside the test; use it as a context manager.

    `url` is for AMQP clients, `http_url` for the management API. All calls are for the test's own
    thread.
    """

    def __init__(self, settings: ServerSettings | None = None) -> None:
        free = ServerSettings(port=0, http_port=0, clock=ClockKind.VIRTUAL)
        self._settings = settings or free
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hopback broker")
        self._server: BrokerServer | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._server = self._do(_started(self._settings))
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._do(self.server.stop())
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_S)

    @property
    def server(self) -> BrokerServer:
        """The server; it belongs to the broker's thread."""
        if self._server is None:
            raise RuntimeError("expected a broker that was started: use it with `with`")
        return self._server

    @property
    def url(self) -> str:
        """Where AMQP clients find it."""
        return self.server.url

    @property
    def http_url(self) -> str:
        """Where the management API and the clock are; user and password are `guest`."""
        return self.server.http_url or ""

    @property
    def now(self) -> float:
        """The broker's time, in seconds since 1970."""
        return self.server.time.clock.now()

    def advance(self, seconds: float) -> Advanced:
        """Let time pass at once for what waits in the broker; clients are given time to react."""
        return self._do(self.server.advance(seconds))

    def snapshot(self) -> NodeSnapshot:
        """Everything in the broker at this moment, as values."""
        return self._do(_snapshot(self.server))

    def set_policy(self, policy: Policy) -> None:
        """Set or replace a policy; ValueError for what RabbitMQ answers with 400."""
        self._do(_set_policy(self.server, policy))

    def disconnect(self) -> None:
        """End all connections, as when a broker stops."""
        self._do(self.server.disconnect())

    def restart(self) -> None:
        """Stop and start: connections end, and what is not durable is gone."""
        self._do(self.server.restart())


async def _started(settings: ServerSettings) -> BrokerServer:
    server = BrokerServer(settings)
    await server.start()
    return server


async def _snapshot(server: BrokerServer) -> NodeSnapshot:
    return server.snapshot()


async def _set_policy(server: BrokerServer, policy: Policy) -> None:
    server.set_policy(policy)
