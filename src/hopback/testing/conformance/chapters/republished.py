"""What becomes of broker-written headers that a client publishes again; parking; moving."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hopback.message import Message, Properties
from hopback.testing.conformance.chapters.arrangements import (
    V3_13,
    V4_0,
    deaths,
    lap,
    pair,
    reject_loop,
    to,
)
from hopback.testing.conformance.expect import equal, that
from hopback.testing.conformance.row import row
from hopback.topology.model import QueueType

if TYPE_CHECKING:
    from hopback.message import Delivery
    from hopback.testing.conformance.bench import Bench

__all__: list[str] = []


async def _again(bench: Bench, delivery: Delivery, queue: str) -> None:
    """Publish what was received, headers and all."""
    await bench.channel.publish(Message("", queue, delivery.body, delivery.properties))


def _counts(delivery: Delivery) -> dict[str, int]:
    return {str(entry["queue"]): int(str(entry["count"])) for entry in deaths(delivery)}


@row("2.1", "A published x-death is counted on before 3.13; from 4.0 the next death replaces it")
async def republished_deaths(bench: Bench) -> None:
    (queue, dead), (older, _) = await pair(bench), await pair(bench)
    aside = await bench.classic(to(queue))
    await bench.put(aside)
    await lap(bench, aside)
    for expected in (1, 2, 3):
        await lap(bench, queue)
        found = await bench.take_done(dead)
        equal("count", _counts(found)[queue], expected if bench.version < V3_13 else 1)
        await _again(bench, found, queue)
    equal("history of the other queue", aside in _counts(found), bench.version < V3_13)
    that(older not in _counts(found), "no queue stands there that was never died in")


@row("2.3a", "A published x-death is delivered unchanged until the next death")
async def republished_unchanged(bench: Bench) -> None:
    queue, dead = await pair(bench)
    await bench.put(queue)
    await lap(bench, queue)
    found = await bench.take_done(dead)
    await _again(bench, found, dead)
    back = await bench.take_done(dead)
    equal("x-death", deaths(back), deaths(found))


@row("2.3b", "x-first-death-* of a published message are overwritten from 4.0 on, kept before")
async def republished_first_death(bench: Bench) -> None:
    one, two = await pair(bench)
    other, end = await pair(bench)
    await bench.put(one)
    await lap(bench, one)
    await _again(bench, await bench.take_done(two), other)
    await lap(bench, other)
    first = (await bench.take_done(end)).properties.headers["x-first-death-queue"]
    equal("x-first-death-queue", first, bench.since({"3.0": one, "4.0": other}))


@row("2.4", "A message published into two waits with its x-death is dropped before 3.13")
async def republished_into_a_chain(bench: Bench) -> None:
    main = await bench.classic()
    second = await bench.classic(to(main, message_ttl=20))
    first = await bench.classic(to(second, message_ttl=20))
    await bench.put(first)
    await _again(bench, await bench.take_done(main), first)
    if bench.version < V4_0:
        await bench.pause(0.5)
        equal("ready", [await bench.count(queue) for queue in (first, second, main)], [0, 0, 0])
    else:
        that(await bench.take_done(main), "the message is back")


@row("2.5", "A loop of the broker alone counts right on every version")
async def broker_loop_counts(bench: Bench) -> None:
    for kind in (QueueType.CLASSIC, QueueType.QUORUM):
        main, _ = await reject_loop(bench, kind, 10)
        await bench.put(main)
        for laps in range(4):
            found = await lap(bench, main)
            equal("count", _counts(found).get(main, 0), laps)


@row("3.1", "Parking by publish keeps x-death and x-first-death-* as they are, types and all")
async def parked_as_received(bench: Bench) -> None:
    for kind in (QueueType.CLASSIC, QueueType.QUORUM):
        main, _ = await reject_loop(bench, kind, 10)
        parking = await bench.queue(kind)
        await bench.put(main)
        await lap(bench, main)
        found = await bench.take_done(main)
        await _again(bench, found, parking)
        parked = (await bench.take_done(parking)).properties.headers
        for name, value in found.properties.headers.items():
            if "death" in name:
                equal(name, parked[name], value)
                equal(f"type of {name}", type(parked[name]), type(value))
        that("x-death" in parked, "x-death is there")


@row("3.2a", "Parked with its expiration, a message expires in the parking queue")
async def parked_with_expiration(bench: Bench) -> None:
    for kind in (QueueType.CLASSIC, QueueType.QUORUM):
        queue, parking = await bench.queue(kind), await bench.queue(kind)
        await bench.put(queue, expiration="1000")
        await _again(bench, await bench.take_done(queue), parking)
        await bench.holds(parking, 1)
        await bench.holds(parking, 0)


@row("3.2b", "A published x-delivery-count stays, stale, in a classic queue")
async def stale_delivery_count(bench: Bench) -> None:
    queue = await bench.classic()
    await bench.put(queue, headers={"x-delivery-count": 7})
    equal("header", (await bench.take_done(queue)).properties.headers["x-delivery-count"], 7)


@row("8.1", "A crash between confirm and ack leaves a copy in both queues, never in none")
async def crash_while_moving(bench: Bench) -> None:
    source, target = await bench.quorum(), await bench.quorum()
    await bench.put(source, "moved")
    line = await bench.connect()
    channel = await line.open_channel()
    found = await bench.take(source, channel=channel)
    await channel.publish(Message("", target, found.body, Properties(delivery_mode=2)))
    await line.close()
    await bench.holds(source, 1)
    equal("moved", await bench.bodies(target), ["moved"])
    back = await bench.take_done(source)
    equal("left behind", (back.body, back.redelivered), (b"moved", True))


@row(
    "8.6",
    "Back through the original exchange a message reaches every bound queue, by name only one",
)
async def targets_of_a_redrive(bench: Bench) -> None:
    exchange, mine, other = (
        await bench.exchange("fanout"),
        await bench.classic(),
        await bench.classic(),
    )
    await bench.bind(exchange, mine)
    await bench.bind(exchange, other)
    await bench.put("", "shared", exchange=exchange)
    found = await bench.take_done(mine)
    await bench.take_done(other)
    shared = Message(exchange, "", found.body, replace(found.properties, expiration=None))
    await bench.channel.publish(shared)
    await _again(bench, found, mine)
    await bench.holds(mine, 2)
    await bench.stays(other, 1, 0.1)
