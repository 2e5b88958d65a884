"""Rows that need the node in hand: restarts and alarms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.message import Message, Properties
from hopback.testing.conformance.chapters.arrangements import BOTH
from hopback.testing.conformance.expect import equal, that
from hopback.testing.conformance.row import Tag, row
from hopback.topology.model import Queue

if TYPE_CHECKING:
    from hopback.testing.conformance.bench import Bench

__all__: list[str] = []


@row(
    "10.6c",
    "A restart keeps persistent messages of durable queues, and no others",
    Tag.NODE,
    Tag.DESTRUCTIVE,
)
async def restart(bench: Bench) -> None:
    durable, safe = await bench.classic(), await bench.quorum()
    fleeting = await bench.declare(Queue(bench.name(), durable=False))
    for mode in (1, 2):
        for queue in (durable, safe, fleeting):
            content = Properties(delivery_mode=mode)
            await bench.channel.publish(Message("", queue, str(mode).encode(), content))
    await bench.node.restart()
    await bench.reconnect()
    equal("durable classic", await bench.bodies(durable), ["2"])
    equal("quorum", await bench.bodies(safe), ["1", "2"])
    that(not await bench.exists(fleeting), "the transient queue is gone")


@row(
    "9.5",
    "An alarm keeps publishes unanswered on their connection; others still consume",
    Tag.NODE,
    Tag.DESTRUCTIVE,
)
async def alarm(bench: Bench) -> None:
    for kind in BOTH:
        queue = await bench.queue(kind)
        await bench.put(queue, "before")
        line = await bench.connect()
        channel = await line.open_channel()
        await bench.node.raise_alarm()
        fate = channel.publish(Message("", queue, b"during", Properties(delivery_mode=2)))
        await bench.pause(1.0)
        equal("answered", fate.done(), False)
        equal("consumed meanwhile", await bench.bodies(queue), ["before"])
        await bench.node.clear_alarm()
        await fate
        equal("after", (await bench.take_done(queue)).body, b"during")
