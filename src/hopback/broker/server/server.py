"""The broker as a server: it listens, lets clients in, and stops cleanly."""

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
from hopback.endpoint import Endpoint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopback.topology.model import Policy

_LOOK_S = 0.25
"""How soon blocked publishers may go on when memory is free again; each look counts all messages."""
_TIDY_S = 10.0
"""How often memory is given back at most: it takes some milliseconds in which nobody is served."""
_FAREWELL_S = 1.0
"""Clients in good order answer a close in milliseconds; who does not is cut off."""
_LARGEST_REQUEST = 16 * 1024 * 1024
"""A body of the HTTP API: definitions of a large broker are a few megabytes."""


class BrokerServer:
    """RabbitMQ in memory behind a socket, for development, tests and demos on one machine.

    Use it as an async context manager, or `start` and `stop` it. `broker.node` is the broker inside.
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
        """Where AMQP clients find it; no password in it."""
        return f"amqp://{_place(self.settings.host)}:{self._port}"

    @property
    def http_url(self) -> str | None:
        """Where the management API is, if there is one."""
        if self._endpoint is None:
            return None
        return f"http://{_place(self.settings.host)}:{self._http_port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; OSError if a port is in use. Port 0 takes a free one."""
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
                endpoint = Endpoint(api, timeout=60.0, most_body=_LARGEST_REQUEST)
                _, self._http_port = await endpoint.open(host, self.settings.http_port)
                self._endpoint = endpoint
                self.broker.ports["http"] = self._http_port
            except OSError:
                self._server.close()
                raise
        self.time.start(self.broker)
        self._watch = loop.create_task(self._watch_memory(), name="memory watch")

    async def stop(self) -> None:
        """Tell clients, give them a moment to leave, and be gone. Safe to repeat."""
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

    # What an operator can do.

    async def advance(self, seconds: float) -> Advanced:
        """Let time pass at once; ValueError if the clock is the system's."""
        return await self.time.advance(seconds)

    async def restart(self) -> None:
        """Stop and start the broker inside: what is not durable is gone."""
        await self.disconnect()
        for node in self.broker.nodes:
            node.restart()

    def block(self, *, blocked: bool = True) -> None:
        """Hold publishers back, as a memory alarm does, or let them go on."""
        self.broker.alarm(on=blocked)

    def snapshot(self) -> NodeSnapshot:
        """Everything in it at this moment, as values."""
        return snapshot(self.broker.node)

    def load(self, definitions: Mapping[str, Any]) -> None:
        """Take RabbitMQ definitions; ValueError says what is wrong with them."""
        try:
            take_definitions(self.broker, definitions)
        except Refusal as refusal:
            raise ValueError(refusal.text) from refusal

    def set_policy(self, policy: Policy, *, operator: bool = False) -> None:
        """Set or replace a policy; ValueError for what RabbitMQ answers with 400."""
        self.broker.node.policies.put(policy, operator=operator)

    def clear_policy(self, name: str, *, operator: bool = False) -> None:
        """Remove a policy; a missing one is no error."""
        self.broker.node.policies.remove(name, operator=operator)


def _place(host: str) -> str:
    return f"[{host}]" if ":" in host else host
