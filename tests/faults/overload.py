"""Overload. Producers are faster than their consumers, and the resources of a consumer are
measured.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from typing import TYPE_CHECKING

from tests.faults.campaign import Campaign
from tests.faults.ledger.entry import Kind
from tests.faults.soak import uses
from tests.harness.rabbitmq import RabbitNode
from tests.unit.ops.admin_service import DLQ, admin, dead_letter

if TYPE_CHECKING:
    from tests.faults.ledger.checks import Verdict
    from tests.faults.soak import Use
    from tests.harness.installation import Installation

__all__ = ["browse", "outrun", "overload"]

_ANSWERS = {200, 201, 429, 503}
"""The HTTP statuses that a caller may receive when it exceeds its limits."""


async def outrun(
    node: RabbitNode, messages: int, *, pause_ms: int, size: int = 1000
) -> tuple[Verdict, list[Use], int]:
    """Publish messages as fast as possible to slow handlers.

    Returns the verdict, the resources, and the maximum number of messages that were handled at the
    same time.
    """
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
    """Return the maximum number of handlers that ran at the same time."""
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


async def browse(requests: int, *, at_once: int = 200) -> Counter[int]:
    """Send many browse requests concurrently. Returns how often each status was received."""
    found: Counter[int] = Counter()
    async with admin(*(dead_letter(number) for number in range(50))) as service:
        ways = (
            "/admin/dlq/overview",
            f"/admin/dlq/queues/{DLQ}",
            f"/admin/dlq/queues/{DLQ}/sessions",
        )

        async def ask(number: int) -> int:
            way = ways[number % len(ways)]
            if way.endswith("sessions"):
                return (await service.client.post(way, json={"limit": 5})).status_code
            return (await service.client.get(way)).status_code

        for first in range(0, requests, at_once):
            some = range(first, min(first + at_once, requests))
            found.update(await asyncio.gather(*map(ask, some)))
            service.clock.advance(1)
        # The queue still exists and no message was lost.
        state = await service.operations.queue(DLQ)
        assert state is not None
    return found


async def overload(installation: Installation) -> list[tuple[str, str, str]]:
    """Return the rows of the page."""
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
    row = ("overload", measured, "back-pressure holds" if fine else "failed")
    return [row, await _browse_row(10_000)]


async def _browse_row(requests: int) -> tuple[str, str, str]:
    found = await browse(requests)
    told = ", ".join(f"{count:,} × {status}" for status, count in sorted(found.items()))
    fine = set(found) <= _ANSWERS
    return (f"{requests:,} browse requests", told, "limits hold" if fine else "failed")
