"""One program on RabbitMQ 3.10 and 4.0 shows the documented differences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.broker.embedded import EmbeddedBroker, EmbeddedChannel, profile_for, run_virtual
from hopback.message import Message, Properties
from hopback.topology.model import Queue, QueueType
from hopback.version import BrokerVersion
from tests.unit.embedded.node_setup import deaths, pass_time, to

if TYPE_CHECKING:
    from hopback.broker.embedded.stored import UnackedDelivery


@dataclass(frozen=True, slots=True)
class Seen:
    """The observations of the program."""

    redriven_count: object
    """The count after a dead letter was published with its headers and died again."""
    deliveries: int
    """Number of deliveries of a message that is always requeued."""
    order: str
    """The order of messages after they were taken, requeued and taken again."""
    cc_copies: int
    """Number of copies in the `CC` queue after the dead letter was published again."""


async def _program(version: str) -> Seen:
    broker = EmbeddedBroker(version=BrokerVersion.parse(version))
    channel = await (await broker.connect()).open_channel()
    return Seen(
        redriven_count=await _redrive(channel),
        deliveries=await _give_back(channel),
        order=await _look(channel),
        cc_copies=await _copies(channel),
    )


async def _redrive(channel: EmbeddedChannel) -> object:
    await channel.declare_queue(Queue("dead"))
    await channel.declare_queue(Queue("main", arguments=to("dead")))
    await channel.publish(Message("", "main"))
    for _ in range(2):
        channel.nack((await _take(channel, "main")).tag, requeue=False)
        dead_letter = await _take(channel, "dead")
        channel.ack(dead_letter.tag)
        await channel.publish(Message("", "main", b"", dead_letter.properties))
    return deaths(await _take(channel, "main"))[0]["count"]


async def _give_back(channel: EmbeddedChannel) -> int:
    await channel.declare_queue(Queue("returns", QueueType.QUORUM))
    await channel.publish(Message("", "returns"))
    seen = 0
    while seen < 100 and (taken := await channel.get("returns")) is not None:
        seen += 1
        channel.nack(taken.tag, requeue=True)
    return seen


async def _look(channel: EmbeddedChannel) -> str:
    await channel.declare_queue(Queue("looked at", QueueType.QUORUM))
    for body in "123456":
        await channel.publish(Message("", "looked at", body.encode()))
    held = [await _take(channel, "looked at") for _ in range(3)]
    channel.nack(held[-1].tag, requeue=True, multiple=True)
    return "".join([(await _take(channel, "looked at")).body.decode() for _ in range(6)])


async def _copies(channel: EmbeddedChannel) -> int:
    for queue in (Queue("copy"), Queue("parked"), Queue("source", arguments=to("parked"))):
        await channel.declare_queue(queue)
    properties = Properties(headers={"CC": ["copy"]})
    await channel.publish(Message("", "source", b"", properties))
    channel.nack((await _take(channel, "source")).tag, requeue=False)
    await pass_time(1)
    dead_letter = await _take(channel, "parked")
    await channel.publish(Message("", "source", b"", dead_letter.properties))
    return (await channel.declare_queue(Queue("copy"), passive=True)).messages


async def _take(channel: EmbeddedChannel, queue: str) -> UnackedDelivery:
    taken = await channel.get(queue)
    assert taken is not None
    return taken


def test_same_program_sees_documented_differences() -> None:
    assert run_virtual(_program("3.10.8")) == Seen(2, 100, "456123", 1)
    assert run_virtual(_program("4.0.5")) == Seen(1, 21, "123456", 2)


def test_version_between_two_profiles_uses_the_older_one() -> None:
    versions = ("3.9", "3.11.28", "3.12.14", "3.13.2", "3.13.7", "4.2", "5.0")
    found = {text: profile_for(BrokerVersion.parse(text)) for text in versions}
    assert {text: str(profile.version) for text, profile in found.items()} == {
        text: str(BrokerVersion.parse(text)) for text in versions
    }
    assert [profile.interprets_published_deaths for profile in found.values()] == [
        True, True, True, False, True, False, False,
    ]  # fmt: skip
    assert [profile.delivery_limit for profile in found.values()] == [None] * 5 + [20, 20]
    assert [profile.delayed_retry for profile in found.values()] == [False] * 6 + [True]
