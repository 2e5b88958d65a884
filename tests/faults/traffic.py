"""Blocks of traffic. Several designs run on one broker while faults are injected, and the queues
are drained at the end.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from tests.faults import blows
from tests.faults.campaign import Campaign
from tests.faults.ledger.entry import Kind
from tests.faults.site import version_of
from tests.faults.tally import Part
from tests.faults.topologies import HARDENED
from tests.faults.tripwire import Point
from tests.integration.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from tests.faults.site import Site
    from tests.harness.rabbitmq import RabbitNode

__all__ = ["add_verdicts", "campaigns_on", "deletions", "matrix", "poison", "storm"]

_POINTS = (
    Point.HANDLER,
    Point.RETRY_SENT,
    Point.RETRY_CONFIRMED,
    Point.PARK_SENT,
    Point.PARK_CONFIRMED,
    Point.SETTLING,
    Point.SETTLED,
)
_BLOWS = (
    *["kill broker"] * 4,
    *["point"] * 6,
    *["kill"] * 3,
    *["close"] * 2,
    *["cut", "cut frame", "stall", "restart", "alarm", "password", "operator"],
)
_WORK_S = 75.0
"""Seconds of traffic in a block. Its faults take about as long."""
_FAILING = 0.15


@asynccontextmanager
async def campaigns_on(
    site: Site, node: RabbitNode, designs: Sequence[str], *, proxied: int = -1, consumers: int = 1
) -> AsyncIterator[tuple[list[Campaign], Proxy]]:
    """Start a campaign for each design on its own virtual host. One of them uses a proxy."""
    group = [
        Campaign(
            node.vhost_url(f"b-{uuid.uuid4().hex[:8]}"),
            node.management,
            design=design,
            consumers=consumers,
            concurrency=50,
            quiet=site.quiet,
            rotates=at != proxied,
        )
        for at, design in enumerate(designs)
    ]
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(Proxy(group[proxied].url))
        if proxied >= 0:
            group[proxied].consumer_urls = (proxy.url,)
        for campaign in group:
            await stack.enter_async_context(campaign)
        yield group, proxy


async def add_verdicts(part: Part, group: Sequence[Campaign]) -> Part:
    """Add the verdicts of all campaigns to a part. A fault of their broker counts only once."""
    of_broker: dict[str, int] = {}
    for campaign in group:
        verdict = await campaign.verdict()
        part.add(verdict)
        for name, count in verdict.faults.items():
            if name.startswith(("broker:", "cluster:")):
                of_broker[name] = max(count, of_broker.get(name, 0))
    part.faults.update(of_broker)
    return part


async def matrix(site: Site) -> Part:
    """Run three designs with all kinds of faults. Their order depends on the number of the block."""
    began = time.monotonic()
    designs = HARDENED[site.number % 2 :: 2]
    proxied = site.number // 2 % len(designs)
    async with AsyncExitStack() as stack:
        async with site.turns:
            node = await stack.enter_async_context(site.node())
            part = Part("fault matrix", "", version_of(node))
            started = campaigns_on(site, node, designs, proxied=proxied)
            group, proxy = await stack.enter_async_context(started)
            each = site.messages(13_000)
            for campaign in group:
                campaign.keep_consumers()
                campaign.produce(each, size=100, failing=_FAILING, rate=each / _WORK_S)
            await group[0].until(lambda: group[0].count(Kind.DONE) > 0)
            await _strike(site, node, group, proxied, proxy)
            await _until_sent(group)
        await asyncio.gather(*(campaign.until_calm() for campaign in group))
        await _operate(site, group)
        await add_verdicts(part, group)
    part.load = f"three of {len(HARDENED)} forms in each block, {_FAILING:.0%} failing"
    part.seconds = time.monotonic() - began
    return part


async def _strike(
    site: Site, node: RabbitNode, group: list[Campaign], proxied: int, proxy: Proxy
) -> None:
    """Inject all faults of a block, one after the other. Consumers that have died are replaced."""
    chance, all_of_them, lined = site.chance, blows.Together(group), group[proxied]
    direct = [campaign for campaign in group if campaign is not lined]
    points = chance.sample(_POINTS, len(_POINTS))
    # In some blocks, this is longer than publishers wait for confirms.
    alarm_s = (1.0, 1.0, 20.0)[site.number % 3]
    breaking: dict[str, Callable[[Campaign], Awaitable[object]]] = {
        "kill broker": lambda _: blows.kill_broker(all_of_them, node),
        "restart": lambda _: blows.restart_broker(all_of_them, node),
        "alarm": lambda _: blows.memory_alarm(all_of_them, node, alarm_s),
        "point": lambda one: _die_at(one, f"{points.pop()}:{chance.randint(1, 20)}"),
        "kill": lambda one: blows.kill_consumer(one, chance.choice(one.workers)),
        "close": blows.close_connections,
        "password": blows.rotate_password,
        "cut": lambda _: blows.cut(lined, proxy),
        "cut frame": lambda _: blows.cut(lined, proxy, after=chance.randint(1, 100_000)),
        "stall": lambda _: blows.stall(lined, proxy, chance.uniform(0.2, 2.0)),
        "operator": lambda _: _begin_operating(site, group[0]),
    }
    for blow in chance.sample(_BLOWS, len(_BLOWS)):
        await asyncio.sleep(chance.uniform(0.1, 1.0))
        for campaign in group:
            campaign.keep_consumers()
        await breaking[blow](chance.choice(direct))


async def _begin_operating(site: Site, campaign: Campaign) -> None:
    """Start an operator that will be killed, and don't wait for it."""
    campaign.operate(dies=_dies(site), discard=_discards(site))


def _discards(site: Site) -> bool:
    """Return True if the operator of this block discards messages. Otherwise it re-drives them."""
    return site.number % 4 >= 2


def _dies(site: Site) -> str:
    """Return the step at which the first operator of a block is killed."""
    return f"{'settling' if _discards(site) else 'moved'}:{site.chance.randint(2, 60)}"


async def _die_at(campaign: Campaign, dies: str) -> None:
    """Replace a consumer with one that kills itself at a certain step, and wait briefly."""
    await blows.kill_consumer(campaign, campaign.workers[0], replace=False)
    campaign.keep_consumers(dies=dies)
    doomed = campaign.workers[-1]
    for _ in range(40):
        if not doomed.is_alive:
            break
        await asyncio.sleep(0.1)


async def _until_sent(group: Sequence[Campaign]) -> None:
    """Wait until all producers have finished. Consumers that have died are replaced."""
    while any(campaign.is_producing for campaign in group):
        for campaign in group:
            campaign.keep_consumers()
        await asyncio.sleep(0.5)


async def _operate(site: Site, group: Sequence[Campaign]) -> None:
    """Let an operator empty the dead-letter queues of one design. The first operator is killed, and
    another one continues.
    """
    campaign = group[0]
    for dies in (_dies(site), ""):
        operator = campaign.operate(dies=dies, discard=_discards(site))
        await campaign.until(lambda operator=operator: not operator.is_alive, 120)  # type: ignore[misc]
    await campaign.until_calm()


async def storm(site: Site) -> Part:
    """Run all hardened forms at once. The broker is killed repeatedly while thousands of messages
    fail.
    """
    began = time.monotonic()
    each, kills = site.messages(1_500), 4
    async with AsyncExitStack() as stack:
        async with site.turns:
            node = await stack.enter_async_context(site.node())
            part = Part("storm", "", version_of(node))
            group, _ = await stack.enter_async_context(campaigns_on(site, node, HARDENED))
            for _ in range(kills):
                await _rage(site, node, group, each)
        await asyncio.gather(*(campaign.until_calm() for campaign in group))
        await add_verdicts(part, group)
    part.load = f"{kills} kills in storms of {each * len(group):,} failures, {len(HARDENED)} forms"
    part.seconds = time.monotonic() - began
    return part


async def _rage(site: Site, node: RabbitNode, group: Sequence[Campaign], each: int) -> None:
    """Publish all messages before the consumers start, and kill the broker while they fail."""
    for campaign in group:
        for worker in campaign.workers:
            await asyncio.to_thread(worker.stop)
        campaign.produce(each, fate="fail-once")
    await group[0].until(lambda: not any(one.is_producing for one in group), 120)
    before = sum(campaign.count(Kind.RETRIED) for campaign in group)
    moment = site.chance.uniform(0.1, 0.7) * each * len(group)
    for campaign in group:
        campaign.keep_consumers()
    await group[0].until(
        lambda: sum(one.count(Kind.RETRIED) for one in group) - before > moment, every=0.01
    )
    await blows.kill_broker(blows.Together(list(group)), node)


_STARTED_S = 15.0
"""Seconds until all queues dead-letter again after a restart of a node, which is three ticks."""


async def deletions(site: Site) -> Part:
    """Delete queues of each kind while they are being consumed. All other messages must be handled."""
    began = time.monotonic()
    designs = ("raffle-hardened", "ratatoskr-hardened")
    async with AsyncExitStack() as stack:
        async with site.turns:
            node = await stack.enter_async_context(site.node())
            part = Part("queues deleted", "", version_of(node))
            group, _ = await stack.enter_async_context(campaigns_on(site, node, designs))
            each = site.messages(8_000)
            for campaign in group:
                campaign.keep_consumers()
                campaign.produce(each, failing=0.3, rate=each / 40)
                await campaign.until(lambda campaign=campaign: campaign.count(Kind.PARKED) > 5)  # type: ignore[misc]
            # Kill the broker before the deletions. After a reconnect, a consumer would declare the
            # queues anyway.
            await blows.kill_broker(blows.Together(group), node)
            # If a retry queue is deleted while its dead-lettering starts, RabbitMQ 4.0.5 fails. The
            # worker does not find the queue and terminates the supervisor of all workers. All such
            # queues of the node then respond with 541 until it is restarted. Hopback cannot repair
            # this.
            await asyncio.sleep(_STARTED_S)
            for kind in ("retry", "dead-letter", "main", "dead-letter", "retry"):
                for campaign in group:
                    await blows.delete_queue(campaign, _queue_of(campaign, kind), kind)
                await asyncio.sleep(site.chance.uniform(2, 4))
            await _until_sent(group)
        await asyncio.gather(*(campaign.until_calm() for campaign in group))
        await add_verdicts(part, group)
    part.load = "two forms, 30 % failing"
    part.seconds = time.monotonic() - began
    return part


def _queue_of(campaign: Campaign, kind: str) -> str:
    (plan,) = campaign.topology.plans
    if kind == "retry":
        return plan.tiers[0].routes[0].queue
    return plan.queue if kind == "main" else plan.parking.queue


async def poison(site: Site) -> Part:
    """Publish messages that kill the process that handles them, and other messages. Only the first
    kind may be parked.
    """
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        async with site.turns:
            node = await stack.enter_async_context(site.node())
            part = Part("poison", "", version_of(node))
            group, _ = await stack.enter_async_context(
                campaigns_on(site, node, ("recommended-limit-10",), consumers=2)
            )
            for campaign in group:
                campaign.keep_consumers()
                campaign.produce(site.messages(3_000), failing=0.05, rate=200)
                campaign.produce(2, fate="poison")
            await _until_sent(group)
        await asyncio.gather(*(campaign.until_calm() for campaign in group))
        await add_verdicts(part, group)
    part.load = "two among the others, a delivery limit of 10, two processes"
    part.seconds = time.monotonic() - began
    return part
