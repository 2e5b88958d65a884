"""The broker as a server: listens, accepts clients and stops cleanly."""

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
"""Seconds between memory checks while publishers are blocked. Each check counts all messages."""
_TIDY_S = 10.0
"""Minimum seconds between returns of memory to the system. Clients wait some milliseconds for
it.
"""
_FAREWELL_S = 1.0
"""Seconds for clients to answer a close. Healthy ones take milliseconds. Others are cut off."""
_LARGEST_REQUEST = 16 * 1024 * 1024
"""Bytes of an HTTP request body. Definitions of a large broker are a few megabytes."""
_MOST_HTTP_CONNECTIONS = 1024
"""Concurrent HTTP connections. A service that watches 50 virtual hosts opens several for each."""


class BrokerServer:
    """An in-memory RabbitMQ behind a socket, for development, tests and demos on one machine.

    Use it as an async context manager, or call `start` and `stop`. `broker.node` is the embedded
    broker.
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
        """The AMQP address, without a password."""
        return f"amqp://{_place(self.settings.host)}:{self._port}"

    @property
    def http_url(self) -> str | None:
        """The address of the management API, if enabled."""
        if self._endpoint is None:
            return None
        return f"http://{_place(self.settings.host)}:{self._http_port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen. Raise OSError if a port is in use. Port 0 selects a free port."""
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
        """Close the connections, wait briefly for the clients, and stop. Safe to repeat."""
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
        """End all connections, as when a broker stops."""
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

    # Operations.

    async def advance(self, duration: Duration) -> Advanced:
        """Advance the clock in a single step. Raise ValueError for the system clock."""
        return await self.time.advance(
            read_seconds(duration, "duration", where="BrokerServer.advance")
        )

    async def restart(self) -> None:
        """Restart the embedded broker. Transient objects and messages are lost."""
        await self.disconnect()
        for node in self.broker.nodes:
            node.restart()

    def block(self, *, blocked: bool = True) -> None:
        """Block publishers, as a memory alarm does, or unblock them."""
        self.broker.alarm(on=blocked)

    def snapshot(self) -> NodeSnapshot:
        """Return a snapshot of the current state."""
        return snapshot(self.broker.node)

    def load(self, definitions: Mapping[str, Any]) -> None:
        """Import RabbitMQ definitions. ValueError lists their problems."""
        try:
            take_definitions(self.broker, definitions)
        except Refusal as refusal:
            raise ValueError(refusal.text) from refusal

    def set_policy(self, policy: Policy, *, operator: bool = False) -> None:
        """Create or overwrite a policy. Raise ValueError where RabbitMQ answers 400."""
        self.broker.node.policies.put(policy, operator=operator)

    def clear_policy(self, name: str, *, operator: bool = False) -> None:
        """Delete a policy. A missing policy is not an error."""
        self.broker.node.policies.remove(name, operator=operator)


def _place(host: str) -> str:
    return f"[{host}]" if ":" in host else host
