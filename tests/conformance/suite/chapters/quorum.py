"""Quorum queues: delivery counts and limits, safe dead-lettering, priorities, delayed retry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.errors import Nacked
from hopback.topology.model import QueueType
from tests.conformance.suite.chapters.arrangements import (
    AT_LEAST_ONCE,
    V3_12,
    V4_0,
    V4_3,
    deaths,
    lap,
    pair,
    reject_loop,
    to,
)
from tests.conformance.suite.row import Tag, equal, expect, row

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hopback.broker.port import Channel
    from hopback.fields import FieldValue, Headers
    from hopback.message import Delivery
    from tests.conformance.suite.subject import Subject


async def _by_nack(channel: Channel, delivery: Delivery) -> None:
    channel.nack(delivery.tag, requeue=True)
    await channel.close()


async def _by_reject(channel: Channel, delivery: Delivery) -> None:
    channel.reject(delivery.tag, requeue=True)
    await channel.close()


async def _by_close(channel: Channel, _: Delivery) -> None:
    await channel.close()


async def _by_recover(channel: Channel, _: Delivery) -> None:
    await channel.recover()
    await channel.close()


async def _return(
    subject: Subject, queue: str, way: Callable[[Channel, Delivery], Awaitable[None]]
) -> Delivery:
    """Get the message on a separate channel and return it in that way."""
    channel = await subject.open_channel()
    delivery = await subject.take(queue, channel=channel)
    await way(channel, delivery)
    return delivery


@row(
    "5.1",
    "From 4.0 on a message is removed after 21 deliveries. Before, there is no limit",
)
async def default_limit(subject: Subject) -> None:
    queue, dead = await pair(subject, QueueType.QUORUM)
    await subject.put(queue)
    for _ in range(21):
        await _return(subject, queue, _by_reject)
    if subject.version < V4_0:
        await subject.holds(queue, 1)
        await _return(subject, queue, _by_reject)
        await subject.stays(dead, 0, 0.1)
    else:
        equal("reason", deaths(await subject.take_done(dead))[0]["reason"], "delivery_limit")
        await subject.stays(queue, 0, 0.1)


@row("5.1b", "Above the limit a message without a dead-letter exchange is deleted")
async def delete_over_the_limit(subject: Subject) -> None:
    queue = await subject.quorum({"x-delivery-limit": 1})
    await subject.put(queue)
    for _ in range(2):
        await _return(subject, queue, _by_reject)
    await subject.holds(queue, 0)
    await subject.stays(queue, 0)


def _count(delivery: Delivery, name: str = "x-delivery-count") -> FieldValue:
    return delivery.properties.headers.get(name)


@row("5.2a", "x-delivery-count starts at 0 before 3.12. From then on it is absent at first")
async def first_delivery_count(subject: Subject) -> None:
    queue = await subject.quorum()
    await subject.put(queue)
    found = [_count(await _return(subject, queue, _by_close)) for _ in range(3)]
    equal("x-delivery-count", found, [0 if subject.version < V3_12 else None, 1, 2])


@row("5.2e", "The first delivery to a consumer has no x-delivery-count on any version")
async def first_count_of_a_consumer(subject: Subject) -> None:
    queue = await subject.quorum()
    await subject.put(queue, "waiting")
    found: list[FieldValue] = []
    channel = await subject.open_channel()
    await channel.consume(queue, lambda delivery: found.append(_count(delivery)))
    await subject.put(queue, "caught")

    async def both() -> bool:
        return len(found) == 2

    await subject.eventually(both, "two deliveries")
    await channel.close()
    await subject.holds(queue, 2)
    found += [_count(await subject.take(queue)) for _ in range(2)]
    equal("x-delivery-count", found, [None, None, 1, 1])


@row("5.2b", "On 4.3 x-delivery-count counts only failures, x-acquired-count every return")
async def counts_by_kind(subject: Subject) -> None:
    queue = await subject.quorum()
    await subject.put(queue)
    await _return(subject, queue, _by_nack)
    await _return(subject, queue, _by_reject)
    found = await subject.take_done(queue)
    equal("x-delivery-count", _count(found), 2 if subject.version < V4_3 else 1)
    acquired = 2 if subject.version >= V4_3 else None
    equal("x-acquired-count", _count(found, "x-acquired-count"), acquired)


@row("5.2c", "A published x-delivery-count is visible at the first delivery from 4.0 on")
async def stale_count(subject: Subject) -> None:
    queue = await subject.quorum()
    await subject.put(queue, headers={"x-delivery-count": 7})
    equal("count", _count(await subject.take_done(queue)), 0 if subject.version < V3_12 else 7)


@row(
    "5.2d",
    "On 4.0 x-delivery-count survives dead-lettering. Before, it restarts",
)
async def count_through_laps(subject: Subject) -> None:
    main, _ = await reject_loop(subject, QueueType.QUORUM, 10)
    await subject.put(main)
    found = [_count(await lap(subject, main)) for _ in range(3)]
    expected: list[FieldValue] = subject.since(
        {"3.0": [0, 0, 0], "4.0": [None, 1, 2], "4.3": [None, None, None]}
    )
    equal("x-delivery-count", found, expected)


@row("5.2f", "On 4.0 a count that survived dead-lettering decreases at the next return")
async def count_after_return(subject: Subject) -> None:
    main, _ = await reject_loop(subject, QueueType.QUORUM, 10)
    await subject.put(main)
    for _ in range(3):
        await lap(subject, main)
    before = await subject.take(main)
    subject.channel.nack(before.tag, requeue=True)
    found = [_count(before), _count(await subject.take_done(main))]
    expected: list[FieldValue] = subject.since(
        {"3.0": [0, 1], "4.0": [3, 1], "4.3": [None, None]},
    )
    equal("x-delivery-count", found, expected)


_COUNTS = ("x-delivery-count", "x-acquired-count")


async def _counts_of_three(subject: Subject, queue: str) -> list[tuple[FieldValue, ...]]:
    """Return both counts of a message on three deliveries. Each channel is closed without ack."""
    deliveries = [await _return(subject, queue, _by_close) for _ in range(3)]
    return [tuple(_count(delivery, name) for name in _COUNTS) for delivery in deliveries]


@row(
    "5.2g",
    "From 4.0 on the counts of a returned message survive dead-lettering by max-length",
)
async def counts_through_maxlen(subject: Subject) -> None:
    queue, dead = await pair(subject, QueueType.QUORUM, QueueType.QUORUM, max_length=1)
    await subject.put(queue)
    await _return(subject, queue, _by_close)
    await subject.holds(queue, 1)
    await subject.put(queue, "pushes")
    expected: list[tuple[FieldValue, ...]] = subject.since(
        {
            "3.0": [(0, None), (1, None), (2, None)],
            "4.0": [(1, None), (1, None), (2, None)],
            "4.3": [(1, 1), (2, 1), (3, 2)],
        }
    )
    equal("counts", await _counts_of_three(subject, dead), expected)


@row("5.2h", "On 4.0 the count of a message that was returned and rejected is higher by one")
async def counts_through_rejection(subject: Subject) -> None:
    queue, dead = await pair(subject, QueueType.QUORUM, QueueType.QUORUM)
    await subject.put(queue)
    await _return(subject, queue, _by_close)
    await lap(subject, queue)
    expected: list[tuple[FieldValue, ...]] = subject.since(
        {
            "3.0": [(0, None), (1, None), (2, None)],
            "4.0": [(2, None), (1, None), (2, None)],
            "4.3": [(1, 1), (2, 1), (3, 2)],
        }
    )
    equal("counts", await _counts_of_three(subject, dead), expected)


async def _survives(subject: Subject, way: Callable[[Channel, Delivery], Awaitable[None]]) -> bool:
    """Return whether a message with limit 1 remains after two such returns."""
    queue, dead = await pair(subject, QueueType.QUORUM, delivery_limit=1)
    await subject.put(queue)
    await _return(subject, queue, way)
    await _return(subject, queue, way)

    async def settled() -> int:
        return await subject.count(queue) + await subject.count(dead)

    await subject.eventually(settled, "an end of the returns")
    return await subject.count(queue) == 1


@row("5.3a", "nack with requeue counts towards the limit before 4.3")
async def nack_counts(subject: Subject) -> None:
    equal("survives", await _survives(subject, _by_nack), subject.version >= V4_3)


@row("5.3b", "reject with requeue counts towards the limit on every version")
async def reject_counts(subject: Subject) -> None:
    equal("survives", await _survives(subject, _by_reject), False)


@row("5.3c", "A closed channel counts towards the limit on every version")
async def close_counts(subject: Subject) -> None:
    equal("survives", await _survives(subject, _by_close), False)


@row("5.3d", "recover counts towards the limit before 4.3")
async def recover_counts(subject: Subject) -> None:
    equal("survives", await _survives(subject, _by_recover), subject.version >= V4_3)


@row("5.3e", "All prefetched messages of a crashing consumer are counted")
async def count_of_prefetch(subject: Subject) -> None:
    queue = await subject.quorum()
    await subject.put(queue, "1", "2", "3")
    connection = await subject.connect()
    channel = await connection.open_channel()
    got: list[bytes] = []
    await channel.consume(queue, lambda delivery: got.append(delivery.body))

    async def all_there() -> bool:
        return len(got) == 3

    await subject.eventually(all_there, "three deliveries")
    await connection.close()
    await subject.holds(queue, 3)
    equal("counts", [_count(await subject.take(queue)) for _ in range(3)], [1, 1, 1])


@row(
    "5.5a",
    "x-delivery-limit -1 means no limit from 4.0 on. Before, the first return deletes",
)
async def negative_limit(subject: Subject) -> None:
    queue = await subject.quorum({"x-delivery-limit": -1})
    await subject.put(queue)
    await _return(subject, queue, _by_reject)
    if subject.version < V4_0:
        await subject.stays(queue, 0, 0.3)
        return
    for _ in range(24):
        await _return(subject, queue, _by_reject)
    await subject.holds(queue, 1)


@row("5.5b", "x-delivery-limit 0 removes the message at its first return")
async def zero_limit(subject: Subject) -> None:
    queue, dead = await pair(subject, QueueType.QUORUM, delivery_limit=0)
    await subject.put(queue)
    await _return(subject, queue, _by_reject)
    equal("reason", deaths(await subject.take_done(dead))[0]["reason"], "delivery_limit")


@row("5.5c", "With a very large x-delivery-limit returns are harmless on every version")
async def large_limit(subject: Subject) -> None:
    queue = await subject.quorum({"x-delivery-limit": 1_000_000_000})
    await subject.put(queue, "1", "2", "3")
    for _ in range(25):
        channel = await subject.open_channel()
        held = [(await subject.take(queue, channel=channel)).body for _ in range(3)]
        equal("order", held, [b"1", b"2", b"3"])
        await channel.close()
    await subject.holds(queue, 3)


@row(
    "5.8a",
    "at-least-once holds a dead letter without target invisibly and delivers it after the repair",
    Tag.SLOW,
)
async def held_until_repaired(subject: Subject) -> None:
    dead = subject.name("dead")
    queue = await subject.quorum({**AT_LEAST_ONCE, **to(dead)})
    await subject.put(queue)
    await lap(subject, queue)
    await subject.stays(queue, 0, 0.5)
    equal("there", await subject.channel.get(queue), None)
    await subject.classic(name=dead)
    found = await subject.take_done(dead, within=3 * subject.timings.dead_letter_retry + 10)
    equal("reason", deaths(found)[0]["reason"], "rejected")


@row(
    "5.8b",
    "at-least-once without overflow reject-publish falls back, and the dead letter is lost",
    Tag.SLOW,
)
async def strategy_falls_back(subject: Subject) -> None:
    dead = subject.name("dead")
    queue = await subject.quorum({"x-dead-letter-strategy": "at-least-once", **to(dead)})
    await subject.put(queue)
    await lap(subject, queue)
    await subject.pause(0.3)
    await subject.classic(name=dead)
    await subject.stays(dead, 0, 2 * subject.timings.dead_letter_retry + 1)


@row("5.8c", "at-least-once delivers to an existing target, with x-death")
async def delivery_at_least_once(subject: Subject) -> None:
    for target in (QueueType.CLASSIC, QueueType.QUORUM):
        dead = await subject.queue(target)
        queue = await subject.quorum({**AT_LEAST_ONCE, **to(dead, message_ttl=50)})
        await subject.put(queue)
        found = await subject.take_done(dead)
        equal("reason", deaths(found)[0]["reason"], "expired")
        await subject.stays(dead, 0, 0.1)


@row(
    "5.13a",
    "Quorum queues ignore priority before 4.0, have two classes on 4.0 and all levels on 4.3",
)
async def quorum_priorities(subject: Subject) -> None:
    queue = await subject.quorum()
    for priority in (1, 3, 9, 6):
        await subject.put(queue, str(priority), priority=priority)
    await subject.put(queue, "none")
    found = await subject.bodies(queue)
    if subject.version < V4_0:
        equal("order", found, ["1", "3", "9", "6", "none"])
    elif subject.version < V4_3:
        equal("first", found[0], "9")
        equal("high", [body for body in found if body in "96"], ["9", "6"])
        equal("normal", [body for body in found if body not in "96"], ["1", "3", "none"])
    else:
        equal("order", found, ["9", "6", "none", "3", "1"])


@row(
    "5.13b", "A classic queue with x-max-priority delivers by priority, and no priority counts as 0"
)
async def classic_priorities(subject: Subject) -> None:
    queue = await subject.classic({"x-max-priority": 5})
    await subject.put(queue, "none")
    for priority in (1, 9, 3, 5, 0):
        await subject.put(queue, str(priority), priority=priority)
    equal("order", await subject.bodies(queue), ["9", "5", "3", "1", "none", "0"])


@row("5.13c", "A classic queue without x-max-priority ignores priority")
async def no_priorities(subject: Subject) -> None:
    queue = await subject.classic()
    for priority in (1, 9, 3):
        await subject.put(queue, str(priority), priority=priority)
    equal("order", await subject.bodies(queue), ["1", "9", "3"])


@row("5.10", "A full quorum queue with reject-publish refuses messages near its limit")
async def full_quorum(subject: Subject) -> None:
    queue = await subject.quorum({"x-max-length": 2, "x-overflow": "reject-publish"})
    for number in range(20):
        try:
            await subject.put(queue, str(number))
        except Nacked:
            break
        await subject.pause(0.05)
    found = await subject.bodies(queue)
    expect(2 <= len(found) < 20, f"it refuses near its limit of 2, not at {len(found)}")
    equal("kept", found, [str(number) for number in range(len(found))])


def _delay_arguments(kind: str, least_ms: int, most_ms: int) -> Headers:
    return {
        "x-delayed-retry-type": kind,
        "x-delayed-retry-min": least_ms,
        "x-delayed-retry-max": most_ms,
    }


@row("5.12a", "A rejected message waits for min times its failures, at most max", since=V4_3)
async def grows_with_failures(subject: Subject) -> None:
    queue = await subject.quorum(_delay_arguments("failed", 500, 1200))
    await subject.put(queue)
    held = await subject.take(queue)
    for least in (0.5, 1.0, 1.2, 1.2):
        subject.channel.reject(held.tag, requeue=True)
        start = subject.facilities.now()
        held = await subject.take(queue)
        waited = subject.facilities.now() - start
        expect(least - 0.02 <= waited < least + 0.45, f"it waits {least} s, not {waited:.3f} s")


@row("5.12b", "Type failed does not delay nack; type returned does not delay reject", since=V4_3)
async def delay_by_type(subject: Subject) -> None:
    for kind, by_nack in (("failed", True), ("returned", False)):
        queue = await subject.quorum(_delay_arguments(kind, 60_000, 60_000))
        await subject.put(queue)
        held = await subject.take(queue)
        if by_nack:
            subject.channel.nack(held.tag, requeue=True)
        else:
            subject.channel.reject(held.tag, requeue=True)
        await subject.take_done(queue)


@row("5.12c", "A delayed message is not counted as ready and does not delay others", since=V4_3)
async def delay_is_invisible(subject: Subject) -> None:
    queue = await subject.quorum(_delay_arguments("all", 1500, 1500))
    await subject.put(queue, "delayed", "next")
    subject.channel.nack((await subject.take(queue)).tag, requeue=True)
    await subject.holds(queue, 1)
    equal("next", await subject.bodies(queue), ["next"])
    equal("delayed", (await subject.take_done(queue)).body, b"delayed")


@row("5.12d", "Before 4.3 the arguments of delayed retry are accepted and ignored", until=V4_3)
async def no_delay_before(subject: Subject) -> None:
    queue = await subject.quorum(_delay_arguments("all", 60_000, 60_000))
    await subject.put(queue)
    subject.channel.reject((await subject.take(queue)).tag, requeue=True)
    await subject.holds(queue, 1)
