"""The short form of the fault matrix on RabbitMQ. Consumers run as processes, and all promises must
be kept.

`make test-faults` runs the same faults for a long time, at random moments and under load.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.faults import blows
from tests.faults.campaign import Campaign
from tests.faults.ledger.entry import Kind
from tests.faults.tripwire import Point
from tests.integration.proxy import Proxy

if TYPE_CHECKING:
    from typing import Any

    from tests.harness.rabbitmq import RabbitNode

pytestmark = [pytest.mark.broker, pytest.mark.waits(150), pytest.mark.xdist_group("fault-matrix")]

MOVES = [
    Point.HANDLER,
    Point.RETRY_SENT,
    Point.RETRY_CONFIRMED,
    Point.PARK_SENT,
    Point.PARK_CONFIRMED,
    Point.SETTLING,
    Point.SETTLED,
]


def _campaign(node: RabbitNode, **options: Any) -> Campaign:
    url = node.vhost_url(f"faults-{uuid.uuid4().hex[:8]}")
    return Campaign(url, node.management, **options)


async def test_consumer_killed_at_every_step_loses_no_message(node: RabbitNode) -> None:
    """Between handler and ack, between retry and ack, between parking and ack, in a batch, and
    while the topology is declared.
    """
    async with _campaign(node, consumers=1, batch=("audit",)) as campaign:
        campaign.produce(400, failing=0.3)
        for point in (*MOVES, Point.DECLARING):
            campaign.keep_consumers(dies=f"{point}:3")
            worker = campaign.workers[0]
            await campaign.until(lambda worker=worker: not worker.is_alive)  # type: ignore[misc]
        await campaign.until_calm()
        verdict = await campaign.verdict()
    verdict.require()
    assert verdict.messages == verdict.confirmed == 400
    assert sum(verdict.faults.values()) == len(MOVES) + 1
    # If a retry or a dead letter was stored before the kill, there are two copies with the same id.
    assert verdict.duplicates >= 2


async def test_redrive_killed_between_publish_and_ack_loses_no_message(node: RabbitNode) -> None:
    """The re-drive is killed, started again and completed. There are only a few duplicates."""
    async with _campaign(node, consumers=1) as campaign:
        campaign.produce(600, fate="hopeless")
        await campaign.until_calm()
        for dies in ("moved:40", "settling:3", "settled:20"):
            operator = campaign.operate(dies=dies)
            await campaign.until(lambda operator=operator: not operator.is_alive)  # type: ignore[misc]
        campaign.operate()
        await campaign.until_calm()
        verdict = await campaign.verdict()
    verdict.require()
    assert verdict.confirmed == 600
    assert verdict.parked == 0
    assert sum(verdict.faults.values()) == 3
    assert 1 <= verdict.duplicates <= 3 * 500


async def test_discard_killed_midway_records_every_removed_message(node: RabbitNode) -> None:
    async with _campaign(node, consumers=1) as campaign:
        campaign.produce(200, fate="hopeless")
        await campaign.until_calm()
        for dies in ("settling:70", ""):
            operator = campaign.operate(discard=True, dies=dies)
            await campaign.until(lambda operator=operator: not operator.is_alive)  # type: ignore[misc]
        verdict = await campaign.verdict()
    verdict.require()
    assert verdict.parked == 0
    assert sum(verdict.faults.values()) == 1


async def test_broker_restarted_and_killed_loses_no_message(node: RabbitNode) -> None:
    """Producers and consumers reconnect and continue to work."""
    async with _campaign(node) as campaign:
        campaign.keep_consumers()
        campaign.produce(3000, rate=250, failing=0.1, lanes=True)
        await campaign.until(lambda: campaign.count(Kind.DONE) > 300)
        await blows.kill_broker(campaign, node)
        await campaign.until(lambda: campaign.count(Kind.DONE) > 1500)
        await blows.restart_broker(campaign, node)
        await campaign.until_calm()
        verdict = await campaign.verdict()
    verdict.require()
    assert verdict.confirmed == 3000
    assert verdict.faults == {"broker:_kill_-9": 1, "broker:_restart": 1}


async def test_network_cuts_and_stalls_lose_no_message(node: RabbitNode) -> None:
    """All connections of consumers use a proxy that cuts them, sometimes in the middle of a frame."""
    campaign = _campaign(node)
    async with Proxy(campaign.url) as proxy:
        campaign.consumer_urls = (proxy.url,)
        async with campaign:
            campaign.keep_consumers()
            campaign.produce(2500, rate=400, failing=0.2)
            await campaign.until(lambda: campaign.count(Kind.DONE) > 100)
            for after in (None, 10, 1000, None, 20_000):
                await blows.cut(campaign, proxy, after=after)
                await asyncio.sleep(0.5)
            await blows.stall(campaign, proxy, 1.5)
            await campaign.until_calm()
            verdict = await campaign.verdict()
    verdict.require()
    assert verdict.faults == {"network:_cut": 5, "network:_stall": 1}


async def test_operator_closing_connections_and_deleting_queue_loses_no_message(
    node: RabbitNode,
) -> None:
    """There is also a memory alarm."""
    async with _campaign(node) as campaign:
        campaign.keep_consumers()
        campaign.produce(1500, rate=400, failing=0.1)
        await campaign.until(lambda: campaign.count(Kind.DONE) > 100)
        assert await blows.close_connections(campaign)
        await blows.memory_alarm(campaign, node, 1.0)
        await campaign.until_calm()
        # The messages of a queue are lost if it is deleted. This queue is empty, and its consumers
        # declare it again.
        assert await blows.delete_queue(campaign, "left") == 0
        await campaign.until(lambda: _exists(campaign, "left"))
        campaign.produce(300, failing=0.1)
        await campaign.until_calm()
        verdict = await campaign.verdict()
    verdict.require()
    assert verdict.confirmed == 1800
    assert len(verdict.faults) == 3


def _exists(campaign: Campaign, queue: str) -> bool:
    found = campaign.management.call("GET", f"/queues/{campaign.vhost}")
    return any(one["name"] == queue and one.get("consumers") for one in found)
