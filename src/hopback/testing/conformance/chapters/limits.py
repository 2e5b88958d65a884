"""Queues of bounded length, single messages held long, and what a channel may hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.testing.conformance.chapters.arrangements import BOTH
from hopback.testing.conformance.expect import equal
from hopback.testing.conformance.row import row

if TYPE_CHECKING:
    from hopback.testing.conformance.bench import Bench

__all__: list[str] = []


@row("A.30", "max-length counts what is ready: what is held by a consumer is beyond it")
async def length_of_ready(bench: Bench) -> None:
    for kind in BOTH:
        queue = await bench.queue(kind, {"x-max-length": 1})
        await bench.put(queue, "held")
        held = await bench.take(queue)
        await bench.put(queue, "ready")
        await bench.holds(queue, 1)
        bench.channel.ack(held.tag)
        equal("left", await bench.bodies(queue), ["ready"])


@row("A.31", "Messages leave a queue in the order in which they came")
async def first_in_first_out(bench: Bench) -> None:
    for kind in BOTH:
        queue = await bench.queue(kind)
        sent = [str(number) for number in range(50)]
        await bench.put(queue, *sent)
        equal("order", await bench.bodies(queue), sent)


@row("A.33", "What comes to the head because an older one was pushed out expires in its time")
async def expires_after_overflow(bench: Bench) -> None:
    for kind in BOTH:
        queue = await bench.queue(kind, {"x-max-length": 1})
        await bench.put(queue, "pushed out")
        await bench.put(queue, "expires", expiration="300")
        await bench.holds(queue, 0)


@row("A.34", "What comes to the head because another was taken expires in its time")
async def expires_after_get(bench: Bench) -> None:
    for kind in BOTH:
        queue = await bench.queue(kind)
        await bench.put(queue, "taken")
        await bench.put(queue, "expires", expiration="300")
        await bench.take(queue)
        await bench.holds(queue, 0)


@row("A.32", "A returned message that no longer fits a bounded classic queue pushes out the oldest")
async def returned_over_length(bench: Bench) -> None:
    queue = await bench.classic({"x-max-length": 1})
    await bench.put(queue, "held")
    held = await bench.take(queue)
    await bench.put(queue, "later")
    bench.channel.nack(held.tag, requeue=True)
    await bench.holds(queue, 1)
    equal("left", await bench.bodies(queue), ["later"])
