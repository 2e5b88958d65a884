"""The parts of the long run, each within its share of the time."""

from __future__ import annotations

import asyncio
import random
import sys
import time
import uuid
from typing import TYPE_CHECKING

from tests.faults import blows
from tests.faults.campaign import Campaign
from tests.faults.ledger.entry import Kind
from tests.faults.simulation import play
from tests.faults.storm import storms
from tests.faults.tally import Part
from tests.faults.tripwire import Point
from tests.harness.cluster import Cluster
from tests.harness.rabbitmq import RabbitNode
from tests.integration.proxy import Proxy

if TYPE_CHECKING:
    from tests.faults.ledger.checks import Verdict
    from tests.harness.installation import Installation

__all__ = ["cluster", "matrix", "simulation", "storm_of"]

_DESIGNS = ("recommended", "raffle-hardened", "ratatoskr-hardened")
_BLOWS = 8
"""Faults of a round."""
_POINTS = (
    Point.HANDLER,
    Point.RETRY_SENT,
    Point.RETRY_CONFIRMED,
    Point.PARK_SENT,
    Point.PARK_CONFIRMED,
    Point.SETTLING,
    Point.SETTLED,
)


def simulation(first: int, seeds: int, until: float) -> Part:
    """Seed after seed in virtual time."""
    part = Part("simulation", "", "embedded")
    began = time.monotonic()
    for seed in range(first, first + seeds):
        part.add(play(seed).verdict)
        if time.monotonic() > until:
            break
    part.load = f"{part.rounds:,} seeds"
    part.seconds = time.monotonic() - began
    return part


async def matrix(
    installation: Installation, version: str, messages: int, each: int, until: float, seed: int
) -> Part:
    """Rounds of load, each with a fault every few seconds, until all messages were sent."""
    part = Part("fault matrix", "", version)
    began, chance = time.monotonic(), random.Random(seed)
    with RabbitNode(installation=installation) as node:
        while part.messages < messages and time.monotonic() < until:
            design = _DESIGNS[part.rounds % len(_DESIGNS)]
            size = min(each, messages - part.messages)
            part.add(await _round(node, design, size, chance))
            _say(part)
    part.load = f"{part.rounds} rounds, 5 % failing"
    part.seconds = time.monotonic() - began
    return part


async def _round(node: RabbitNode, design: str, messages: int, chance: random.Random) -> Verdict:
    campaign = Campaign(
        node.vhost_url(f"m-{uuid.uuid4().hex[:8]}"),
        node.management,
        design=design,
        consumers=2,
        concurrency=50,
        batch=("audit",) if design == "recommended" and chance.random() < 0.3 else (),
    )
    proxied = chance.random() < 0.34
    async with Proxy(campaign.url) as proxy:
        campaign.consumer_urls = (proxy.url,) if proxied else ()
        async with campaign:
            campaign.keep_consumers()
            producer = campaign.produce(messages, size=100, rate=messages / (_BLOWS * 1.3))
            await campaign.until(lambda: campaign.count(Kind.DONE) > 0)
            for _ in range(_BLOWS):
                await asyncio.sleep(chance.uniform(0.2, 1.0))
                await _blow(campaign, node, proxy if proxied else None, chance)
            await campaign.until(lambda: not producer.is_alive, 300)
            await campaign.until_calm()
            if chance.random() < 0.5:
                await _redrive(campaign, chance)
            return await campaign.verdict()


async def _blow(
    campaign: Campaign, node: RabbitNode, proxy: Proxy | None, chance: random.Random
) -> None:
    """One fault, the cheap ones more often."""
    match chance.choice(_PROXIED if proxy is not None else _DIRECT):
        case "kill":
            campaign.keep_consumers()
            await blows.kill_consumer(campaign, chance.choice(campaign.workers))
        case "point":
            await _die_at_a_point(campaign, chance)
        case "close":
            await blows.close_connections(campaign)
        case "alarm":
            await blows.memory_alarm(campaign, node, 1.0)
        case "restart":
            await blows.restart_broker(campaign, node)
        case "kill broker":
            await blows.kill_broker(campaign, node)
        case "cut" if proxy is not None:
            await blows.cut(campaign, proxy)
        case "cut frame" if proxy is not None:
            await blows.cut(campaign, proxy, after=chance.randint(1, 100_000))
        case "stall" if proxy is not None:
            await blows.stall(campaign, proxy, chance.uniform(0.2, 2.0))


_DIRECT = (*["kill"] * 6, *["point"] * 6, *["close"] * 6, "alarm", "restart", "kill broker")
_PROXIED = (*["kill"] * 2, *["cut"] * 6, *["cut frame"] * 6, *["stall"] * 2, "kill broker")


async def _die_at_a_point(campaign: Campaign, chance: random.Random) -> None:
    """A consumer is replaced by one that kills itself at a step of a move."""
    campaign.keep_consumers()
    await blows.kill_consumer(campaign, chance.choice(campaign.workers), replace=False)
    campaign.keep_consumers(dies=f"{chance.choice(_POINTS)}:{chance.randint(1, 30)}")
    doomed = campaign.workers[-1]
    for _ in range(40):
        if not doomed.is_alive:
            break
        await asyncio.sleep(0.1)
    campaign.keep_consumers()


async def _redrive(campaign: Campaign, chance: random.Random) -> None:
    """Everything that was parked goes back, with an operator who is killed in the middle first."""
    operator = campaign.operate(dies=f"moved:{chance.randint(1, 200)}")
    await campaign.until(lambda: not operator.is_alive, 120)
    campaign.operate()
    await campaign.until_calm()


async def cluster(messages: int, faults: int, until: float, version: str) -> Part:
    """A cluster of three: nodes, leaders and links, one after another."""
    part = Part("cluster of three", "", version)
    began, chance = time.monotonic(), random.Random(3)
    with Cluster() as nodes:
        urls = nodes.urls("proof")
        campaign = Campaign(
            urls[0], nodes.nodes[0].management, consumer_urls=urls, concurrency=30, slack=5.0
        )
        async with campaign:
            campaign.keep_consumers()
            producer = campaign.produce(messages, urls=urls, rate=messages / (faults * 22))
            await campaign.until(lambda: campaign.count(Kind.DONE) > 0)
            while producer.is_alive and time.monotonic() < until:
                await _cluster_blow(campaign, nodes, chance)
                await asyncio.sleep(chance.uniform(1, 3))
            if producer.is_alive:
                producer.kill()
            await campaign.until_calm()
            part.add(await campaign.verdict())
        part.load = f"5 % failing; cut off by {nodes.means}"
    part.seconds = time.monotonic() - began
    return part


async def _cluster_blow(campaign: Campaign, nodes: Cluster, chance: random.Random) -> None:
    match chance.choice(("leader", "node", "cut", "cut", "consumer")):
        case "leader":
            leader = nodes.leader_of("proof", "left")
            await blows.kill_node(campaign, nodes, leader, name="cluster: leader kill -9")
        case "node":
            await blows.kill_node(campaign, nodes, chance.randrange(3))
        case "cut":
            await blows.cut_off_node(campaign, nodes, chance.randrange(3))
        case _:
            campaign.keep_consumers()
            await blows.kill_consumer(campaign, chance.choice(campaign.workers))


async def storm_of(
    design: str, kills: int, until: float, installation: Installation, version: str
) -> Part:
    """A broker killed in storms of failures."""
    lossy = design.endswith("faithful")
    part = Part(f"storm: {design}", "", version, lossy=lossy)
    began = time.monotonic()
    with RabbitNode(installation=installation) as node:
        async for verdict in storms(node, design, kills=kills):
            part.add(verdict)
            _say(part)
            if time.monotonic() > until:
                break
    part.load = f"{part.rounds} kills in storms of 4,000 failures"
    part.seconds = time.monotonic() - began
    return part


def _say(part: Part) -> None:
    """How it goes, for whoever watches."""
    told = f"{part.name}: {part.rounds} rounds, {part.confirmed} confirmed, {part.lost} lost,"
    told += f" {sum(part.faults.values())} faults, broken {part.broken}\n"
    sys.stdout.write(told)
    sys.stdout.flush()
