"""Policies: their effect on existing queues, and precedence over arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.errors import Nacked
from hopback.topology.model import Policy, QueueType
from tests.conformance.suite.chapters.arrangements import BOTH, V4_0, deaths, lap, to
from tests.conformance.suite.row import Tag, equal, row

if TYPE_CHECKING:
    from hopback.fields import FieldValue
    from tests.conformance.suite.subject import Subject


async def _apply(subject: Subject, queue: str, priority: int = 0, **definition: FieldValue) -> None:
    """Set a policy on one queue. Keys have `_` for `-`."""
    keys = {key.replace("_", "-"): value for key, value in definition.items()}
    await subject.set_policy(Policy(f"{queue}-{priority}", f"^{queue}$", keys, priority))


@row(
    "6.3a",
    "A policy's dead-letter exchange and key apply to messages already in the queue",
    Tag.POLICIES,
)
async def live_dead_lettering(subject: Subject) -> None:
    for kind in BOTH:
        queue, dead = await subject.queue(kind), await subject.classic()
        await subject.put(queue)
        await _apply(subject, queue, dead_letter_exchange="", dead_letter_routing_key=dead)
        await lap(subject, queue)
        equal("reason", deaths(await subject.take_done(dead))[0]["reason"], "rejected")


@row("6.3b", "A policy's max-length drops the excess messages at once", Tag.POLICIES)
async def live_length(subject: Subject) -> None:
    for kind in BOTH:
        queue = await subject.queue(kind)
        await subject.put(queue, "1", "2", "3")
        await _apply(subject, queue, max_length=1)
        if kind is QueueType.QUORUM:
            await subject.put(queue, "4")
        await subject.holds(queue, 1)
        equal("left", await subject.bodies(queue), ["4" if kind is QueueType.QUORUM else "3"])


@row("6.3c", "A policy's delivery limit applies to messages already in the queue", Tag.POLICIES)
async def live_limit(subject: Subject) -> None:
    queue = await subject.quorum()
    await subject.put(queue)
    await _apply(subject, queue, delivery_limit=1)
    for _ in range(2):
        subject.channel.reject((await subject.take(queue)).tag, requeue=True)
    await subject.holds(queue, 0)
    await subject.stays(queue, 0, 0.2)


@row("6.3d", "A cleared policy no longer applies", Tag.POLICIES)
async def no_policy_after_clear(subject: Subject) -> None:
    queue, dead = await subject.classic(), await subject.classic()
    policy = Policy(
        queue, f"^{queue}$", {"dead-letter-exchange": "", "dead-letter-routing-key": dead}
    )
    await subject.set_policy(policy)
    await subject.put(queue, "1", "2")
    await lap(subject, queue)
    await subject.holds(dead, 1)
    await subject.clear_policy(policy.name)
    await lap(subject, queue)
    await subject.stays(dead, 1, 0.3)


@row(
    "6.4a",
    "Dead-letter exchange and key of arguments override those of the policy",
    Tag.POLICIES,
)
async def argument_wins(subject: Subject) -> None:
    for kind in BOTH:
        mine, other = await subject.classic(), await subject.classic()
        queue = await subject.queue(kind, to(mine))
        await _apply(subject, queue, dead_letter_exchange="", dead_letter_routing_key=other)
        await subject.put(queue)
        await lap(subject, queue)
        await subject.holds(mine, 1)
        await subject.stays(other, 0, 0.1)


@row("6.4b", "The shorter TTL of argument and policy applies", Tag.POLICIES)
async def shorter_time_holds(subject: Subject) -> None:
    for kind in BOTH:
        for argument, policy in ((100, 60_000), (60_000, 100)):
            queue = await subject.queue(kind, {"x-message-ttl": argument})
            await _apply(subject, queue, message_ttl=policy)
            await subject.put(queue)
            await subject.holds(queue, 0)


@row("6.4c", "The lower delivery limit of argument and policy applies", Tag.POLICIES)
async def lower_limit_holds(subject: Subject) -> None:
    for argument, policy in ((1, 50), (50, 1)):
        queue = await subject.quorum({"x-delivery-limit": argument})
        await _apply(subject, queue, delivery_limit=policy)
        await subject.put(queue)
        for _ in range(2):
            subject.channel.reject((await subject.take(queue)).tag, requeue=True)
        await subject.stays(queue, 0, 0.3)


@row(
    "6.4d",
    "A policy limit of -1 lifts the default limit from 4.0 on",
    Tag.POLICIES,
    since=V4_0,
)
async def no_limit_by_policy(subject: Subject) -> None:
    queue = await subject.quorum()
    await _apply(subject, queue, delivery_limit=-1)
    await subject.put(queue)
    for _ in range(23):
        subject.channel.reject((await subject.take(queue)).tag, requeue=True)
    await subject.holds(queue, 1)


@row(
    "6.4e",
    "Only the policy with the highest priority applies. Policies do not add up",
    Tag.POLICIES,
)
async def one_policy_only(subject: Subject) -> None:
    queue, dead = await subject.classic(), await subject.classic()
    await _apply(subject, queue, 1, dead_letter_exchange="", dead_letter_routing_key=dead)
    await _apply(subject, queue, 2, max_length=100)
    await subject.put(queue)
    await lap(subject, queue)
    await subject.stays(dead, 0, 0.3)


@row(
    "6.4f",
    "The policy's overflow applies to a quorum queue, the argument's to a classic queue",
    Tag.POLICIES,
)
async def overflow_precedence(subject: Subject) -> None:
    for kind, kept in ((QueueType.CLASSIC, "last"), (QueueType.QUORUM, "first")):
        queue = await subject.queue(kind, {"x-max-length": 1, "x-overflow": "drop-head"})
        await _apply(subject, queue, overflow="reject-publish")
        # A queue of length 1 keeps the first or the last of many messages.
        for number in range(10):
            try:
                await subject.put(queue, str(number))
            except Nacked:
                break
            await subject.pause(0.05)
        found = await subject.bodies(queue)
        equal(f"kept by {kind}", "first" if "0" in found else "last", kept)
