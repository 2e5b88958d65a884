"""Parts of the long run that need several brokers or none."""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from tests.faults import blows
from tests.faults.campaign import Campaign
from tests.faults.ledger.entry import Kind
from tests.faults.simulation import play
from tests.faults.site import version_of
from tests.faults.storm import storms
from tests.faults.tally import Part
from tests.faults.traffic import add_verdicts
from tests.harness.cluster import Cluster

if TYPE_CHECKING:
    from tests.faults.site import Site

__all__ = ["cluster", "faithful", "restarts", "simulation"]

_FORMS = ("recommended", "raffle-hardened", "ratatoskr-hardened")


def simulation(first: int, seeds: int) -> Part:
    """Run the simulation with a range of seeds."""
    part = Part("simulation", f"{seeds:,} seeds", "embedded")
    began = time.monotonic()
    for seed in range(first, first + seeds):
        part.add(play(seed).verdict)
    part.seconds = time.monotonic() - began
    return part


async def cluster(site: Site) -> list[Part]:
    """Inject faults in the nodes, leaders and links of a cluster of three nodes, while three
    hardened forms are in use.

    The documented form of Ratatoskr is a separate part, because it may lose messages.
    """
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        async with site.turns:
            nodes = Cluster(site.installation, site.timings)
            stack.push_async_callback(asyncio.to_thread, nodes.remove)
            await asyncio.to_thread(nodes.start)
            part = Part("cluster of three", "", version_of(nodes.nodes[0]))
            group = []
            for form in (*_FORMS, "ratatoskr-faithful"):
                urls = nodes.urls(f"c-{uuid.uuid4().hex[:8]}")
                campaign = Campaign(
                    urls[0],
                    nodes.nodes[0].management,
                    design=form,
                    consumers=1,
                    consumer_urls=urls,
                    concurrency=30,
                    slack=5.0,
                    quiet=site.quiet,
                )
                group.append(await stack.enter_async_context(campaign))
                campaign.keep_consumers()
                each = site.messages(4_000)
                campaign.produce(each, urls=urls, rate=each / 120, failing=0.15)
            await group[0].until(lambda: group[0].count(Kind.DONE) > 0)
            for fault in range(8):
                await _cluster_blow(site, fault, nodes, group)
                await asyncio.sleep(site.chance.uniform(0.5, 1.5))
            await group[0].until(lambda: not any(one.is_producing for one in group), 300)
        await asyncio.gather(*(campaign.until_calm() for campaign in group))
        await add_verdicts(part, group[:-1])
        lossy = Part("cluster of three: ratatoskr-faithful", "", part.broker, may_lose=True)
        await add_verdicts(lossy, group[-1:])
    part.load = f"three forms, 15 % failing, partitioned by {nodes.means}"
    lossy.load = "the same cluster"
    part.seconds = lossy.seconds = time.monotonic() - began
    return [part, lossy]


async def _cluster_blow(site: Site, number: int, nodes: Cluster, group: list[Campaign]) -> None:
    every = blows.Together(group)
    match number % 4:
        case 0:
            campaign = site.chance.choice(group[:-1])
            leader = nodes.leader_of(campaign.vhost, campaign.topology.plans[0].queue)
            await blows.kill_node(every, nodes, leader, name="cluster: leader kill -9")
        case 1:
            await blows.cut_off_node(every, nodes, site.chance.randrange(3))
        case 2:
            await blows.kill_node(every, nodes, site.chance.randrange(3))
        case _:
            for campaign in group:
                campaign.keep_consumers()
                await blows.kill_consumer(campaign, site.chance.choice(campaign.workers))


async def faithful(site: Site) -> list[Part]:
    """Count the messages that a documented form loses when its broker is killed in a storm.

    This shows that the checkers detect losses.
    """
    async with site.turns, site.node() as node:
        part = Part("storm: ratatoskr-faithful", "", version_of(node), lossy=True)
        began = time.monotonic()
        async for verdict in storms(node, "ratatoskr-faithful", kills=6, until_lost=True):
            part.add(verdict)
        part.load = f"{part.rounds} kills in storms of 4,000 failures"
        part.seconds = time.monotonic() - began
    return [part, await restarts(site)]


async def restarts(site: Site) -> Part:
    """Restart the broker of documented forms in order while messages are published."""
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        async with site.turns:
            node = await stack.enter_async_context(site.node())
            part = Part("stopped and started: faithful forms", "", version_of(node), may_lose=True)
            group = []
            for form in ("ratatoskr-faithful", "raffle-faithful"):
                url = node.vhost_url(f"f-{uuid.uuid4().hex[:8]}")
                campaign = Campaign(url, node.management, design=form, quiet=site.quiet)
                group.append(await stack.enter_async_context(campaign))
                campaign.keep_consumers()
                each = site.messages(6_000)
                campaign.produce(each, rate=each / 45, failing=0.3)
            await group[0].until(lambda: group[0].count(Kind.DONE) > 0)
            for _ in range(3):
                await asyncio.sleep(site.chance.uniform(1, 3))
                await blows.restart_broker(blows.Together(group), node)
        await asyncio.gather(*(campaign.until_calm() for campaign in group))
        await add_verdicts(part, group)
    part.load = "two faithful forms, 30 % failing"
    part.seconds = time.monotonic() - began
    return part
