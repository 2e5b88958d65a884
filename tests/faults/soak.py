"""The soak test. One consumer handles many messages while its resources are measured."""

from __future__ import annotations

import asyncio
import statistics
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.faults import blows
from tests.faults.campaign import Campaign
from tests.faults.site import version_of
from tests.faults.tally import Part

if TYPE_CHECKING:
    from tests.faults.ledger.entry import Entry
    from tests.faults.site import Site

__all__ = ["Use", "growth", "soak", "uses", "verdict_on"]


_WORKERS = 50
_BESIDES = 25
"""The number of tasks that a consumer has in addition to its workers, for connections, channels and
watches.
"""


@dataclass(frozen=True, slots=True)
class Use:
    """The resources of a process at a certain time."""

    at: float
    rss: int
    fds: int
    tasks: int
    channels: int


def uses(samples: list[Entry]) -> list[Use]:
    """Return the samples of a process, sorted by time."""
    found = []
    for sample in sorted(samples):
        values = dict(part.split("=") for part in sample.note.split(","))
        found.append(Use(sample.at, **{name: int(value) for name, value in values.items()}))
    return found


def growth(found: list[Use], *, workers: int = 0) -> list[str]:
    """Describe the resources that grew between the second and the last quarter of the time.

    The first quarter is ignored, because caches and pools are filled then. Memory may grow by 10 %
    and 4 MB, the other resources by those of one reconnection. After a reconnection, the first
    publishes of all routes may open channels at the same time. Up to `workers` workers may be started
    at any time.
    """
    quarter = max(1, len(found) // 4)
    early, late = found[quarter : 2 * quarter], found[-quarter:]
    grown = []
    before, after = (statistics.median(one.rss for one in part) for part in (early, late))
    if after > before * 1.1 + 4 * 1024 * 1024:
        grown.append(f"memory from {before / 2**20:.1f} to {after / 2**20:.1f} MB")
    for name, most in (("fds", 2), ("tasks", 3), ("channels", 8)):
        low, high = (
            statistics.median(getattr(one, name) for one in part) for part in (early, late)
        )
        hired = workers > 0 and name == "tasks" and high <= workers + _BESIDES
        if high > low + most and not hired:
            grown.append(f"{name} from {low:g} to {high:g}")
    return grown


async def soak(site: Site, messages: int, each: int = 20_000) -> tuple[Part, list[Use]]:
    """Let one consumer handle several rounds of messages. Its connections are closed from time to
    time.
    """
    began = time.monotonic()
    async with site.turns, site.node() as node:
        part = Part("soak", "", version_of(node))
        url = node.vhost_url(f"soak-{uuid.uuid4().hex[:8]}")
        campaign = Campaign(
            url,
            node.management,
            design="raffle-hardened",
            consumers=1,
            concurrency=_WORKERS,
            quiet=site.quiet,
        )
        async with campaign:
            campaign.keep_consumers()
            while part.messages < messages:
                producer = campaign.produce(min(each, messages - part.messages), size=100)
                while producer.is_alive:
                    await asyncio.sleep(5)
                    await blows.close_connections(campaign)
                await campaign.until_calm()
                part.add(await campaign.interim_verdict())
            part.add(await campaign.verdict())
            part.rounds -= 1
            if campaign.lives != 1:
                part.notes.append("the consumer did not live through it")
    part.seconds = time.monotonic() - began
    part.load = f"one consumer, 5 % failing, {part.confirmed / part.seconds:,.0f} a second"
    return part, uses(campaign.samples)


def verdict_on(used: list[Use]) -> str:
    """Describe whether the resources of the consumer have grown."""
    grown = growth(used, workers=_WORKERS)
    return f"failed: grown {', '.join(grown)}" if grown else "flat"
