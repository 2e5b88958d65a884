"""Rates of a rehearsal read from the statistics of a real RabbitMQ: by the command and on the page."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx
import pytest

from hopback.broker.declare import declare
from hopback.broker.management import Management, ManagementAddress
from hopback.broker.rabbitmq import RabbitMQ
from hopback.cli.app import run
from hopback.designs import DESIGNS
from hopback.message import Message
from hopback.ops import ManagedBroker, Operations
from hopback.ops.http import create_app

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.shared import SharedNode

pytestmark = pytest.mark.broker

_TOPOLOGY = DESIGNS["recommended"].build()


@asynccontextmanager
async def _traffic(url: str) -> AsyncIterator[None]:
    """Some fifty messages a second for the queue, as long as the block lasts."""
    connection = await RabbitMQ(url).connect("traffic")
    await declare(connection, _TOPOLOGY)
    channel = await connection.open_channel()

    async def go_on() -> None:
        while True:
            await channel.publish(Message("", "orders", b"{}"))
            await asyncio.sleep(0.02)  # the statistics count real time

    task = asyncio.create_task(go_on())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await connection.close()


async def test_rehearsal_uses_present_rates_of_management_api(
    amqp_url: str, rabbitmq: SharedNode, vhost: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page and the command use them. A queue without publishes has none."""
    address = ManagementAddress.derive(None, rabbitmq.management_url)
    where = ("--broker", amqp_url, "--management", rabbitmq.management_url, "-o", "json")
    broker, declared = RabbitMQ(amqp_url), (_TOPOLOGY,)
    async with Management(address) as view, _traffic(amqp_url):
        async with asyncio.timeout(60):
            while not (await view.queue(vhost, "orders")).publish_rate:  # noqa: ASYNC110  gathered every few seconds
                await asyncio.sleep(0.2)
        async with Operations(
            ManagedBroker(broker, management=view, vhost=vhost, topologies=declared)
        ) as dead_letters:
            app = create_app(dead_letters, first_read_s=None)
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://127.0.0.1"
            ) as client:
                page = (await client.get("/topology/rehearse", params={"queue": "orders"})).text
        command = ["rehearse", "recommended", "--rate", "live", "--outage", "20m", *where]
        assert await asyncio.to_thread(run, command) == 0
    said = json.loads(capsys.readouterr().out)
    assert "messages a second arrive now" in page
    assert 'name="rate" value=""' not in page
    arrivals = said["stations"][0]["arrivalsPerSecond"]
    assert 0 < arrivals[0] < 200  # a busy machine publishes less than it should
    assert arrivals[0] == arrivals[-1]
