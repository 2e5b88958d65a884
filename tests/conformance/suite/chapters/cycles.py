"""Dead-letter cycles, and the loops in which the broker drops the message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.topology.model import Policy, QueueType
from tests.conformance.suite.chapters.arrangements import (
    AT_LEAST_ONCE,
    BOTH,
    V4_0,
    V4_3,
    deaths,
    lap,
    reject_loop,
    to,
)
from tests.conformance.suite.row import Tag, equal, expect, row

if TYPE_CHECKING:
    from hopback.fields import Headers
    from tests.conformance.suite.subject import Subject


async def _lost(subject: Subject, *queues: str, seconds: float = 1.2) -> None:
    """Check that the queues stay without ready messages."""
    await subject.pause(seconds)
    for _ in range(4):
        await subject.pause(0.1)
        equal("ready", [await subject.count(queue) for queue in queues], [0] * len(queues))


async def _requeue(subject: Subject, queue: str, returns: int) -> None:
    for _ in range(returns):
        subject.channel.reject((await subject.take(queue)).tag, requeue=True)


@row("1.7a", "A cycle of expiries drops the message when it would enter a queue again")
async def expiry_loop(subject: Subject) -> None:
    for kind in BOTH:
        one, two = subject.name("one"), subject.name("two")
        await subject.queue(kind, to(one, message_ttl=50), name=two)
        await subject.queue(kind, to(two, message_ttl=50), name=one)
        await subject.put(one)
        await _lost(subject, one, two)


@row("1.7b", "A queue whose expired messages return to itself drops them")
async def self_loop(subject: Subject) -> None:
    for kind in BOTH:
        name = subject.name("self")
        await subject.queue(kind, to(name, message_ttl=50), name=name)
        await subject.put(name)
        await _lost(subject, name)


@row("1.7c", "main -maxlen→ wait -expired→ main drops the message when it returns")
async def length_loop(subject: Subject) -> None:
    main, wait = await reject_loop(subject, wait_ms=1000, max_length=1)
    await subject.put(main, "pushed out", "kept")
    await subject.holds(wait, 1)
    await _lost(subject, wait)
    equal("left", await subject.bodies(main), ["kept"])


@row("1.7d", "main -delivery_limit→ wait -expired→ main drops the message when it returns")
async def limit_loop(subject: Subject) -> None:
    main, wait = await reject_loop(subject, QueueType.QUORUM, 1000, delivery_limit=1)
    await subject.put(main)
    await _requeue(subject, main, 2)
    await subject.holds(wait, 1)
    await _lost(subject, main, wait)


@row("1.7e", "From 4.0 on a delivery_limit death after a rejected lap is dropped at once")
async def limit_after_a_lap(subject: Subject) -> None:
    main, wait = await reject_loop(subject, QueueType.QUORUM, 1000, delivery_limit=1)
    await subject.put(main)
    await lap(subject, main)
    await _requeue(subject, main, 1)
    if await subject.count(main) or await _is_redelivered(subject, main):
        await _requeue(subject, main, 1)
    if subject.version >= V4_0:
        await _lost(subject, main, wait, seconds=0)
    else:
        await subject.holds(wait, 1)


async def _is_redelivered(subject: Subject, queue: str) -> bool:
    await subject.pause(0.1)
    return bool(await subject.count(queue))


@row("1.7f", "A dead-letter queue that expires into main drops messages that expired in main")
async def broker_side_redrive(subject: Subject) -> None:
    main, dead = subject.name("main"), subject.name("dead")
    await subject.classic(to(main, message_ttl=1000), name=dead)
    await subject.classic(to(dead, message_ttl=50), name=main)
    await subject.put(main)
    await subject.holds(dead, 1)
    await _lost(subject, main, dead)


@row(
    "1.7g",
    "A rejection permits the cycle main -rejected→ wait -expired→ main, for any number of laps",
)
async def sound_loop(subject: Subject) -> None:
    for kind in BOTH:
        main, wait = await reject_loop(subject, kind, 10)
        await subject.put(main)
        for _ in range(8):
            await lap(subject, main)
        entries = {str(entry["reason"]): entry for entry in deaths(await subject.take_done(main))}
        equal("count of rejections", entries["rejected"]["count"], 8)
        equal("count of expiries", entries["expired"]["count"], 8)
        equal("left in the wait queue", await subject.count(wait), 0)


@row("1.7h", "A quorum queue that dead-letters to itself on its delivery limit drops the message")
async def limit_self_loop(subject: Subject) -> None:
    name = subject.name("self")
    await subject.quorum(to(name, delivery_limit=1), name=name)
    await subject.put(name)
    await _requeue(subject, name, 2)
    await _lost(subject, name)


@row(
    "1.7i",
    "With at-least-once a cycling message is stuck and invisible until its route changes",
    Tag.POLICIES,
    Tag.SLOW,
)
async def stuck_cycle(subject: Subject) -> None:
    one, two, rescue = subject.name("one"), subject.name("two"), await subject.classic()
    await subject.quorum(to(one, message_ttl=50), name=two)
    arguments: Headers = {**AT_LEAST_ONCE, "x-message-ttl": 50, "x-dead-letter-exchange": ""}
    await subject.quorum(arguments, name=one)
    await subject.set_policy(Policy(one, f"^{one}$", {"dead-letter-routing-key": one}))
    await subject.put(one)
    await _lost(subject, one)
    await subject.set_policy(Policy(one, f"^{one}$", {"dead-letter-routing-key": rescue}))
    found = await subject.take_done(rescue, within=3 * subject.timings.dead_letter_retry + 10)
    equal("reason", deaths(found)[0]["reason"], "expired")


@row("1.8", "Two retry queues in a row lose the message on the second lap before 3.13")
async def chain_of_waits(subject: Subject) -> None:
    main, first, second = (subject.name(what) for what in ("main", "first", "second"))
    await subject.classic(to(main, message_ttl=20), name=second)
    await subject.classic(to(second, message_ttl=20), name=first)
    await subject.classic(to(first), name=main)
    await subject.put(main)
    await lap(subject, main)
    await lap(subject, main)
    if subject.version < V4_0:
        await _lost(subject, main, first, second)
    else:
        expect(await subject.take_done(main), "the message is back")


@row(
    "5.6",
    "On 4.3 rejections add up over laps until one crash loses the message",
    since=V4_3,
)
async def laps_count(subject: Subject) -> None:
    for leave_by_reject in (True, False):
        main, wait = await reject_loop(subject, QueueType.QUORUM, 5)
        await subject.put(main)
        for _ in range(21):
            delivery = await subject.take(main)
            if leave_by_reject:
                subject.channel.reject(delivery.tag, requeue=False)
            else:
                subject.channel.nack(delivery.tag, requeue=False)
        channel = await subject.open_channel()
        await subject.take(main, channel=channel)
        await channel.close()
        if leave_by_reject:
            await _lost(subject, main, wait)
        else:
            expect(await subject.take_done(main), "the message is back")
