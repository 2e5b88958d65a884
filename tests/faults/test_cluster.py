"""The short form of the tests with three nodes and quorum queues. A killed leader and a partitioned
node must not lose messages.
"""

from __future__ import annotations

import pytest

from tests.faults import blows
from tests.faults.campaign import Campaign
from tests.faults.ledger.entry import Kind
from tests.harness.cluster import Cluster
from tests.harness.configuration import QUICK_DEAD_LETTERS_MS, Timings

pytestmark = [pytest.mark.broker, pytest.mark.waits(67)]


async def test_killed_leader_and_partitioned_node_lose_no_message() -> None:
    """Producers and consumers know all three nodes and continue while one is unavailable."""
    quick = Timings(dead_letter_retry_ms=QUICK_DEAD_LETTERS_MS)
    with Cluster(timings=quick) as cluster:
        urls = cluster.urls("faults")
        campaign = Campaign(
            urls[0], cluster.nodes[0].management, consumer_urls=urls, concurrency=10, slack=5.0
        )
        async with campaign:
            campaign.keep_consumers()
            campaign.produce(4000, urls=urls, rate=120, failing=0.1)
            await campaign.until(lambda: campaign.count(Kind.DONE) > 200)
            leader = cluster.leader_of("faults", "left")
            await blows.kill_node(campaign, cluster, leader, name="cluster: leader kill -9")
            done = campaign.count(Kind.DONE)
            assert done > 400  # messages were handled while one node was down
            await blows.cut_off_node(campaign, cluster, (leader + 1) % 3)
            await campaign.until_calm()
            verdict = await campaign.verdict()
    verdict.require()
    assert verdict.confirmed == 4000
    assert len(verdict.faults) == 2
