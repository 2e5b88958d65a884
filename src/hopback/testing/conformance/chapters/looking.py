"""Looking into a queue: what it costs, and the way that costs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.testing.conformance.chapters.arrangements import V4_0, V4_3
from hopback.testing.conformance.expect import equal
from hopback.testing.conformance.row import Tag, row
from hopback.topology.model import Policy

if TYPE_CHECKING:
    from hopback.testing.conformance.bench import Bench

__all__: list[str] = []


async def _look(bench: Bench, queue: str, times: int, *, count: int = 1) -> None:
    """Take messages and close the channel, so many times."""
    for _ in range(times):
        channel = await bench.open_channel()
        for _ in range(count):
            await bench.take(queue, channel=channel)
        await channel.close()
        await bench.pause(0.01)


@row("7.4a", "Looking 21 times by nack deletes a quorum queue's message on 4.0 only")
async def looked_at_by_nack(bench: Bench) -> None:
    queue = await bench.quorum()
    await bench.put(queue)
    for _ in range(21):
        bench.channel.nack((await bench.take(queue)).tag, requeue=True)
    deleted = V4_0 <= bench.version < V4_3
    await bench.holds(queue, 0 if deleted else 1)
    await bench.stays(queue, 0 if deleted else 1, 0.2)


@row("7.4b", "Looking 21 times by closing deletes a quorum queue's message from 4.0 on")
async def looked_at_by_close(bench: Bench) -> None:
    queue = await bench.quorum()
    await bench.put(queue)
    await _look(bench, queue, 21)
    await bench.holds(queue, 0 if bench.version >= V4_0 else 1)
    await bench.stays(queue, 0 if bench.version >= V4_0 else 1, 0.2)


@row("7.4c", "A classic queue may be looked at any number of times")
async def classic_looked_at(bench: Bench) -> None:
    queue = await bench.classic()
    await bench.put(queue, "1", "2", "3")
    await _look(bench, queue, 25, count=3)
    equal("order", await bench.bodies(queue), ["1", "2", "3"])


@row(
    "7.5",
    "Get and close, with no limit in force, keeps order and content however often",
    Tag.POLICIES,
)
async def safest_look(bench: Bench) -> None:
    queue = await bench.quorum()
    if bench.version >= V4_0:
        await bench.set_policy(Policy(queue, f"^{queue}$", {"delivery-limit": -1}))
    await bench.put(queue, "1", "2", "3", "4")
    await _look(bench, queue, 30, count=3)
    equal("order", await bench.bodies(queue), ["1", "2", "3", "4"])
