"""Consuming: prefetch, order, cancels, single active consumers, recover, timeouts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hopback.errors import AccessRefused, BrokerError, NotFound, PreconditionFailed
from hopback.topology.model import Queue, QueueType
from tests.conformance.suite.chapters.arrangements import BOTH, V4_0, V4_3
from tests.conformance.suite.row import Tag, equal, expect, row

if TYPE_CHECKING:
    from hopback.broker.port import Channel
    from hopback.fields import Headers
    from hopback.message import Delivery
    from tests.conformance.suite.subject import Subject


@dataclass(slots=True)
class _Listener:
    """A consumer that records its deliveries."""

    subject: Subject
    channel: Channel
    got: list[Delivery] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    tag: str = ""

    async def start(
        self, queue: str, *, exclusive: bool = False, arguments: Headers | None = None
    ) -> None:
        self.tag = await self.channel.consume(
            queue,
            self.got.append,
            on_cancel=self.cancelled.append,
            exclusive=exclusive,
            arguments=arguments,
        )

    def bodies(self) -> str:
        return "".join(delivery.body.decode() for delivery in self.got)

    async def has(self, bodies: str) -> None:
        """Wait until exactly these bodies have been delivered."""

        async def check() -> bool:
            return len(self.got) >= len(bodies)

        await self.subject.eventually(check, f"a delivery of {bodies}")
        equal("deliveries", self.bodies(), bodies)

    async def is_cancelled(self, within: float = 10.0) -> None:
        """Wait until the broker has cancelled the consumer."""

        async def check() -> bool:
            return self.cancelled == [self.tag]

        await self.subject.eventually(check, "a cancel by the broker", within)


async def _listener(subject: Subject, prefetch: int = 0) -> _Listener:
    """Return a listener on a separate channel."""
    channel = await subject.open_channel()
    await channel.qos(prefetch)
    return _Listener(subject, channel)


@row("9.9a", "The prefetch limits unacked messages. Each settlement permits one more")
async def prefetch(subject: Subject) -> None:
    for kind in BOTH:
        queue, listener = await subject.queue(kind), await _listener(subject, 2)
        await subject.put(queue, *"12345")
        await listener.start(queue)
        await listener.has("12")
        await subject.stays(queue, 3, 0.2)
        listener.channel.ack(listener.got[0].tag)
        await listener.has("123")
        await subject.stays(queue, 2, 0.2)


@row("9.9b", "A prefetch of 0 means no limit")
async def no_prefetch(subject: Subject) -> None:
    queue, listener = await subject.classic(), await _listener(subject, 0)
    await subject.put(queue, *"123456789")
    await listener.start(queue)
    await listener.has("123456789")


@row("9.9c", "The prefetch applies to each later consumer of a channel")
async def prefetch_per_consumer(subject: Subject) -> None:
    queue, listener = await subject.classic(), await _listener(subject, 1)
    await subject.put(queue, *"1234")
    await listener.start(queue)
    await listener.has("1")
    second = _Listener(subject, listener.channel)
    await second.start(queue)
    await second.has("2")
    await subject.stays(queue, 2, 0.2)


@row("9.9d", "Consumers of a queue get messages in turn")
async def round_robin(subject: Subject) -> None:
    queue = await subject.classic()
    one, two = await _listener(subject), await _listener(subject)
    await one.start(queue)
    await two.start(queue)
    await subject.put(queue, *"123456")

    async def all_there() -> bool:
        return len(one.got) + len(two.got) == 6

    await subject.eventually(all_there, "six deliveries")
    equal("shares", {one.bodies(), two.bodies()}, {"135", "246"})


@row("9.9e", "A consumer with a higher priority gets messages first, until its prefetch is full")
async def consumer_priority(subject: Subject) -> None:
    queue, low, high = (
        await subject.classic(),
        await _listener(subject, 9),
        await _listener(subject, 2),
    )
    await low.start(queue)
    await high.start(queue, arguments={"x-priority": 5})
    await subject.put(queue, *"1234")
    await high.has("12")
    await low.has("34")


@row("9.8a", "Deleting a queue cancels its consumers. The channel stays open")
async def queue_deletion_cancels(subject: Subject) -> None:
    for kind in BOTH:
        queue, listener = await subject.queue(kind), await _listener(subject)
        await listener.start(queue)
        await subject.channel.delete_queue(queue)
        await listener.is_cancelled()
        await listener.channel.declare_queue(Queue(subject.name()))


@row("9.8b", "A classic queue refuses a second consumer beside an exclusive one with 403")
async def exclusive_consumer(subject: Subject) -> None:
    queue, listener = await subject.classic(), await _listener(subject)
    await listener.start(queue, exclusive=True)
    error = await subject.error_of(lambda channel: channel.consume(queue, lambda _: None))
    expect(isinstance(error, AccessRefused), f"403, not {error!r}")


@row("9.8k", "A quorum queue ignores the exclusive flag of a consumer")
async def exclusive_quorum_consumer(subject: Subject) -> None:
    queue, one, two = (
        await subject.quorum(),
        await _listener(subject, 1),
        await _listener(subject, 1),
    )
    await one.start(queue, exclusive=True)
    await two.start(queue)
    await subject.put(queue, *"12")
    await one.has("1")
    await two.has("2")


@row(
    "9.8c",
    "A single active consumer gets all messages. The next one takes over when it is cancelled",
)
async def single_active(subject: Subject) -> None:
    for kind in BOTH:
        queue = await subject.queue(kind, {"x-single-active-consumer": True})
        one, two = await _listener(subject), await _listener(subject)
        await one.start(queue)
        await two.start(queue)
        await subject.put(queue, *"123")
        await one.has("123")
        equal("deliveries to the second consumer", two.bodies(), "")
        for delivery in one.got:
            one.channel.ack(delivery.tag)
        await one.channel.cancel(one.tag)
        await subject.put(queue, *"45")
        await two.has("45")


@row("9.8d", "basic.get ignores a single active consumer")
async def get_beside_single_active(subject: Subject) -> None:
    queue = await subject.classic({"x-single-active-consumer": True})
    listener = await _listener(subject, 1)
    await listener.start(queue)
    await subject.put(queue, *"12")
    await listener.has("1")
    equal("got", (await subject.take(queue)).body, b"2")


@row("9.8e", "Consuming from a missing queue gives 404")
async def consume_missing(subject: Subject) -> None:
    missing = subject.name("missing")
    error = await subject.error_of(lambda channel: channel.consume(missing, lambda _: None))
    expect(isinstance(error, NotFound), f"404, not {error!r}")
    error = await subject.error_of(lambda channel: channel.get(missing))
    expect(isinstance(error, NotFound), f"404 for get, not {error!r}")


@row("9.8f", "A cancelled consumer gets no more messages and keeps its unacked ones")
async def consumer_cancel(subject: Subject) -> None:
    queue, listener = await subject.classic(), await _listener(subject, 1)
    await subject.put(queue, *"12")
    await listener.start(queue)
    await listener.has("1")
    await listener.channel.cancel(listener.tag)
    listener.channel.ack(listener.got[0].tag)
    await subject.stays(queue, 1, 0.2)
    equal("deliveries", listener.bodies(), "1")
    equal("no cancel by the broker", listener.cancelled, [])


@row(
    "9.8p",
    "A quorum queue counts a cancelled consumer while it has unacked messages, but not "
    "consumers that wait to be active",
)
async def consumer_count(subject: Subject) -> None:
    for kind in BOTH:
        for single in (False, True):
            arguments: Headers = {"x-single-active-consumer": True} if single else {}
            queue = await subject.queue(kind, arguments)
            one, two = await _listener(subject, 2), await _listener(subject, 2)
            await subject.put(queue, *"12")
            await one.start(queue)
            await one.has("12")
            await two.start(queue)
            quorum = kind is QueueType.QUORUM
            await _consumers_of(subject, queue, 1 if quorum and single else 2)
            await one.channel.cancel(one.tag)
            await _consumers_of(subject, queue, 2 if quorum else 1)
            one.channel.ack(one.got[1].tag, multiple=True)
            await _consumers_of(subject, queue, 1)


async def _consumers_of(subject: Subject, queue: str, count: int) -> None:
    async def check() -> bool:
        state = await subject.channel.declare_queue(Queue(queue), passive=True)
        return state.consumers == count

    await subject.eventually(check, f"a count of {count} consumers")


@row(
    "9.8q",
    "A new consumer with the tag of a cancelled one: on a quorum queue it continues with "
    "the unacked messages of the old one, on a classic queue with its own prefetch, to "
    "which acks of old messages add",
    since=V4_0,
)
async def same_tag_again(subject: Subject) -> None:
    for kind in BOTH:
        queue, listener = await subject.queue(kind), await _listener(subject, 2)
        await subject.put(queue, *"123456")
        channel, tag = listener.channel, "same"
        await channel.consume(queue, listener.got.append, tag=tag)
        await listener.has("12")
        await channel.cancel(tag)
        await channel.consume(queue, listener.got.append, tag=tag)
        quorum = kind is QueueType.QUORUM
        await subject.holds(queue, 4 if quorum else 2)
        channel.ack(listener.got[0].tag)
        await subject.holds(queue, 3 if quorum else 1)
        await subject.stays(queue, 3 if quorum else 1, 0.2)


@row(
    "9.8r",
    "When a single active consumer with unacked messages is cancelled, the next one is "
    "served at once, on a classic queue before 4.0 only after a message was requeued",
)
async def active_consumer_cancel(subject: Subject) -> None:
    for kind in BOTH:
        queue = await subject.queue(kind, {"x-single-active-consumer": True})
        one, two = await _listener(subject, 2), await _listener(subject, 2)
        await subject.put(queue, *"12345")
        await one.start(queue)
        await one.has("12")
        await two.start(queue)
        await one.channel.cancel(one.tag)
        if kind is QueueType.CLASSIC and subject.version < V4_0:
            one.channel.ack(one.got[0].tag)
            await subject.stays(queue, 3, 0.2)
            equal("served", two.bodies(), "")
            one.channel.nack(one.got[1].tag, requeue=True)
            await two.has("23")  # a publish in this state crashes the queue process and is nacked
        else:
            await two.has("34")


@row("9.8g", "A consumer keeps the tag of its client. Without one the broker chooses it")
async def consumer_tags(subject: Subject) -> None:
    queue = await subject.classic()
    own = await subject.channel.consume(queue, lambda _: None, tag="mine")
    made = await subject.channel.consume(queue, lambda _: None)
    equal("own tag", own, "mine")
    expect(made not in ("", "mine"), "the broker generates a tag")


@row("9.8h", "Delivery tags of a channel count from 1, for consumers and basic.get together")
async def delivery_tags(subject: Subject) -> None:
    queue, listener = await subject.classic(), await _listener(subject, 1)
    await subject.put(queue, *"123")
    await listener.start(queue)
    await listener.has("1")
    second = await subject.take(queue, channel=listener.channel)
    equal("tags", (listener.got[0].tag, second.tag), (1, 2))
    equal("queue", {listener.got[0].queue, second.queue}, {queue})


@row("9.8i", "recover requeues all unacked messages as redelivered")
async def recover(subject: Subject) -> None:
    queue = await subject.classic()
    await subject.put(queue, *"12")
    channel = await subject.open_channel()
    for _ in range(2):
        await subject.take(queue, channel=channel)
    await channel.recover()
    await subject.holds(queue, 2)
    again = [await subject.take(queue, channel=channel) for _ in range(2)]
    equal("again", [(each.body, each.redelivered) for each in again], [(b"1", True), (b"2", True)])


@row("9.8j", "A lost connection requeues its messages in order, as redelivered")
async def connection_loss(subject: Subject) -> None:
    for kind in BOTH:
        queue, connection = await subject.queue(kind), await subject.connect()
        await subject.put(queue, *"123")
        listener = _Listener(subject, await connection.open_channel())
        await listener.start(queue)
        await listener.has("123")
        await connection.close()
        await subject.holds(queue, 3)
        found = [await subject.take(queue) for _ in range(3)]
        equal("order", "".join(each.body.decode() for each in found), "123")
        equal("redelivered", {each.redelivered for each in found}, {True})


async def _timeout_with_margin(subject: Subject) -> float:
    """Return how long to wait for a consumer timeout, with a margin."""
    timings = subject.timings
    return timings.consumer_timeout + 3 * timings.consumer_check + 5


@row(
    "9.7a",
    "Before 4.3 a consumer timeout closes the channel (406) and requeues all its messages",
    Tag.TIMEOUT,
    Tag.SLOW,
    until=V4_3,
)
async def consumer_timeout(subject: Subject) -> None:
    for kind in BOTH:
        queue, listener = await subject.queue(kind), await _listener(subject)
        await subject.put(queue, *"12")
        await listener.start(queue)
        await listener.has("12")
        await _ends(subject, listener.channel)
        await subject.holds(queue, 2)


@row(
    "9.7b",
    "On 4.3 a consumer timeout of a quorum queue cancels the consumer, and the channel stays open",
    Tag.TIMEOUT,
    Tag.SLOW,
    since=V4_3,
)
async def cancel_by_timeout(subject: Subject) -> None:
    queue, listener = await subject.quorum(), await _listener(subject)
    await subject.put(queue)
    await listener.start(queue)
    await listener.has("m")
    await listener.is_cancelled(await _timeout_with_margin(subject))
    await subject.holds(queue, 1)
    listener.channel.ack(listener.got[0].tag)
    await subject.pause(0.3)
    equal("deliveries", listener.bodies(), "m")
    await listener.channel.declare_queue(Queue(subject.name()))
    equal("still there", (await subject.take(queue)).redelivered, True)


@row(
    "9.7c",
    "A timeout after basic.get closes the channel, for both types before 4.3, then only "
    "for quorum queues",
    Tag.TIMEOUT,
    Tag.SLOW,
)
async def get_timeout(subject: Subject) -> None:
    for kind in BOTH if subject.version < V4_3 else (QueueType.QUORUM,):
        queue, channel = await subject.queue(kind), await subject.open_channel()
        await subject.put(queue)
        await subject.take(queue, channel=channel)
        await _ends(subject, channel)
        await subject.holds(queue, 1)


@row("9.7d", "On 4.3 a classic queue has no consumer timeout", Tag.TIMEOUT, Tag.SLOW, since=V4_3)
async def classic_never_times_out(subject: Subject) -> None:
    queue, channel = await subject.classic(), await subject.open_channel()
    await subject.put(queue)
    held = await subject.take(queue, channel=channel)
    await subject.pause(await _timeout_with_margin(subject))
    channel.ack(held.tag)
    await channel.close()
    await subject.stays(queue, 0, 0.2)


@row(
    "9.7e",
    "A timeout after the consumer was cancelled closes the channel, on 4.3 also for a quorum queue",
    Tag.TIMEOUT,
    Tag.SLOW,
)
async def timeout_after_cancelled_consumer(subject: Subject) -> None:
    queue, listener = await subject.quorum(), await _listener(subject)
    await subject.put(queue)
    await listener.start(queue)
    await listener.has("m")
    await listener.channel.cancel(listener.tag)
    await _ends(subject, listener.channel)
    await subject.holds(queue, 1)


async def _ends(subject: Subject, channel: Channel) -> None:
    """Wait until the broker has closed the channel with 406."""

    async def closed() -> BrokerError | None:
        try:
            await channel.qos(0)
        except BrokerError as error:
            return error
        return None

    error = await subject.eventually(closed, "a timeout", await _timeout_with_margin(subject))
    expect(isinstance(error, PreconditionFailed), f"406, not {error!r}")
