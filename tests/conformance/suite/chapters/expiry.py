"""Time to live of messages and of queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.errors import PreconditionFailed
from hopback.message import Message, Properties
from hopback.topology.model import Policy, Queue, QueueType
from tests.conformance.suite.chapters.arrangements import BOTH, deaths, pair, to
from tests.conformance.suite.row import Tag, equal, expect, row

if TYPE_CHECKING:
    from hopback.fields import FieldValue
    from tests.conformance.suite.subject import Subject

_TEN_YEARS_MS = 315_360_000_000  # RabbitMQ's limit of an expiration


@row("4.1", "Messages expire only at the head: a long TTL delays a short one behind it")
async def head_of_line(subject: Subject) -> None:
    for kind in BOTH:
        queue, dead = await pair(subject, kind)
        await subject.put(queue, "long", expiration="2000")
        await subject.put(queue, "short", expiration="100")
        await subject.stays(dead, 0, 0.6)
        await subject.holds(dead, 2)
        equal("order", await subject.bodies(dead), ["long", "short"])


@row("4.2", "A single message expires at its time and not before")
async def lone_message(subject: Subject) -> None:
    for kind in BOTH:
        queue, dead = await pair(subject, kind, message_ttl=500)
        start = subject.facilities.now()
        await subject.put(queue)
        await subject.take_done(dead)
        waited = subject.facilities.now() - start
        expect(waited >= 0.49, f"it lived 500 ms, not {waited:.3f} s")


@row(
    "4.3a",
    "The shorter of queue TTL and expiration applies. original-expiration is the message's",
)
async def shorter_wins(subject: Subject) -> None:
    for kind in BOTH:
        for queue_ttl, own in ((100, "60000"), (60_000, "100")):
            queue, dead = await pair(subject, kind, message_ttl=queue_ttl)
            await subject.put(queue, expiration=own)
            found = await subject.take_done(dead)
            equal("original-expiration", deaths(found)[0]["original-expiration"], own)


@row("4.3b", "A TTL of 0 expires messages that no consumer receives at once")
async def zero_ttl(subject: Subject) -> None:
    for kind in BOTH:
        queue, dead = await pair(subject, kind, message_ttl=0)
        await subject.put(queue)
        equal("reason", deaths(await subject.take_done(dead))[0]["reason"], "expired")
        equal("left", await subject.channel.get(queue), None)


@row("4.3c", "With a TTL of 0 a waiting consumer still receives the message")
async def zero_ttl_with_consumer(subject: Subject) -> None:
    queue, dead = await pair(subject, message_ttl=0)
    got: list[bytes] = []
    await subject.channel.consume(queue, lambda delivery: got.append(delivery.body))
    await subject.put(queue, "caught")

    async def caught() -> bool:
        return bool(got)

    await subject.eventually(caught, "a delivery")
    await subject.stays(dead, 0, 0.1)


@row("4.4a", "An expiration other than 0 to ten years in milliseconds gives 406")
async def wrong_expirations(subject: Subject) -> None:
    queue = await subject.classic()
    for text in ("soon", "-1", "1.5", "", str(_TEN_YEARS_MS + 1)):
        message = Message("", queue, b"", Properties(expiration=text))
        channel = await subject.open_channel()
        fate = channel.publish(message)
        error = await subject.end_of(channel)
        expect(isinstance(error, PreconditionFailed), f"{text!r} gives 406, not {error!r}")
        expect(await subject.error_of(lambda _, fate=fate: fate), "the publish has failed")  # type: ignore[misc]
    await subject.put(queue, expiration=str(_TEN_YEARS_MS))
    equal("kept", await subject.count(queue), 1)


@row("4.4b", "x-message-ttl and x-expires accept integers within bounds, otherwise 406")
async def wrong_ttl_arguments(subject: Subject) -> None:
    wrong: dict[str, tuple[FieldValue, ...]] = {
        "x-message-ttl": ("300", -1, _TEN_YEARS_MS + 1, 1.5),
        "x-expires": (0, -1, "300", _TEN_YEARS_MS + 1),
    }
    for name, values in wrong.items():
        for value in values:
            queue = Queue(subject.name(), arguments={name: value})
            error = await subject.error_of(
                lambda channel, queue=queue: channel.declare_queue(queue)  # type: ignore[misc]
            )
            expect(isinstance(error, PreconditionFailed), f"{name}={value!r}: 406, not {error!r}")
    await subject.classic({"x-message-ttl": _TEN_YEARS_MS, "x-expires": 600_000})


@row(
    "4.5",
    "The TTL is set on arrival: a new policy does not affect earlier messages",
    Tag.POLICIES,
)
async def ttl_set_on_arrival(subject: Subject) -> None:
    for kind in BOTH:
        queue = await subject.queue(kind)
        await subject.put(queue, "old")
        await subject.set_policy(Policy(queue, f"^{queue}$", {"message-ttl": 100}))
        await subject.stays(queue, 1, 0.5)
        await subject.put(queue, "new")
        await subject.stays(queue, 2, 0.5)
        equal("head", (await subject.take_done(queue)).body, b"old")
        await subject.holds(queue, 0)


@row("4.6", "Unacked messages do not expire. A message that is returned too late expires at once")
async def unacked_does_not_expire(subject: Subject) -> None:
    for kind in BOTH:
        queue, dead = await pair(subject, kind, message_ttl=1000)
        await subject.put(queue)
        held = await subject.take(queue)
        await subject.stays(dead, 0, 1.5)
        subject.channel.nack(held.tag, requeue=True)
        equal("reason", deaths(await subject.take_done(dead))[0]["reason"], "expired")


@row("4.7a", "x-expires deletes an unused classic queue. Another declaration restarts the time")
async def queue_lease(subject: Subject) -> None:
    queue = Queue(subject.name(), arguments={"x-expires": 1500})
    await subject.declare(queue)
    for _ in range(4):
        await subject.pause(0.6)
        await subject.declare(queue)
    expect(await subject.exists(queue.name), "the lease was renewed")
    await _gone(subject, queue.name)


@row("4.7b", "A queue with a consumer does not expire")
async def lease_with_consumer(subject: Subject) -> None:
    name = await subject.classic({"x-expires": 1000})
    tag = await subject.channel.consume(name, lambda _: None)
    await subject.pause(1.6)
    expect(await subject.exists(name), "the queue is kept while it is consumed")
    await subject.channel.cancel(tag)
    await _gone(subject, name)


@row("4.7c", "x-expires deletes an unused quorum queue, which is checked only at intervals")
async def quorum_lease(subject: Subject) -> None:
    name = await subject.queue(QueueType.QUORUM, {"x-expires": 1000})
    expect(await subject.exists(name), "it is there at first")
    await subject.pause(2 * subject.timings.quorum_tick + 1)
    await _gone(subject, name)


@row("4.7e", "Another declaration of a quorum queue does not restart its time")
async def quorum_lease_renewed(subject: Subject) -> None:
    queue = Queue(subject.name(), QueueType.QUORUM, arguments={"x-expires": 1500})
    await subject.declare(queue)
    await subject.put(queue.name, "of the first")
    for _ in range(8):
        await subject.pause(0.6 + subject.timings.quorum_tick / 4)
        await subject.declare(queue)
    equal("left of the first", await subject.bodies(queue.name), [])


@row("4.7d", "Messages of an expired queue are not dead-lettered")
async def lease_takes_messages(subject: Subject) -> None:
    dead = await subject.classic()
    name = await subject.classic(to(dead, expires=100))
    await subject.put(name)
    await _gone(subject, name)
    await subject.stays(dead, 0, 0.2)


async def _gone(subject: Subject, name: str) -> None:
    # A passive declare would renew the lease, so wait first.
    await subject.pause(3.0)
    expect(not await subject.exists(name), f"{name} has expired")
