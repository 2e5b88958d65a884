"""Run the embedded broker as a server."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from hopback.broker.embedded.refusal import Refusal
from hopback.broker.embedded.snapshot import NodeSnapshot, snapshot
from hopback.broker.server.api import Api
from hopback.broker.server.api_changes import take_definitions
from hopback.broker.server.client import Client
from hopback.broker.server.served import ServedBroker
from hopback.broker.server.settings import ServerSettings
from hopback.broker.server.time_travel import Advanced, ServerTime, time_of
from hopback.durations import Duration, read_seconds
from hopback.endpoint import Endpoint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopback.topology.model import Policy

_LOOK_S = 0.25
"""Seconds between memory checks while publishers are blocked. All messages are counted each time.
"""
_TIDY_S = 10.0
"""Minimum number of seconds between returning memory to the system. This stops clients for some
milliseconds.
"""
_FAREWELL_S = 1.0
"""Seconds to wait for clients to confirm a close. Most of them only need milliseconds."""
_LARGEST_REQUEST = 16 * 1024 * 1024
"""Maximum size of an HTTP request in bytes. The definitions of a large broker need several
megabytes.
"""
_MOST_HTTP_CONNECTIONS = 1024
"""Maximum number of HTTP connections. A service that monitors 50 virtual hosts opens several for
each of them.
"""


class BrokerServer:
    """An in-memory RabbitMQ for development, tests and demos on a single machine.

    Use this as an async context manager, or call `start` and `stop`. `broker.node` is the simulated
    node.
    """

    def __init__(self, settings: ServerSettings | None = None) -> None:
        self.settings: ServerSettings = settings or ServerSettings()
        self.time: ServerTime = time_of(self.settings.clock)
        seed = self.settings.seed
        self.broker: ServedBroker = ServedBroker(
            self.settings, self.time.clock, random.getrandbits(64) if seed is None else seed
        )
        self._server: asyncio.Server | None = None
        self._endpoint: Endpoint | None = None
        self._watch: asyncio.Task[None] | None = None
        self._port = 0
        self._http_port = 0

    @property
    def url(self) -> str:
        """The AMQP URL. Does not contain the password."""
        return f"amqp://{_place(self.settings.host)}:{self._port}"

    @property
    def http_url(self) -> str | None:
        """The URL of the management API, if it is enabled."""
        if self._endpoint is None:
            return None
        return f"http://{_place(self.settings.host)}:{self._http_port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start listening. Port 0 selects a free port.

        Raises:
            OSError: If a port is already in use.
        """
        loop = asyncio.get_running_loop()
        host = self.settings.host
        self._server = await loop.create_server(
            lambda: Client(self.broker).socket, host, self.settings.port, backlog=256
        )
        self._port = self._server.sockets[0].getsockname()[1]
        self.broker.ports["amqp"] = self._port
        if self.settings.http_port is not None:
            try:
                api = Api(self.broker, self.time)
                endpoint = Endpoint(
                    api,
                    timeout=60.0,
                    most_body=_LARGEST_REQUEST,
                    most_connections=_MOST_HTTP_CONNECTIONS,
                )
                _, self._http_port = await endpoint.open(host, self.settings.http_port)
                self._endpoint = endpoint
                self.broker.ports["http"] = self._http_port
            except OSError:
                self._server.close()
                raise
        self.time.start(self.broker)
        self._watch = loop.create_task(self._watch_memory(), name="memory watch")

    async def stop(self) -> None:
        """Close all connections and stop. Clients have a moment to respond. Can be called more than
        once.
        """
        if self._server is not None:
            self._server.close()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._endpoint is not None:
            await self._endpoint.close()
        await self.disconnect()
        await self.time.stop()

    async def disconnect(self) -> None:
        """Close all connections, as if the broker was stopped."""
        for client in tuple(self.broker.clients):
            client.shut()
        with suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_S):
                await self.broker.empty.wait()
        for client in tuple(self.broker.clients):
            client.socket.abort()
        await asyncio.sleep(0)

    async def _watch_memory(self) -> None:
        tidied = asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(_LOOK_S)
            if self.broker.blocked or self.broker.is_receiving_much():
                self.broker.check_memory()
            now = asyncio.get_running_loop().time()
            if now - tidied >= _TIDY_S:
                tidied = now
                self.broker.tidy_up()

    async def advance(self, duration: Duration) -> Advanced:
        """Advance the clock in a single step. Raises ValueError if it is the system clock."""
        return await self.time.advance(
            read_seconds(duration, "duration", where="BrokerServer.advance")
        )

    async def restart(self) -> None:
        """Restart the embedded broker. Transient objects and messages are lost."""
        await self.disconnect()
        for node in self.broker.nodes:
            node.restart()

    def block(self, *, blocked: bool = True) -> None:
        """Block or unblock publishers, like a memory alarm does."""
        self.broker.alarm(on=blocked)

    def snapshot(self) -> NodeSnapshot:
        return snapshot(self.broker.node)

    def load(self, definitions: Mapping[str, Any]) -> None:
        """Import RabbitMQ definitions. Raises ValueError with all problems."""
        try:
            take_definitions(self.broker, definitions)
        except Refusal as refusal:
            raise ValueError(refusal.text) from refusal

    def set_policy(self, policy: Policy, *, operator: bool = False) -> None:
        """Create or overwrite a policy. Raises ValueError if RabbitMQ would return 400."""
        self.broker.node.policies.put(policy, operator=operator)

    def clear_policy(self, name: str, *, operator: bool = False) -> None:
        """Delete a policy. Does nothing if it does not exist."""
        self.broker.node.policies.remove(name, operator=operator)


def _place(host: str) -> str:
    return f"[{host}]" if ":" in host else host
