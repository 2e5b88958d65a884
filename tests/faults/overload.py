"""Overload: producers that outrun their consumers, and what a consumer holds meanwhile."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import TYPE_CHECKING

from tests.faults.campaign import Campaign
from tests.faults.ledger.entry import Kind
from tests.faults.soak import uses
from tests.harness.rabbitmq import RabbitNode

if TYPE_CHECKING:
    from tests.faults.ledger.checks import Verdict
    from tests.faults.soak import Use
    from tests.harness.installation import Installation

__all__ = ["outrun", "overload"]


async def outrun(
    node: RabbitNode, messages: int, *, pause_ms: int, size: int = 1000
) -> tuple[Verdict, list[Use], int]:
    """Messages sent as fast as they can be to slow handlers: verdict, use, and most in hand at once."""
    url = node.vhost_url(f"overload-{uuid.uuid4().hex[:8]}")
    campaign = Campaign(url, node.management, design="raffle-hardened", consumers=1, concurrency=20)
    async with campaign:
        campaign.keep_consumers()
        campaign.produce(messages, failing=0.01, size=size, pause=pause_ms)
        await campaign.until(lambda: campaign.count(Kind.DONE) > 0)
        await campaign.until_calm(600)
        verdict = await campaign.verdict()
        return verdict, uses(campaign.samples), _most_in_hand(campaign)


def _most_in_hand(campaign: Campaign) -> int:
    """How many handlers ran at once, at most."""
    now = most = 0
    for path in campaign.folder.glob("c*.ledger"):
        for line in path.read_text(encoding="utf-8").splitlines():
            kind = line.split(" ", 2)[1]
            if kind == Kind.BEGUN:
                now += 1
            elif kind in (Kind.DONE, Kind.FAILED, Kind.HOPELESS, Kind.SNOOZED):
                now -= 1
            most = max(most, now)
    return most


async def overload(installation: Installation) -> list[tuple[str, str, str]]:
    """Rows of the page."""
    began = time.monotonic()
    with RabbitNode(installation=installation) as node:
        verdict, used, most = await outrun(node, 20_000, pause_ms=20)
    await asyncio.sleep(0)
    rss = [one.rss / 2**20 for one in used]
    measured = (
        f"{verdict.confirmed:,} messages of 1 KB to handlers of 20 ms in"
        f" {time.monotonic() - began:.0f} s; at most {most} handlers at once;"
        f" {rss[len(rss) // 4]:.0f} → {max(rss):.0f} MB"
    )
    fine = not verdict.findings and most <= 20 and max(rss) < rss[len(rss) // 4] * 1.3 + 10
    return [("overload", measured, "back-pressure holds" if fine else "failed")]
