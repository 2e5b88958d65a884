"""The admin service over a real RabbitMQ: its management API, its queues, and its absence."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx
import pytest

from hopback.broker.declare import declare
from hopback.broker.management import Management, ManagementAddress
from hopback.broker.rabbitmq import RabbitMQ
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.http import create_app
from hopback.ops.operations import Operations
from tests.unit.ops.admin_service import DLQ, MAIN, dead_letter, topology

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.shared import SharedNode

pytestmark = pytest.mark.broker


@asynccontextmanager
async def _open_client(
    url: str, management_url: str, vhost: str
) -> AsyncIterator[httpx.AsyncClient]:
    broker, declared = RabbitMQ(url), (topology(),)
    async with (
        Management(ManagementAddress.derive(None, management_url)) as view,
        Operations(
            ManagedBroker(broker, management=view, vhost=vhost, topologies=declared)
        ) as operations,
    ):
        app = create_app(operations, first_read_s=None)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield client


async def _fill(url: str) -> None:
    connection = await RabbitMQ(url).connect("test")
    await declare(connection, topology())
    channel = await connection.open_channel()
    await asyncio.gather(*(channel.publish(dead_letter(number)) for number in range(3)))
    await connection.close()


async def test_sessions_and_redrive_on_rabbitmq(
    amqp_url: str, rabbitmq: SharedNode, vhost: str
) -> None:
    """Depths are exact, a session returns its messages, a job moves all of them, and the map shows
    the live broker.
    """
    await _fill(amqp_url)
    async with _open_client(amqp_url, rabbitmq.management_url, vhost) as client:
        detail = (await client.get(f"/admin/dlq/queues/{DLQ}")).json()
        assert (detail["depth"]["messagesReady"], detail["type"]) == (3, "quorum")
        order = {"kind": "re-drive", "queue": DLQ, "reason": "fixed", "expectedCount": 3}
        job = (await client.post("/admin/dlq/jobs", json=order)).json()
        events = (await client.get(f"{job['url']}/events")).text
        assert '"state":"completed"' in events
        after = (await client.get(f"/admin/dlq/queues/{DLQ}")).json()
        assert after["depth"]["messagesReady"] == 0
        route = {"exchange": "shop.events", "routingKey": "order.created"}
        assert (await client.get("/admin/topology/route", params=route)).json()["queues"] == [MAIN]
        live = (await client.get("/admin/topology")).json()
        planned = await client.post("/admin/topology/plan", json={"topology": live["topology"]})
        assert planned.json()["settled"], planned.text
        for path in ("/", "/topology", "/checks", f"/queues/{DLQ}", f"/jobs/{job['id']}"):
            assert (await client.get(path)).status_code == 200, path


async def test_unreachable_broker_is_503_and_service_stays_alive() -> None:
    url = "amqp://guest:guest@127.0.0.1:1/"
    async with _open_client(url, "http://127.0.0.1:1", "/") as client:
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["ready"]) == (503, False)
        assert "guest:guest" not in ready.text
        listed = await client.get("/admin/dlq/overview")
        assert (listed.status_code, listed.json()["status"]) == (503, 503)
        page = await client.get("/")
        assert (page.status_code, "The broker does not answer" in page.text) == (200, True)
        assert (await client.get("/healthz")).text == "ok\n"
