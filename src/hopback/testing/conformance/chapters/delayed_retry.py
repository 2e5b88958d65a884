"""Delayed retry of RabbitMQ 4.3, and how older brokers ignore it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.testing.conformance.chapters.arrangements import V4_3
from hopback.testing.conformance.row import equal, row, that

if TYPE_CHECKING:
    from hopback.fields import Headers
    from hopback.testing.conformance.subject import Subject

__all__: list[str] = []


def _delayed(kind: str, least_ms: int, most_ms: int) -> Headers:
    return {
        "x-delayed-retry-type": kind,
        "x-delayed-retry-min": least_ms,
        "x-delayed-retry-max": most_ms,
    }


@row("5.12a", "A rejected message stays away for min times its failures, at most max", since=V4_3)
async def grows_with_failures(subject: Subject) -> None:
    queue = await subject.quorum(_delayed("failed", 500, 1200))
    await subject.put(queue)
    held = await subject.take(queue)
    for least in (0.5, 1.0, 1.2, 1.2):
        subject.channel.reject(held.tag, requeue=True)
        start = subject.facilities.now()
        held = await subject.take(queue)
        waited = subject.facilities.now() - start
        that(least - 0.02 <= waited < least + 0.45, f"it waits {least} s, not {waited:.3f} s")


@row("5.12b", "Type failed does not delay nack; type returned does not delay reject", since=V4_3)
async def delayed_by_type(subject: Subject) -> None:
    for kind, by_nack in (("failed", True), ("returned", False)):
        queue = await subject.quorum(_delayed(kind, 60_000, 60_000))
        await subject.put(queue)
        held = await subject.take(queue)
        if by_nack:
            subject.channel.nack(held.tag, requeue=True)
        else:
            subject.channel.reject(held.tag, requeue=True)
        await subject.take_done(queue)


@row("5.12c", "A delayed message is not counted as ready and holds up nobody", since=V4_3)
async def delayed_out_of_sight(subject: Subject) -> None:
    queue = await subject.quorum(_delayed("all", 1500, 1500))
    await subject.put(queue, "delayed", "next")
    subject.channel.nack((await subject.take(queue)).tag, requeue=True)
    await subject.holds(queue, 1)
    equal("next", await subject.bodies(queue), ["next"])
    equal("delayed", (await subject.take_done(queue)).body, b"delayed")


@row("5.12d", "Before 4.3 the arguments of delayed retry are accepted and do nothing", until=V4_3)
async def ignored_before(subject: Subject) -> None:
    queue = await subject.quorum(_delayed("all", 60_000, 60_000))
    await subject.put(queue)
    subject.channel.reject((await subject.take(queue)).tag, requeue=True)
    await subject.holds(queue, 1)
