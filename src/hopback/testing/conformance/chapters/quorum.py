"""Quorum queues: delivery counts and limits, safe dead-lettering, priorities."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.errors import Nacked
from hopback.testing.conformance.chapters.arrangements import (
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
from hopback.testing.conformance.expect import equal, that
from hopback.testing.conformance.row import Tag, row
from hopback.topology.model import QueueType

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hopback.broker.port import Channel
    from hopback.fields import FieldValue
    from hopback.message import Delivery
    from hopback.testing.conformance.bench import Bench

__all__: list[str] = []


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
    bench: Bench, queue: str, way: Callable[[Channel, Delivery], Awaitable[None]]
) -> Delivery:
    """Take the message on a channel of its own and give it back that way."""
    channel = await bench.open_channel()
    delivery = await bench.take(queue, channel=channel)
    await way(channel, delivery)
    return delivery


@row("5.1", "From 4.0 on a message is gone after 21 deliveries; before there is no limit")
async def default_limit(bench: Bench) -> None:
    queue, dead = await pair(bench, QueueType.QUORUM)
    await bench.put(queue)
    for _ in range(21):
        await _return(bench, queue, _by_reject)
    if bench.version < V4_0:
        await bench.holds(queue, 1)
        await _return(bench, queue, _by_reject)
        await bench.stays(dead, 0, 0.1)
    else:
        equal("reason", deaths(await bench.take_done(dead))[0]["reason"], "delivery_limit")
        await bench.stays(queue, 0, 0.1)


@row("5.1b", "Over its limit and without a dead-letter exchange a message is deleted")
async def deleted_over_the_limit(bench: Bench) -> None:
    queue = await bench.quorum({"x-delivery-limit": 1})
    await bench.put(queue)
    for _ in range(2):
        await _return(bench, queue, _by_reject)
    await bench.holds(queue, 0)
    await bench.stays(queue, 0)


def _count(delivery: Delivery, name: str = "x-delivery-count") -> FieldValue:
    return delivery.properties.headers.get(name)


@row("5.2a", "x-delivery-count begins with 0 before 3.12 and is absent at first from then on")
async def first_delivery_count(bench: Bench) -> None:
    queue = await bench.quorum()
    await bench.put(queue)
    found = [_count(await _return(bench, queue, _by_close)) for _ in range(3)]
    equal("x-delivery-count", found, [0 if bench.version < V3_12 else None, 1, 2])


@row("5.2e", "What a consumer gets for the first time has no x-delivery-count on any version")
async def first_count_of_a_consumer(bench: Bench) -> None:
    queue = await bench.quorum()
    await bench.put(queue, "waiting")
    found: list[FieldValue] = []
    channel = await bench.open_channel()
    await channel.consume(queue, lambda delivery: found.append(_count(delivery)))
    await bench.put(queue, "caught")

    async def both() -> bool:
        return len(found) == 2

    await bench.eventually(both, "two deliveries")
    await channel.close()
    await bench.holds(queue, 2)
    found += [_count(await bench.take(queue)) for _ in range(2)]
    equal("x-delivery-count", found, [None, None, 1, 1])


@row("5.2b", "On 4.3 x-delivery-count counts failures only, x-acquired-count every return")
async def counts_by_kind(bench: Bench) -> None:
    queue = await bench.quorum()
    await bench.put(queue)
    await _return(bench, queue, _by_nack)
    await _return(bench, queue, _by_reject)
    found = await bench.take_done(queue)
    equal("x-delivery-count", _count(found), 2 if bench.version < V4_3 else 1)
    acquired = 2 if bench.version >= V4_3 else None
    equal("x-acquired-count", _count(found, "x-acquired-count"), acquired)


@row("5.2c", "A published x-delivery-count is shown on the first delivery from 4.0 on")
async def stale_count(bench: Bench) -> None:
    queue = await bench.quorum()
    await bench.put(queue, headers={"x-delivery-count": 7})
    equal("count", _count(await bench.take_done(queue)), 0 if bench.version < V3_12 else 7)


@row("5.2d", "On 4.0 x-delivery-count travels through dead-lettering; before it begins anew")
async def travelling_count(bench: Bench) -> None:
    main, _ = await reject_loop(bench, QueueType.QUORUM, 10)
    await bench.put(main)
    found = [_count(await lap(bench, main)) for _ in range(3)]
    expected: list[FieldValue] = bench.since(
        {"3.0": [0, 0, 0], "4.0": [None, 1, 2], "4.3": [None, None, None]}
    )
    equal("x-delivery-count", found, expected)


@row("5.2f", "On 4.0 the count that came through dead-lettering falls back with the next return")
async def falling_count(bench: Bench) -> None:
    main, _ = await reject_loop(bench, QueueType.QUORUM, 10)
    await bench.put(main)
    for _ in range(3):
        await lap(bench, main)
    before = await bench.take(main)
    bench.channel.nack(before.tag, requeue=True)
    found = [_count(before), _count(await bench.take_done(main))]
    expected: list[FieldValue] = bench.since(
        {"3.0": [0, 1], "4.0": [3, 1], "4.3": [None, None]},
    )
    equal("x-delivery-count", found, expected)


_COUNTS = ("x-delivery-count", "x-acquired-count")


async def _counts_of_three(bench: Bench, queue: str) -> list[tuple[FieldValue, ...]]:
    """Both counts of a message on three deliveries, each ended by closing its channel."""
    looks = [await _return(bench, queue, _by_close) for _ in range(3)]
    return [tuple(_count(look, name) for name in _COUNTS) for look in looks]


@row("5.2g", "Returned once and then pushed out, a message carries its counts on from 4.0")
async def counts_through_maxlen(bench: Bench) -> None:
    queue, dead = await pair(bench, QueueType.QUORUM, QueueType.QUORUM, max_length=1)
    await bench.put(queue)
    await _return(bench, queue, _by_close)
    await bench.holds(queue, 1)
    await bench.put(queue, "pushes")
    expected: list[tuple[FieldValue, ...]] = bench.since(
        {
            "3.0": [(0, None), (1, None), (2, None)],
            "4.0": [(1, None), (1, None), (2, None)],
            "4.3": [(1, 1), (2, 1), (3, 2)],
        }
    )
    equal("counts", await _counts_of_three(bench, dead), expected)


@row("5.2h", "Returned once and then rejected, a message carries on 4.0 one count more")
async def counts_through_rejection(bench: Bench) -> None:
    queue, dead = await pair(bench, QueueType.QUORUM, QueueType.QUORUM)
    await bench.put(queue)
    await _return(bench, queue, _by_close)
    await lap(bench, queue)
    expected: list[tuple[FieldValue, ...]] = bench.since(
        {
            "3.0": [(0, None), (1, None), (2, None)],
            "4.0": [(2, None), (1, None), (2, None)],
            "4.3": [(1, 1), (2, 1), (3, 2)],
        }
    )
    equal("counts", await _counts_of_three(bench, dead), expected)


async def _survives(bench: Bench, way: Callable[[Channel, Delivery], Awaitable[None]]) -> bool:
    """Whether a message with limit 1 is still there after two such returns."""
    queue, dead = await pair(bench, QueueType.QUORUM, delivery_limit=1)
    await bench.put(queue)
    await _return(bench, queue, way)
    await _return(bench, queue, way)

    async def settled() -> int:
        return await bench.count(queue) + await bench.count(dead)

    await bench.eventually(settled, "an end of the returns")
    return await bench.count(queue) == 1


@row("5.3a", "nack with requeue counts towards the limit before 4.3, and no longer since")
async def nack_counts(bench: Bench) -> None:
    equal("survives", await _survives(bench, _by_nack), bench.version >= V4_3)


@row("5.3b", "reject with requeue counts towards the limit on every version")
async def reject_counts(bench: Bench) -> None:
    equal("survives", await _survives(bench, _by_reject), False)


@row("5.3c", "A closed channel counts towards the limit on every version")
async def close_counts(bench: Bench) -> None:
    equal("survives", await _survives(bench, _by_close), False)


@row("5.3d", "recover counts towards the limit before 4.3, and no longer since")
async def recover_counts(bench: Bench) -> None:
    equal("survives", await _survives(bench, _by_recover), bench.version >= V4_3)


@row("5.3e", "Everything a crashing consumer had prefetched is counted, the innocent too")
async def prefetched_count(bench: Bench) -> None:
    queue = await bench.quorum()
    await bench.put(queue, "1", "2", "3")
    line = await bench.connect()
    channel = await line.open_channel()
    got: list[bytes] = []
    await channel.consume(queue, lambda delivery: got.append(delivery.body))

    async def all_there() -> bool:
        return len(got) == 3

    await bench.eventually(all_there, "three deliveries")
    await line.close()
    await bench.holds(queue, 3)
    equal("counts", [_count(await bench.take(queue)) for _ in range(3)], [1, 1, 1])


@row("5.5a", "x-delivery-limit -1 means no limit from 4.0 on; before, the first return deletes")
async def negative_limit(bench: Bench) -> None:
    queue = await bench.quorum({"x-delivery-limit": -1})
    await bench.put(queue)
    await _return(bench, queue, _by_reject)
    if bench.version < V4_0:
        await bench.stays(queue, 0, 0.3)
        return
    for _ in range(24):
        await _return(bench, queue, _by_reject)
    await bench.holds(queue, 1)


@row("5.5b", "x-delivery-limit 0 removes the message on its first return")
async def zero_limit(bench: Bench) -> None:
    queue, dead = await pair(bench, QueueType.QUORUM, delivery_limit=0)
    await bench.put(queue)
    await _return(bench, queue, _by_reject)
    equal("reason", deaths(await bench.take_done(dead))[0]["reason"], "delivery_limit")


@row("5.5c", "A very large x-delivery-limit makes returning harmless on every version")
async def large_limit(bench: Bench) -> None:
    queue = await bench.quorum({"x-delivery-limit": 1_000_000_000})
    await bench.put(queue, "1", "2", "3")
    for _ in range(25):
        channel = await bench.open_channel()
        held = [(await bench.take(queue, channel=channel)).body for _ in range(3)]
        equal("order", held, [b"1", b"2", b"3"])
        await channel.close()
    await bench.holds(queue, 3)


@row(
    "5.8a",
    "at-least-once holds a dead letter without target, unseen, and delivers after repair",
    Tag.SLOW,
)
async def held_until_repaired(bench: Bench) -> None:
    dead = bench.name("dead")
    queue = await bench.quorum({**AT_LEAST_ONCE, **to(dead)})
    await bench.put(queue)
    await lap(bench, queue)
    await bench.stays(queue, 0, 0.5)
    equal("to be had", await bench.channel.get(queue), None)
    await bench.classic(name=dead)
    found = await bench.take_done(dead, within=3 * bench.timings.dead_letter_retry + 10)
    equal("reason", deaths(found)[0]["reason"], "rejected")


@row(
    "5.8b",
    "at-least-once without overflow reject-publish falls back: the dead letter is lost",
    Tag.SLOW,
)
async def strategy_falls_back(bench: Bench) -> None:
    dead = bench.name("dead")
    queue = await bench.quorum({"x-dead-letter-strategy": "at-least-once", **to(dead)})
    await bench.put(queue)
    await lap(bench, queue)
    await bench.pause(0.3)
    await bench.classic(name=dead)
    await bench.stays(dead, 0, 2 * bench.timings.dead_letter_retry + 1)


@row("5.8c", "at-least-once delivers to a target that is there, with x-death")
async def delivered_at_least_once(bench: Bench) -> None:
    for target in (QueueType.CLASSIC, QueueType.QUORUM):
        dead = await bench.queue(target)
        queue = await bench.quorum({**AT_LEAST_ONCE, **to(dead, message_ttl=50)})
        await bench.put(queue)
        found = await bench.take_done(dead)
        equal("reason", deaths(found)[0]["reason"], "expired")
        await bench.stays(dead, 0, 0.1)


@row("5.13a", "Quorum queues ignore priority before 4.0, know two classes on 4.0, all on 4.3")
async def quorum_priorities(bench: Bench) -> None:
    queue = await bench.quorum()
    for priority in (1, 3, 9, 6):
        await bench.put(queue, str(priority), priority=priority)
    await bench.put(queue, "none")
    found = await bench.bodies(queue)
    if bench.version < V4_0:
        equal("order", found, ["1", "3", "9", "6", "none"])
    elif bench.version < V4_3:
        equal("first", found[0], "9")
        equal("high", [body for body in found if body in "96"], ["9", "6"])
        equal("normal", [body for body in found if body not in "96"], ["1", "3", "none"])
    else:
        equal("order", found, ["9", "6", "none", "3", "1"])


@row("5.13b", "A classic queue with x-max-priority delivers by priority, none counting as 0")
async def classic_priorities(bench: Bench) -> None:
    queue = await bench.classic({"x-max-priority": 5})
    await bench.put(queue, "none")
    for priority in (1, 9, 3, 5, 0):
        await bench.put(queue, str(priority), priority=priority)
    equal("order", await bench.bodies(queue), ["9", "5", "3", "1", "none", "0"])


@row("5.13c", "A classic queue without x-max-priority ignores priority")
async def no_priorities(bench: Bench) -> None:
    queue = await bench.classic()
    for priority in (1, 9, 3):
        await bench.put(queue, str(priority), priority=priority)
    equal("order", await bench.bodies(queue), ["1", "9", "3"])


@row("5.10", "A full quorum queue with reject-publish comes to refuse")
async def full_quorum(bench: Bench) -> None:
    queue = await bench.quorum({"x-max-length": 2, "x-overflow": "reject-publish"})
    for number in range(20):
        if await _nacked(bench, queue, str(number)):
            break
        await bench.pause(0.05)
    found = await bench.bodies(queue)
    that(2 <= len(found) < 20, f"it refuses near its limit of 2, not at {len(found)}")
    equal("kept", found, [str(number) for number in range(len(found))])


async def _nacked(bench: Bench, queue: str, body: str) -> bool:
    try:
        await bench.put(queue, body)
    except Nacked:
        return True
    return False
