"""Queues of limited length, and the order of their messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance.suite.chapters.arrangements import BOTH
from tests.conformance.suite.row import equal, row

if TYPE_CHECKING:
    from tests.conformance.suite.subject import Subject


@row("A.30", "max-length counts ready messages, not unacked ones")
async def length_of_ready(subject: Subject) -> None:
    for kind in BOTH:
        queue = await subject.queue(kind, {"x-max-length": 1})
        await subject.put(queue, "held")
        held = await subject.take(queue)
        await subject.put(queue, "ready")
        await subject.holds(queue, 1)
        subject.channel.ack(held.tag)
        equal("left", await subject.bodies(queue), ["ready"])


@row("A.31", "Messages leave a queue in the order of their arrival")
async def first_in_first_out(subject: Subject) -> None:
    for kind in BOTH:
        queue = await subject.queue(kind)
        sent = [str(number) for number in range(50)]
        await subject.put(queue, *sent)
        equal("order", await subject.bodies(queue), sent)


@row("A.33", "A message that becomes the head because an older one was dropped expires in time")
async def expires_after_overflow(subject: Subject) -> None:
    for kind in BOTH:
        queue = await subject.queue(kind, {"x-max-length": 1})
        await subject.put(queue, "pushed out")
        await subject.put(queue, "expires", expiration="300")
        await subject.holds(queue, 0)


@row("A.34", "A message that becomes the head because another was consumed expires in time")
async def expires_after_get(subject: Subject) -> None:
    for kind in BOTH:
        queue = await subject.queue(kind)
        await subject.put(queue, "taken")
        await subject.put(queue, "expires", expiration="300")
        await subject.take(queue)
        await subject.holds(queue, 0)


@row("A.32", "A returned message that exceeds the length of a classic queue drops the oldest one")
async def return_over_length(subject: Subject) -> None:
    queue = await subject.classic({"x-max-length": 1})
    await subject.put(queue, "held")
    held = await subject.take(queue)
    await subject.put(queue, "later")
    subject.channel.nack(held.tag, requeue=True)
    await subject.holds(queue, 1)
    equal("left", await subject.bodies(queue), ["later"])
