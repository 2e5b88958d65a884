"""Rows that control the node: restarts and alarms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.message import Message, Properties
from hopback.topology.model import Queue
from tests.conformance.suite.chapters.arrangements import BOTH
from tests.conformance.suite.row import Tag, equal, expect, row

if TYPE_CHECKING:
    from tests.conformance.suite.subject import Subject


@row(
    "10.6c",
    "A restart keeps persistent messages of durable classic queues and all messages of quorum "
    "queues",
    Tag.NODE,
    Tag.DESTRUCTIVE,
)
async def restart(subject: Subject) -> None:
    durable, safe = await subject.classic(), await subject.quorum()
    fleeting = await subject.declare(Queue(subject.name(), durable=False))
    for mode in (1, 2):
        for queue in (durable, safe, fleeting):
            content = Properties(delivery_mode=mode)
            await subject.channel.publish(Message("", queue, str(mode).encode(), content))
    await subject.node.restart()
    await subject.reconnect()
    equal("durable classic", await subject.bodies(durable), ["2"])
    equal("quorum", await subject.bodies(safe), ["1", "2"])
    expect(not await subject.exists(fleeting), "the transient queue is gone")


@row(
    "9.5",
    "During an alarm publishes stay unanswered on their connection, and other connections "
    "still consume",
    Tag.NODE,
    Tag.DESTRUCTIVE,
)
async def alarm(subject: Subject) -> None:
    for kind in BOTH:
        queue = await subject.queue(kind)
        await subject.put(queue, "before")
        connection = await subject.connect()
        channel = await connection.open_channel()
        await subject.node.raise_alarm()
        fate = channel.publish(Message("", queue, b"during", Properties(delivery_mode=2)))
        await subject.pause(1.0)
        equal("answered", fate.done(), False)
        equal("consumed meanwhile", await subject.bodies(queue), ["before"])
        await subject.node.clear_alarm()
        await fate
        equal("after", (await subject.take_done(queue)).body, b"during")
