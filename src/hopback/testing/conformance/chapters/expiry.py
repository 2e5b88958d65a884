"""Time to live: of messages and of queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.errors import PreconditionFailed
from hopback.message import Message, Properties
from hopback.testing.conformance.chapters.arrangements import BOTH, deaths, pair, to
from hopback.testing.conformance.expect import equal, that
from hopback.testing.conformance.row import Tag, row
from hopback.topology.model import Policy, Queue, QueueType

if TYPE_CHECKING:
    from hopback.fields import FieldValue
    from hopback.testing.conformance.bench import Bench

__all__: list[str] = []

_TEN_YEARS_MS = 315_360_000_000  # RabbitMQ's own limit of an expiration


@row("4.1", "Messages expire only at the head: a long one holds up a short one behind it")
async def head_of_line(bench: Bench) -> None:
    for kind in BOTH:
        queue, dead = await pair(bench, kind)
        await bench.put(queue, "long", expiration="2000")
        await bench.put(queue, "short", expiration="100")
        await bench.stays(dead, 0, 0.6)
        await bench.holds(dead, 2)
        equal("order", await bench.bodies(dead), ["long", "short"])


@row("4.2", "A lone message dies when its time has come, and not before")
async def lone_message(bench: Bench) -> None:
    for kind in BOTH:
        queue, dead = await pair(bench, kind, message_ttl=500)
        start = bench.facilities.now()
        await bench.put(queue)
        await bench.take_done(dead)
        waited = bench.facilities.now() - start
        that(waited >= 0.49, f"it lived 500 ms, not {waited:.3f} s")


@row("4.3a", "The shorter of queue TTL and expiration holds; original-expiration is the message's")
async def shorter_wins(bench: Bench) -> None:
    for kind in BOTH:
        for queue_ttl, own in ((100, "60000"), (60_000, "100")):
            queue, dead = await pair(bench, kind, message_ttl=queue_ttl)
            await bench.put(queue, expiration=own)
            found = await bench.take_done(dead)
            equal("original-expiration", deaths(found)[0]["original-expiration"], own)


@row("4.3b", "A TTL of 0 expires what no consumer takes at once")
async def no_time_at_all(bench: Bench) -> None:
    for kind in BOTH:
        queue, dead = await pair(bench, kind, message_ttl=0)
        await bench.put(queue)
        equal("reason", deaths(await bench.take_done(dead))[0]["reason"], "expired")
        equal("left", await bench.channel.get(queue), None)


@row("4.3c", "With a TTL of 0 a waiting consumer still gets the message")
async def no_time_but_a_consumer(bench: Bench) -> None:
    queue, dead = await pair(bench, message_ttl=0)
    got: list[bytes] = []
    await bench.channel.consume(queue, lambda delivery: got.append(delivery.body))
    await bench.put(queue, "caught")

    async def caught() -> bool:
        return bool(got)

    await bench.eventually(caught, "a delivery")
    await bench.stays(dead, 0, 0.1)


@row("4.4a", "An expiration that is no number from 0 to ten years of milliseconds gives 406")
async def wrong_expirations(bench: Bench) -> None:
    queue = await bench.classic()
    for text in ("soon", "-1", "1.5", "", str(_TEN_YEARS_MS + 1)):
        message = Message("", queue, b"", Properties(expiration=text))
        channel = await bench.open_channel()
        fate = channel.publish(message)
        error = await bench.end_of(channel)
        that(isinstance(error, PreconditionFailed), f"{text!r} gives 406, not {error!r}")
        that(await bench.refused(lambda _, fate=fate: fate), "the publish has failed")  # type: ignore[misc]
    await bench.put(queue, expiration=str(_TEN_YEARS_MS))
    equal("kept", await bench.count(queue), 1)


@row("4.4b", "x-message-ttl and x-expires take integers within bounds, else 406")
async def wrong_ttl_arguments(bench: Bench) -> None:
    wrong: dict[str, tuple[FieldValue, ...]] = {
        "x-message-ttl": ("300", -1, _TEN_YEARS_MS + 1, 1.5),
        "x-expires": (0, -1, "300", _TEN_YEARS_MS + 1),
    }
    for name, values in wrong.items():
        for value in values:
            queue = Queue(bench.name(), arguments={name: value})
            error = await bench.refused(lambda channel, queue=queue: channel.declare_queue(queue))  # type: ignore[misc]
            that(isinstance(error, PreconditionFailed), f"{name}={value!r}: 406, not {error!r}")
    await bench.classic({"x-message-ttl": _TEN_YEARS_MS, "x-expires": 600_000})


@row(
    "4.5",
    "TTL is stamped on arrival: a new policy touches no message that is already there",
    Tag.POLICIES,
)
async def stamped_on_arrival(bench: Bench) -> None:
    for kind in BOTH:
        queue = await bench.queue(kind)
        await bench.put(queue, "old")
        await bench.set_policy(Policy(queue, f"^{queue}$", {"message-ttl": 100}))
        await bench.stays(queue, 1, 0.5)
        await bench.put(queue, "new")
        await bench.stays(queue, 2, 0.5)
        equal("head", (await bench.take_done(queue)).body, b"old")
        await bench.holds(queue, 0)


@row("4.6", "What is unacked does not expire; returned too late, it dies at once")
async def unacked_does_not_expire(bench: Bench) -> None:
    for kind in BOTH:
        queue, dead = await pair(bench, kind, message_ttl=1000)
        await bench.put(queue)
        held = await bench.take(queue)
        await bench.stays(dead, 0, 1.5)
        bench.channel.nack(held.tag, requeue=True)
        equal("reason", deaths(await bench.take_done(dead))[0]["reason"], "expired")


@row("4.7a", "x-expires removes an unused classic queue; declaring it again renews the lease")
async def queue_lease(bench: Bench) -> None:
    queue = Queue(bench.name(), arguments={"x-expires": 1500})
    await bench.declare(queue)
    for _ in range(4):
        await bench.pause(0.6)
        await bench.declare(queue)
    that(await bench.exists(queue.name), "the lease was renewed")
    await _gone(bench, queue.name)


@row("4.7b", "A queue with a consumer does not expire")
async def lease_with_consumer(bench: Bench) -> None:
    name = await bench.classic({"x-expires": 1000})
    tag = await bench.channel.consume(name, lambda _: None)
    await bench.pause(1.6)
    that(await bench.exists(name), "the queue is kept while it is consumed")
    await bench.channel.cancel(tag)
    await _gone(bench, name)


@row("4.7c", "x-expires removes an unused quorum queue, looked at only now and then")
async def quorum_lease(bench: Bench) -> None:
    name = await bench.queue(QueueType.QUORUM, {"x-expires": 1000})
    that(await bench.exists(name), "it is there at first")
    await bench.pause(2 * bench.timings.quorum_tick + 1)
    await _gone(bench, name)


@row("4.7e", "Declaring a quorum queue again does not renew its lease")
async def quorum_lease_renewed(bench: Bench) -> None:
    queue = Queue(bench.name(), QueueType.QUORUM, arguments={"x-expires": 1500})
    await bench.declare(queue)
    await bench.put(queue.name, "of the first")
    for _ in range(8):
        await bench.pause(0.6 + bench.timings.quorum_tick / 4)
        await bench.declare(queue)
    equal("left of the first", await bench.bodies(queue.name), [])


@row("4.7d", "Messages of a queue that expires are not dead-lettered")
async def lease_takes_messages(bench: Bench) -> None:
    dead = await bench.classic()
    name = await bench.classic(to(dead, expires=100))
    await bench.put(name)
    await _gone(bench, name)
    await bench.stays(dead, 0, 0.2)


async def _gone(bench: Bench, name: str) -> None:
    # Asking by passive declare would renew the lease: ask rarely.
    await bench.pause(3.0)
    that(not await bench.exists(name), f"{name} has expired")
