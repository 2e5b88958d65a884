"""The storm. A broker is killed while a consumer forwards thousands of failed messages.

All messages are confirmed before the consumer starts, and each one fails once. If the broker
dead-letters messages at most once, it loses some of them when it is killed. If they are published
and confirmed before the ack, none is lost.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from typing import TYPE_CHECKING

from tests.faults import blows
from tests.faults.campaign import Campaign
from tests.faults.ledger.checks import Promise
from tests.faults.ledger.entry import Kind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.faults.ledger.checks import Verdict
    from tests.harness.rabbitmq import RabbitNode

__all__ = ["storm", "storms"]


async def storm(node: RabbitNode, design: str, messages: int, chance: random.Random) -> Verdict:
    """Kill the broker once in the middle of a storm and return the verdict."""
    url = node.vhost_url(f"storm-{uuid.uuid4().hex[:8]}")
    campaign = Campaign(url, node.management, design=design, consumers=1, concurrency=150)
    async with campaign:
        filling = campaign.produce(messages, fate="fail-once")
        await campaign.until(lambda: not filling.is_alive)
        moment = chance.uniform(0.1, 0.7) * messages
        campaign.keep_consumers()
        # The storm only lasts a second, so check often.
        await campaign.until(lambda: campaign.count(Kind.RETRIED) > moment, every=0.005)
        await blows.kill_broker(campaign, node)
        await campaign.until_calm(60)
        return await campaign.verdict()


async def storms(
    node: RabbitNode, design: str, *, kills: int, messages: int = 4000, until_lost: bool = False
) -> AsyncIterator[Verdict]:
    """Run several storms. With `until_lost`, stop when messages were lost."""
    chance = random.Random(design)
    for _ in range(kills):
        verdict = await storm(node, design, messages, chance)
        yield verdict
        if until_lost and verdict.count(Promise.LOST):
            return
        await asyncio.sleep(0)
