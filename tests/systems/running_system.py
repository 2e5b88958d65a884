"""A system on RabbitMQ and a real database, with its web application on a socket."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from hopback import Publisher, RabbitMQ
from hopback.observe.metrics import Metrics
from hopback.systems import load_system
from hopback.systems.demo.web import DemoWeb, open_socket, serve_on
from hopback.systems.host import Host
from hopback.topology import Queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from hopback import Message

__all__ = ["RunningSystem", "run_system"]

_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class RunningSystem:
    """A client of the system's web application, and its broker."""

    client: httpx.AsyncClient
    broker: RabbitMQ

    async def publish(self, message: Message) -> None:
        """Publish as another program does."""
        async with Publisher(self.broker) as publisher:
            await publisher.send(message)

    async def depth(self, queue: str) -> int:
        """Return the number of ready messages."""
        connection = await self.broker.connect("test")
        try:
            channel = await connection.open_channel()
            return (await channel.declare_queue(Queue(queue), passive=True)).messages
        finally:
            await connection.close()

    async def json(self, path: str) -> Any:
        """Return the JSON of a path, or None if the status is not 200."""
        answer = await self.client.get(path)
        return answer.json() if answer.status_code == 200 else None

    async def wait_until(self, condition: Callable[[], Awaitable[object]]) -> Any:
        """Wait until the condition returns a true value and return it."""
        async with asyncio.timeout(_TIMEOUT_S):
            while not (found := await condition()):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
        return found


@asynccontextmanager
async def run_system(
    name: str, amqp_url: str, database: str, folder: Path, **environment: str
) -> AsyncIterator[RunningSystem]:
    """Start the system and its web server."""
    web, listening, system = DemoWeb(Metrics()), open_socket("127.0.0.1", 0), load_system(name)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/{name}"
    broker = RabbitMQ(amqp_url)
    host = Host(broker, database, folder, url, variables=environment)
    async with serve_on(web, listening), system.start(host) as started:
        assert started.web is not None
        web.add(name, started.web)
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            yield RunningSystem(client, broker)
