"""Dead-letter cycles: which loops the broker cuts by dropping the message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.testing.conformance.chapters.arrangements import (
    AT_LEAST_ONCE,
    BOTH,
    V4_0,
    V4_3,
    deaths,
    lap,
    reject_loop,
    to,
)
from hopback.testing.conformance.expect import equal, that
from hopback.testing.conformance.row import Tag, row
from hopback.topology.model import Policy, QueueType

if TYPE_CHECKING:
    from hopback.fields import Headers
    from hopback.testing.conformance.bench import Bench

__all__: list[str] = []


async def _lost(bench: Bench, *queues: str, seconds: float = 1.2) -> None:
    """Make sure that none of the queues has, or gets, the message."""
    await bench.pause(seconds)
    for _ in range(4):
        await bench.pause(0.1)
        equal("ready", [await bench.count(queue) for queue in queues], [0] * len(queues))


async def _break_the_limit(bench: Bench, queue: str, returns: int) -> None:
    for _ in range(returns):
        bench.channel.reject((await bench.take(queue)).tag, requeue=True)


@row("1.7a", "A loop of expiries drops the message when it would enter a queue again")
async def expiry_loop(bench: Bench) -> None:
    for kind in BOTH:
        one, two = bench.name("one"), bench.name("two")
        await bench.queue(kind, to(one, message_ttl=50), name=two)
        await bench.queue(kind, to(two, message_ttl=50), name=one)
        await bench.put(one)
        await _lost(bench, one, two)


@row("1.7b", "A queue whose expired messages return to itself drops them")
async def self_loop(bench: Bench) -> None:
    for kind in BOTH:
        name = bench.name("self")
        await bench.queue(kind, to(name, message_ttl=50), name=name)
        await bench.put(name)
        await _lost(bench, name)


@row("1.7c", "main -maxlen→ wait -expired→ main drops the message on its way back")
async def length_loop(bench: Bench) -> None:
    main, wait = await reject_loop(bench, wait_ms=1000, max_length=1)
    await bench.put(main, "pushed out", "kept")
    await bench.holds(wait, 1)
    await _lost(bench, wait)
    equal("left", await bench.bodies(main), ["kept"])


@row("1.7d", "main -delivery_limit→ wait -expired→ main drops the message on its way back")
async def limit_loop(bench: Bench) -> None:
    main, wait = await reject_loop(bench, QueueType.QUORUM, 1000, delivery_limit=1)
    await bench.put(main)
    await _break_the_limit(bench, main, 2)
    await bench.holds(wait, 1)
    await _lost(bench, main, wait)


@row("1.7e", "After a rejected lap a delivery_limit death is dropped at once from 4.0 on")
async def limit_after_a_lap(bench: Bench) -> None:
    main, wait = await reject_loop(bench, QueueType.QUORUM, 1000, delivery_limit=1)
    await bench.put(main)
    await lap(bench, main)
    await _break_the_limit(bench, main, 1)
    if await bench.count(main) or await _comes_to(bench, main):
        await _break_the_limit(bench, main, 1)
    if bench.version >= V4_0:
        await _lost(bench, main, wait, seconds=0)
    else:
        await bench.holds(wait, 1)


async def _comes_to(bench: Bench, queue: str) -> bool:
    await bench.pause(0.1)
    return bool(await bench.count(queue))


@row("1.7f", "A dead-letter queue that expires back to main drops what had expired there")
async def broker_side_redrive(bench: Bench) -> None:
    main, dead = bench.name("main"), bench.name("dead")
    await bench.classic(to(main, message_ttl=1000), name=dead)
    await bench.classic(to(dead, message_ttl=50), name=main)
    await bench.put(main)
    await bench.holds(dead, 1)
    await _lost(bench, main, dead)


@row(
    "1.7g",
    "A rejection makes a loop sound: main -rejected→ wait -expired→ main, any number of laps",
)
async def sound_loop(bench: Bench) -> None:
    for kind in BOTH:
        main, wait = await reject_loop(bench, kind, 10)
        await bench.put(main)
        for _ in range(8):
            await lap(bench, main)
        entries = {str(entry["reason"]): entry for entry in deaths(await bench.take_done(main))}
        equal("count of rejections", entries["rejected"]["count"], 8)
        equal("count of expiries", entries["expired"]["count"], 8)
        equal("left in the wait queue", await bench.count(wait), 0)


@row("1.7h", "A quorum queue that dead-letters to itself on its delivery limit drops the message")
async def limit_self_loop(bench: Bench) -> None:
    name = bench.name("self")
    await bench.quorum(to(name, delivery_limit=1), name=name)
    await bench.put(name)
    await _break_the_limit(bench, name, 2)
    await _lost(bench, name)


@row(
    "1.7i",
    "With at-least-once a cycling message is stuck, unseen, until its way is changed",
    Tag.POLICIES,
    Tag.SLOW,
)
async def stuck_cycle(bench: Bench) -> None:
    one, two, rescue = bench.name("one"), bench.name("two"), await bench.classic()
    await bench.quorum(to(one, message_ttl=50), name=two)
    arguments: Headers = {**AT_LEAST_ONCE, "x-message-ttl": 50, "x-dead-letter-exchange": ""}
    await bench.quorum(arguments, name=one)
    await bench.set_policy(Policy(one, f"^{one}$", {"dead-letter-routing-key": one}))
    await bench.put(one)
    await _lost(bench, one)
    await bench.set_policy(Policy(one, f"^{one}$", {"dead-letter-routing-key": rescue}))
    found = await bench.take_done(rescue, within=3 * bench.timings.dead_letter_retry + 10)
    equal("reason", deaths(found)[0]["reason"], "expired")


@row("1.8", "Two waits in a row lose the message on the second lap before 3.13")
async def chain_of_waits(bench: Bench) -> None:
    main, first, second = (bench.name(what) for what in ("main", "first", "second"))
    await bench.classic(to(main, message_ttl=20), name=second)
    await bench.classic(to(second, message_ttl=20), name=first)
    await bench.classic(to(first), name=main)
    await bench.put(main)
    await lap(bench, main)
    await lap(bench, main)
    if bench.version < V4_0:
        await _lost(bench, main, first, second)
    else:
        that(await bench.take_done(main), "the message is back")


@row("5.6", "On 4.3 rejections add up over laps, and one crash then loses the message", since=V4_3)
async def counted_laps(bench: Bench) -> None:
    for leave_by_reject in (True, False):
        main, wait = await reject_loop(bench, QueueType.QUORUM, 5)
        await bench.put(main)
        for _ in range(21):
            delivery = await bench.take(main)
            if leave_by_reject:
                bench.channel.reject(delivery.tag, requeue=False)
            else:
                bench.channel.nack(delivery.tag, requeue=False)
        channel = await bench.open_channel()
        await bench.take(main, channel=channel)
        await channel.close()
        if leave_by_reject:
            await _lost(bench, main, wait)
        else:
            that(await bench.take_done(main), "the message is back")
