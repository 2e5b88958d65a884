"""Broker headers in messages that a client publishes again, for parking and moving."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hopback.message import Message, Properties
from hopback.topology.model import QueueType
from tests.conformance.suite.chapters.arrangements import (
    V3_13,
    V4_0,
    deaths,
    lap,
    pair,
    reject_loop,
    to,
)
from tests.conformance.suite.row import equal, expect, row

if TYPE_CHECKING:
    from hopback.message import Delivery
    from tests.conformance.suite.subject import Subject


async def _again(subject: Subject, delivery: Delivery, queue: str) -> None:
    """Publish a received message with its headers."""
    await subject.channel.publish(Message("", queue, delivery.body, delivery.properties))


def _counts(delivery: Delivery) -> dict[str, int]:
    return {str(entry["queue"]): int(str(entry["count"])) for entry in deaths(delivery)}


@row("2.1", "A published x-death counts before 3.13. From 4.0 on the next death replaces it")
async def deaths_of_a_publish(subject: Subject) -> None:
    (queue, dead), (older, _) = await pair(subject), await pair(subject)
    aside = await subject.classic(to(queue))
    await subject.put(aside)
    await lap(subject, aside)
    for expected in (1, 2, 3):
        await lap(subject, queue)
        found = await subject.take_done(dead)
        equal("count", _counts(found)[queue], expected if subject.version < V3_13 else 1)
        await _again(subject, found, queue)
    equal("history of the other queue", aside in _counts(found), subject.version < V3_13)
    expect(older not in _counts(found), "x-death contains no other queue")


@row("2.3a", "A published x-death is delivered unchanged until the next death")
async def deaths_until_the_next(subject: Subject) -> None:
    queue, dead = await pair(subject)
    await subject.put(queue)
    await lap(subject, queue)
    found = await subject.take_done(dead)
    await _again(subject, found, dead)
    back = await subject.take_done(dead)
    equal("x-death", deaths(back), deaths(found))


@row("2.3b", "x-first-death-* of a published message are overwritten from 4.0 on and kept before")
async def first_death_of_a_publish(subject: Subject) -> None:
    one, two = await pair(subject)
    other, end = await pair(subject)
    await subject.put(one)
    await lap(subject, one)
    await _again(subject, await subject.take_done(two), other)
    await lap(subject, other)
    first = (await subject.take_done(end)).properties.headers["x-first-death-queue"]
    equal("x-first-death-queue", first, subject.since({"3.0": one, "4.0": other}))


@row("2.4", "A message published into two retry queues with its x-death is dropped before 3.13")
async def publish_into_a_chain(subject: Subject) -> None:
    main = await subject.classic()
    second = await subject.classic(to(main, message_ttl=20))
    first = await subject.classic(to(second, message_ttl=20))
    await subject.put(first)
    await _again(subject, await subject.take_done(main), first)
    if subject.version < V4_0:
        await subject.pause(0.5)
        equal("ready", [await subject.count(queue) for queue in (first, second, main)], [0, 0, 0])
    else:
        expect(await subject.take_done(main), "the message is back")


@row("2.5", "x-death counts correctly in a retry loop of the broker on every version")
async def broker_loop_counts(subject: Subject) -> None:
    for kind in (QueueType.CLASSIC, QueueType.QUORUM):
        main, _ = await reject_loop(subject, kind, 10)
        await subject.put(main)
        for laps in range(4):
            found = await lap(subject, main)
            equal("count", _counts(found).get(main, 0), laps)


@row("3.1", "Parking by publish keeps x-death and x-first-death-* with their types")
async def park_as_received(subject: Subject) -> None:
    for kind in (QueueType.CLASSIC, QueueType.QUORUM):
        main, _ = await reject_loop(subject, kind, 10)
        parking = await subject.queue(kind)
        await subject.put(main)
        await lap(subject, main)
        found = await subject.take_done(main)
        await _again(subject, found, parking)
        parked = (await subject.take_done(parking)).properties.headers
        for name, value in found.properties.headers.items():
            if "death" in name:
                equal(name, parked[name], value)
                equal(f"type of {name}", type(parked[name]), type(value))
        expect("x-death" in parked, "x-death is there")


@row("3.2a", "A message that is parked with its expiration expires in the parking queue")
async def park_with_expiration(subject: Subject) -> None:
    for kind in (QueueType.CLASSIC, QueueType.QUORUM):
        queue, parking = await subject.queue(kind), await subject.queue(kind)
        await subject.put(queue, expiration="1000")
        await _again(subject, await subject.take_done(queue), parking)
        await subject.holds(parking, 1)
        await subject.holds(parking, 0)


@row("3.2b", "A published x-delivery-count remains in a classic queue")
async def stale_delivery_count(subject: Subject) -> None:
    queue = await subject.classic()
    await subject.put(queue, headers={"x-delivery-count": 7})
    equal("header", (await subject.take_done(queue)).properties.headers["x-delivery-count"], 7)


@row("8.1", "A crash between confirm and ack leaves a copy in both queues, never in neither")
async def crash_while_moving(subject: Subject) -> None:
    source, target = await subject.quorum(), await subject.quorum()
    await subject.put(source, "moved")
    connection = await subject.connect()
    channel = await connection.open_channel()
    found = await subject.take(source, channel=channel)
    await channel.publish(Message("", target, found.body, Properties(delivery_mode=2)))
    await connection.close()
    await subject.holds(source, 1)
    equal("moved", await subject.bodies(target), ["moved"])
    back = await subject.take_done(source)
    equal("left behind", (back.body, back.redelivered), (b"moved", True))


@row(
    "8.6",
    "Through the original exchange a message reaches every bound queue, by name only one",
)
async def targets_of_a_redrive(subject: Subject) -> None:
    exchange, mine, other = (
        await subject.exchange("fanout"),
        await subject.classic(),
        await subject.classic(),
    )
    await subject.bind(exchange, mine)
    await subject.bind(exchange, other)
    await subject.put("", "shared", exchange=exchange)
    found = await subject.take_done(mine)
    await subject.take_done(other)
    shared = Message(exchange, "", found.body, replace(found.properties, expiration=None))
    await subject.channel.publish(shared)
    await _again(subject, found, mine)
    await subject.holds(mine, 2)
    await subject.stays(other, 1, 0.1)
