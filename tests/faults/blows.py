"""Faults for a campaign. Each function causes one fault, records it and waits for the recovery."""

from __future__ import annotations

import asyncio
import http.client
import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from hopback import RabbitMQ
from tests.faults.ledger.books import BROKER, CONNECTION, PROCESS
from tests.faults.ledger.entry import Kind
from tests.harness.management import ManagementFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from tests.faults.campaign import Campaign, Worker
    from tests.harness.cluster import Cluster
    from tests.harness.rabbitmq import RabbitNode
    from tests.integration.proxy import Proxy

__all__ = [
    "Breakable",
    "Together",
    "close_connections",
    "cut",
    "cut_off_node",
    "delete_queue",
    "kill_broker",
    "kill_consumer",
    "kill_node",
    "memory_alarm",
    "restart_broker",
    "rotate_password",
    "stall",
]


class Breakable(Protocol):
    """A target that records faults. This is one campaign, or all campaigns that share a broker."""

    def fault(self, name: str, scope: str, who: str = "*") -> AbstractAsyncContextManager[None]:
        """Record a fault that lasts until the end of the block."""


class Together:
    """Campaigns that share one broker. A fault of the broker affects all of them."""

    def __init__(self, campaigns: list[Campaign]) -> None:
        self._campaigns = campaigns

    @asynccontextmanager
    async def fault(self, name: str, scope: str, who: str = "*") -> AsyncIterator[None]:
        """Record the fault in all campaigns."""
        async with AsyncExitStack() as stack:
            for campaign in self._campaigns:
                await stack.enter_async_context(campaign.fault(name, scope, who))
            yield


async def kill_consumer(campaign: Campaign, victim: Worker, *, replace: bool = True) -> None:
    """Kill a consumer with SIGKILL and start another one."""
    async with campaign.fault("consumer: kill -9", PROCESS, victim.name):
        victim.kill()
    if replace:
        campaign.keep_consumers()


async def restart_broker(campaign: Breakable, node: RabbitNode) -> None:
    """Stop the broker in order and start it again."""
    async with campaign.fault("broker: restart", BROKER):
        await asyncio.to_thread(node.restart)


async def kill_broker(campaign: Breakable, node: RabbitNode) -> None:
    """Kill the broker with SIGKILL and start it again."""
    async with campaign.fault("broker: kill -9", BROKER):
        await asyncio.to_thread(node.kill)
        await asyncio.to_thread(node.start)


async def kill_node(campaign: Breakable, cluster: Cluster, number: int, *, name: str = "") -> None:
    """Kill one of three nodes with SIGKILL and start it again. The other nodes continue."""
    async with campaign.fault(name or "cluster: node kill -9", BROKER):
        await asyncio.to_thread(cluster.nodes[number].kill)
        await asyncio.sleep(2)
        await asyncio.to_thread(cluster.nodes[number].start)
        await asyncio.to_thread(cluster.until_whole)


async def cut_off_node(
    campaign: Breakable, cluster: Cluster, number: int, seconds: float = 2.0
) -> None:
    """Separate a node from the two others and from its clients. Reconnect it some seconds after the
    other nodes have noticed.
    """
    async with campaign.fault(f"cluster: node cut off ({cluster.means})", BROKER):
        await asyncio.to_thread(cluster.cut_off, number)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(cluster.reconnect, number)
        await asyncio.to_thread(cluster.until_whole)


async def cut(campaign: Campaign, proxy: Proxy, *, after: int | None = None) -> None:
    """Reset all connections, either immediately or after a number of bytes, which may be inside of
    a frame.
    """
    async with campaign.fault("network: cut", CONNECTION):
        if after is None:
            proxy.cut()
        else:
            accepted = proxy.accepted
            proxy.cut_after(after)
            for _ in range(100):
                await asyncio.sleep(0.05)
                if proxy.accepted > accepted:
                    break
            else:
                proxy.cut()


async def stall(campaign: Campaign, proxy: Proxy, seconds: float) -> None:
    """Stop all traffic for some time. The connections stay open."""
    async with campaign.fault("network: stall", CONNECTION):
        proxy.stall()
        await asyncio.sleep(seconds)
        proxy.resume()


async def close_connections(campaign: Campaign) -> int:
    """Close all connections of the virtual host, as an operator would, and return their number."""
    names = await asyncio.to_thread(_connections, campaign)
    if names:
        async with campaign.fault("operator: connections closed", CONNECTION):
            await asyncio.to_thread(_close, campaign, names)
    return len(names)


def _connections(campaign: Campaign) -> list[str]:
    """Return the connections that the HTTP API lists. New connections appear there with a delay."""
    for _ in range(25):
        with suppress(OSError, http.client.HTTPException, ManagementFailed):
            found = campaign.management.call("GET", "/connections")
            names = [one["name"] for one in found if one.get("vhost") == campaign.vhost]
            if names:
                return names
        time.sleep(0.2)
    return []


def _close(campaign: Campaign, names: list[str]) -> None:
    for name in names:
        with suppress(OSError, http.client.HTTPException, ManagementFailed):
            campaign.management.call("DELETE", f"/connections/{quote(name, safe='')}")


async def memory_alarm(campaign: Breakable, node: RabbitNode, seconds: float) -> None:
    """Raise the memory alarm of the broker for some time, which blocks publishers."""
    async with campaign.fault("broker: memory alarm", CONNECTION):
        await asyncio.to_thread(node.ctl, "set_vm_memory_high_watermark", "0.0001")
        await asyncio.sleep(seconds)
        await asyncio.to_thread(node.ctl, "set_vm_memory_high_watermark", "0.4")


async def delete_queue(campaign: Campaign, queue: str, kind: str = "main") -> int:
    """Delete a queue that is being consumed and return the number of deleted messages."""
    async with campaign.fault(f"operator: {kind} queue deleted", CONNECTION):
        connection = await RabbitMQ(campaign.url).connect("operator")
        channel = await connection.open_channel()
        gone = await channel.delete_queue(queue)
        campaign.pen.write(Kind.GONE, queue=queue)
        await connection.close()
    return gone


async def rotate_password(campaign: Campaign) -> None:
    """Change the password that the programs use, and close their connections."""
    async with campaign.fault("operator: password changed", CONNECTION):
        await asyncio.to_thread(campaign.change_password)
        names = await asyncio.to_thread(_connections, campaign)
        await asyncio.to_thread(_close, campaign, names)
        await asyncio.sleep(1.5)  # they try the old password, which is refused
        campaign.tell_password()
