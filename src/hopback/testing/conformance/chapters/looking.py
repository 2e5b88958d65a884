"""Looking into a queue: what it costs, and the way that costs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.testing.conformance.chapters.arrangements import V4_0, V4_3
from hopback.testing.conformance.row import Tag, equal, row
from hopback.topology.model import Policy

if TYPE_CHECKING:
    from hopback.testing.conformance.subject import Subject

__all__: list[str] = []


async def _look(subject: Subject, queue: str, times: int, *, count: int = 1) -> None:
    """Take messages and close the channel, so many times."""
    for _ in range(times):
        channel = await subject.open_channel()
        for _ in range(count):
            await subject.take(queue, channel=channel)
        await channel.close()
        await subject.pause(0.01)


@row("7.4a", "Looking 21 times by nack deletes a quorum queue's message on 4.0 only")
async def looked_at_by_nack(subject: Subject) -> None:
    queue = await subject.quorum()
    await subject.put(queue)
    for _ in range(21):
        subject.channel.nack((await subject.take(queue)).tag, requeue=True)
    deleted = V4_0 <= subject.version < V4_3
    await subject.holds(queue, 0 if deleted else 1)
    await subject.stays(queue, 0 if deleted else 1, 0.2)


@row("7.4b", "Looking 21 times by closing deletes a quorum queue's message from 4.0 on")
async def looked_at_by_close(subject: Subject) -> None:
    queue = await subject.quorum()
    await subject.put(queue)
    await _look(subject, queue, 21)
    await subject.holds(queue, 0 if subject.version >= V4_0 else 1)
    await subject.stays(queue, 0 if subject.version >= V4_0 else 1, 0.2)


@row("7.4c", "A classic queue may be looked at any number of times")
async def classic_looked_at(subject: Subject) -> None:
    queue = await subject.classic()
    await subject.put(queue, "1", "2", "3")
    await _look(subject, queue, 25, count=3)
    equal("order", await subject.bodies(queue), ["1", "2", "3"])


@row(
    "7.5",
    "Get and close, with no limit in force, keeps order and content however often",
    Tag.POLICIES,
)
async def safest_look(subject: Subject) -> None:
    queue = await subject.quorum()
    if subject.version >= V4_0:
        await subject.set_policy(Policy(queue, f"^{queue}$", {"delivery-limit": -1}))
    await subject.put(queue, "1", "2", "3", "4")
    await _look(subject, queue, 30, count=3)
    equal("order", await subject.bodies(queue), ["1", "2", "3", "4"])
