"""Positions of returned messages, and the effects of reading a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.topology.model import Policy, QueueType
from tests.conformance.suite.chapters.arrangements import BOTH, V4_0, V4_3
from tests.conformance.suite.row import Tag, equal, row

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hopback.broker.port import Channel
    from hopback.fields import Headers
    from tests.conformance.suite.subject import Subject

_KEPT, _TAIL = "123456", "456123"


async def _nack_in_order(channel: Channel, tags: list[int]) -> None:
    for tag in tags:
        channel.nack(tag, requeue=True)


async def _nack_in_reverse(channel: Channel, tags: list[int]) -> None:
    for tag in reversed(tags):
        channel.nack(tag, requeue=True)


async def _nack_multiple(channel: Channel, tags: list[int]) -> None:
    channel.nack(tags[-1], requeue=True, multiple=True)


async def _close(channel: Channel, _: list[int]) -> None:
    await channel.close()


async def _order(
    subject: Subject,
    kind: QueueType,
    return_: Callable[[Channel, list[int]], Awaitable[None]],
    arguments: Headers | None = None,
) -> str:
    """Return the order of six messages after three were taken and returned."""
    queue = await subject.queue(kind, arguments)
    await subject.put(queue, *_KEPT)
    channel = await subject.open_channel()
    tags = [(await subject.take(queue, channel=channel)).tag for _ in range(3)]
    await return_(channel, tags)
    await subject.holds(queue, 6)
    await channel.close()
    return "".join(await subject.bodies(queue))


@row("7.2a", "A classic queue keeps its order for every way of returning messages")
async def classic_order(subject: Subject) -> None:
    for way in (_nack_in_order, _nack_in_reverse, _nack_multiple, _close):
        equal(way.__name__, await _order(subject, QueueType.CLASSIC, way), _KEPT)


@row(
    "7.2b",
    "A quorum queue returns messages nacked in order to the tail before 4.0, to the head "
    "from 4.0 on",
)
async def quorum_nack_in_order(subject: Subject) -> None:
    expected = subject.since({"3.0": _TAIL, "4.0": _KEPT})
    for way in (_nack_in_order, _nack_multiple):
        equal(way.__name__, await _order(subject, QueueType.QUORUM, way), expected)


@row("7.2c", "Messages nacked in reverse are in reverse order in a quorum queue")
async def quorum_nack_in_reverse(subject: Subject) -> None:
    expected = subject.since({"3.0": "456321", "4.0": "321456"})
    equal("order", await _order(subject, QueueType.QUORUM, _nack_in_reverse), expected)


@row("7.2d", "Closing the channel keeps the order of a quorum queue")
async def quorum_close(subject: Subject) -> None:
    equal("order", await _order(subject, QueueType.QUORUM, _close), _KEPT)


@row("5.7a", "A quorum queue with a limit returns messages to its head")
async def head_with_limit(subject: Subject) -> None:
    found = await _order(subject, QueueType.QUORUM, _nack_in_order, {"x-delivery-limit": 50})
    equal("order", found, _KEPT)


@row("5.7b", "A quorum queue without a limit returns nacked messages to its tail before 4.3")
async def tail_without_limit(subject: Subject) -> None:
    none: Headers = subject.since({"3.0": {}, "4.0": {"x-delivery-limit": -1}})
    expected = subject.since({"3.0": _TAIL, "4.3": _KEPT})
    equal("order", await _order(subject, QueueType.QUORUM, _nack_in_order, none), expected)


@row("7.1", "Unacked messages are invisible to others and return as redelivered")
async def held_and_returned(subject: Subject) -> None:
    for kind in BOTH:
        queue = await subject.queue(kind)
        await subject.put(queue)
        held = await subject.take(queue)
        equal("redelivered at first", held.redelivered, False)
        equal("ready", await subject.count(queue), 0)
        other = await subject.open_channel()
        equal("get by another channel", await other.get(queue), None)
        subject.channel.nack(held.tag, requeue=True)
        again = await subject.take(queue, channel=other)
        equal("redelivered", again.redelivered, True)


@row("7.2e", "A message that is taken and returned alone is at the head again each time")
async def one_at_a_time(subject: Subject) -> None:
    for kind in BOTH:
        queue = await subject.queue(
            kind, {"x-delivery-limit": 50} if kind is QueueType.QUORUM else {}
        )
        await subject.put(queue, "1", "2", "3")
        for _ in range(3):
            held = await subject.take(queue)
            equal("body", held.body, b"1")
            subject.channel.nack(held.tag, requeue=True)
            await subject.holds(queue, 3)


async def _read(subject: Subject, queue: str, times: int, *, count: int = 1) -> None:
    """Get messages and close the channel, repeatedly."""
    for _ in range(times):
        channel = await subject.open_channel()
        for _ in range(count):
            await subject.take(queue, channel=channel)
        await channel.close()
        await subject.pause(0.01)


@row("7.4a", "Browsing 21 times by nack deletes a quorum queue's message on 4.0 only")
async def read_by_nack(subject: Subject) -> None:
    queue = await subject.quorum()
    await subject.put(queue)
    for _ in range(21):
        subject.channel.nack((await subject.take(queue)).tag, requeue=True)
    deleted = V4_0 <= subject.version < V4_3
    await subject.holds(queue, 0 if deleted else 1)
    await subject.stays(queue, 0 if deleted else 1, 0.2)


@row(
    "7.4b",
    "Browsing 21 times by closing the channel deletes a quorum queue's message from 4.0 on",
)
async def read_by_close(subject: Subject) -> None:
    queue = await subject.quorum()
    await subject.put(queue)
    await _read(subject, queue, 21)
    await subject.holds(queue, 0 if subject.version >= V4_0 else 1)
    await subject.stays(queue, 0 if subject.version >= V4_0 else 1, 0.2)


@row("7.4c", "A classic queue can be browsed any number of times")
async def read_classic(subject: Subject) -> None:
    queue = await subject.classic()
    await subject.put(queue, "1", "2", "3")
    await _read(subject, queue, 25, count=3)
    equal("order", await subject.bodies(queue), ["1", "2", "3"])


@row(
    "7.5",
    "Without a limit, get and close keep order and content any number of times",
    Tag.POLICIES,
)
async def safest_look(subject: Subject) -> None:
    queue = await subject.quorum()
    if subject.version >= V4_0:
        await subject.set_policy(Policy(queue, f"^{queue}$", {"delivery-limit": -1}))
    await subject.put(queue, "1", "2", "3", "4")
    await _read(subject, queue, 30, count=3)
    equal("order", await subject.bodies(queue), ["1", "2", "3", "4"])
