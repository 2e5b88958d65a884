"""Many clients at once, and publishers that are held back while memory is short."""

from __future__ import annotations

import asyncio
import resource
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from hopback.broker.server import BrokerServer, ServerSettings
from hopback.wire import MethodReceived
from tests.integration.raw_client import RawClient

if TYPE_CHECKING:
    from hopback.wire import Event

pytestmark = pytest.mark.socket

_MANY = 2000


async def test_two_thousand_connections_are_served() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Both ends of each connection are files of this process.
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 3 * _MANY)), hard))
    async with BrokerServer(ServerSettings(port=0, http_port=0)) as server:
        clients = [RawClient(server.url) for _ in range(_MANY)]
        for group in range(0, _MANY, 100):
            await asyncio.gather(*(each.__aenter__() for each in clients[group : group + 100]))
        assert len(server.broker.node.sessions) == _MANY
        for client in clients:
            told = await client.call(1, "queue.declare", queue="q", arguments={})
            assert told["queue"] == "q"
        for client in clients:
            client.writer.close()
        async with asyncio.timeout(30):
            await server.broker.empty.wait()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _name(event: Event) -> Any:
    return (event.name, event.arguments) if isinstance(event, MethodReceived) else event


async def test_alarm_over_http_blocks_publishers() -> None:
    async with (
        BrokerServer(ServerSettings(port=0, http_port=0)) as server,
        httpx.AsyncClient(base_url=str(server.http_url), auth=("guest", "guest")) as http,
        RawClient(server.url) as publisher,
        RawClient(server.url) as other,
    ):
        await publisher.call(1, "queue.declare", queue="q", arguments={})
        assert (await http.put("/alarm", json={"memory": True})).json() == {"memory": True}
        assert (await http.get("/api/health/checks/alarms")).status_code == 503
        publisher.publish("q")
        told = await publisher.method("connection.blocked")
        assert told == {"reason": "low on memory"}
        assert (await other.call(1, "queue.declare", queue="q", arguments={}))["message_count"] == 0
        assert await other.is_silent()
        assert (await http.put("/alarm", json={"memory": False})).json() == {"memory": False}
        await publisher.method("connection.unblocked")
        assert (await other.call(1, "queue.declare", queue="q", arguments={}))["message_count"] == 1
        assert (await http.put("/alarm", json={"memory": "yes"})).status_code == 400
