"""Consuming: prefetch, order, cancels, single active consumers, recover, timeouts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hopback.errors import AccessRefused, BrokerError, NotFound, PreconditionFailed
from hopback.testing.conformance.chapters.arrangements import BOTH, V4_0, V4_3
from hopback.testing.conformance.expect import equal, that
from hopback.testing.conformance.row import Tag, row
from hopback.topology.model import Queue, QueueType

if TYPE_CHECKING:
    from hopback.broker.port import Channel
    from hopback.fields import Headers
    from hopback.message import Delivery
    from hopback.testing.conformance.bench import Bench

__all__: list[str] = []


@dataclass(slots=True)
class _Listener:
    """A consumer that keeps what it gets."""

    bench: Bench
    channel: Channel
    got: list[Delivery] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    tag: str = ""

    async def start(
        self, queue: str, *, exclusive: bool = False, arguments: Headers | None = None
    ) -> None:
        """Begin to consume."""
        self.tag = await self.channel.consume(
            queue,
            self.got.append,
            on_cancel=self.cancelled.append,
            exclusive=exclusive,
            arguments=arguments,
        )

    def bodies(self) -> str:
        """What came so far."""
        return "".join(delivery.body.decode() for delivery in self.got)

    async def has(self, bodies: str) -> None:
        """Wait until exactly this has come."""

        async def check() -> bool:
            return len(self.got) >= len(bodies)

        await self.bench.eventually(check, f"{bodies} at the consumer")
        equal("deliveries", self.bodies(), bodies)

    async def is_cancelled(self, within: float = 10.0) -> None:
        """Wait until the broker has ended the consumer."""

        async def check() -> bool:
            return self.cancelled == [self.tag]

        await self.bench.eventually(check, "a cancel by the broker", within)


async def _listener(bench: Bench, prefetch: int = 0) -> _Listener:
    """A listener on a channel of its own."""
    channel = await bench.open_channel()
    await channel.qos(prefetch)
    return _Listener(bench, channel)


@row("9.9a", "Prefetch bounds what is unsettled; each settlement makes room for one more")
async def prefetch(bench: Bench) -> None:
    for kind in BOTH:
        queue, listener = await bench.queue(kind), await _listener(bench, 2)
        await bench.put(queue, *"12345")
        await listener.start(queue)
        await listener.has("12")
        await bench.stays(queue, 3, 0.2)
        listener.channel.ack(listener.got[0].tag)
        await listener.has("123")
        await bench.stays(queue, 2, 0.2)


@row("9.9b", "Prefetch 0 is no limit")
async def no_prefetch(bench: Bench) -> None:
    queue, listener = await bench.classic(), await _listener(bench, 0)
    await bench.put(queue, *"123456789")
    await listener.start(queue)
    await listener.has("123456789")


@row("9.9c", "Prefetch holds for each consumer of a channel, from the next one started on")
async def prefetch_per_consumer(bench: Bench) -> None:
    queue, listener = await bench.classic(), await _listener(bench, 1)
    await bench.put(queue, *"1234")
    await listener.start(queue)
    await listener.has("1")
    second = _Listener(bench, listener.channel)
    await second.start(queue)
    await second.has("2")
    await bench.stays(queue, 2, 0.2)


@row("9.9d", "Consumers of a queue take turns")
async def round_robin(bench: Bench) -> None:
    queue = await bench.classic()
    one, two = await _listener(bench), await _listener(bench)
    await one.start(queue)
    await two.start(queue)
    await bench.put(queue, *"123456")

    async def all_there() -> bool:
        return len(one.got) + len(two.got) == 6

    await bench.eventually(all_there, "six deliveries")
    equal("shares", {one.bodies(), two.bodies()}, {"135", "246"})


@row("9.9e", "A consumer of higher priority is served first, until it is full")
async def consumer_priority(bench: Bench) -> None:
    queue, low, high = await bench.classic(), await _listener(bench, 9), await _listener(bench, 2)
    await low.start(queue)
    await high.start(queue, arguments={"x-priority": 5})
    await bench.put(queue, *"1234")
    await high.has("12")
    await low.has("34")


@row("9.8a", "A queue deleted under its consumer cancels it; the channel stays open")
async def deleted_under_consumer(bench: Bench) -> None:
    for kind in BOTH:
        queue, listener = await bench.queue(kind), await _listener(bench)
        await listener.start(queue)
        await bench.channel.delete_queue(queue)
        await listener.is_cancelled()
        await listener.channel.declare_queue(Queue(bench.name()))


@row("9.8b", "A second consumer beside an exclusive one is refused with 403 by a classic queue")
async def exclusive_consumer(bench: Bench) -> None:
    queue, listener = await bench.classic(), await _listener(bench)
    await listener.start(queue, exclusive=True)
    error = await bench.refused(lambda channel: channel.consume(queue, lambda _: None))
    that(isinstance(error, AccessRefused), f"403, not {error!r}")


@row("9.8k", "A quorum queue ignores that a consumer wants to be the only one")
async def exclusive_quorum_consumer(bench: Bench) -> None:
    queue, one, two = await bench.quorum(), await _listener(bench, 1), await _listener(bench, 1)
    await one.start(queue, exclusive=True)
    await two.start(queue)
    await bench.put(queue, *"12")
    await one.has("1")
    await two.has("2")


@row("9.8c", "Single active consumer: one gets everything, the next takes over when it goes")
async def single_active(bench: Bench) -> None:
    for kind in BOTH:
        queue = await bench.queue(kind, {"x-single-active-consumer": True})
        one, two = await _listener(bench), await _listener(bench)
        await one.start(queue)
        await two.start(queue)
        await bench.put(queue, *"123")
        await one.has("123")
        equal("the second waits", two.bodies(), "")
        for delivery in one.got:
            one.channel.ack(delivery.tag)
        await one.channel.cancel(one.tag)
        await bench.put(queue, *"45")
        await two.has("45")


@row("9.8d", "basic.get passes a single active consumer by")
async def get_beside_single_active(bench: Bench) -> None:
    queue = await bench.classic({"x-single-active-consumer": True})
    listener = await _listener(bench, 1)
    await listener.start(queue)
    await bench.put(queue, *"12")
    await listener.has("1")
    equal("got", (await bench.take(queue)).body, b"2")


@row(
    "9.8e", "Consuming from a missing queue gives 404; a tag in use ends the connection or channel"
)
async def consume_missing(bench: Bench) -> None:
    missing = bench.name("missing")
    error = await bench.refused(lambda channel: channel.consume(missing, lambda _: None))
    that(isinstance(error, NotFound), f"404, not {error!r}")
    error = await bench.refused(lambda channel: channel.get(missing))
    that(isinstance(error, NotFound), f"404 for get, not {error!r}")


@row("9.8f", "A cancelled consumer gets nothing more; what it holds stays held")
async def cancelled(bench: Bench) -> None:
    queue, listener = await bench.classic(), await _listener(bench, 1)
    await bench.put(queue, *"12")
    await listener.start(queue)
    await listener.has("1")
    await listener.channel.cancel(listener.tag)
    listener.channel.ack(listener.got[0].tag)
    await bench.stays(queue, 1, 0.2)
    equal("deliveries", listener.bodies(), "1")
    equal("no cancel by the broker", listener.cancelled, [])


@row(
    "9.8p",
    "A quorum queue counts a cancelled consumer while it holds messages, and none that waits to be active",
)
async def counted(bench: Bench) -> None:
    for kind in BOTH:
        for single in (False, True):
            arguments: Headers = {"x-single-active-consumer": True} if single else {}
            queue = await bench.queue(kind, arguments)
            one, two = await _listener(bench, 2), await _listener(bench, 2)
            await bench.put(queue, *"12")
            await one.start(queue)
            await one.has("12")
            await two.start(queue)
            quorum = kind is QueueType.QUORUM
            await _consumers_of(bench, queue, 1 if quorum and single else 2)
            await one.channel.cancel(one.tag)
            await _consumers_of(bench, queue, 2 if quorum else 1)
            one.channel.ack(one.got[1].tag, multiple=True)
            await _consumers_of(bench, queue, 1)


async def _consumers_of(bench: Bench, queue: str, count: int) -> None:
    async def check() -> bool:
        state = await bench.channel.declare_queue(Queue(queue), passive=True)
        return state.consumers == count

    await bench.eventually(check, f"a count of {count} consumers")


@row(
    "9.8q",
    "The next consumer of a cancelled one's tag: in a quorum queue it begins with what that one holds,"
    " in a classic queue with room of its own, to which the other's acks add",
    since=V4_0,
)
async def same_tag_again(bench: Bench) -> None:
    for kind in BOTH:
        queue, listener = await bench.queue(kind), await _listener(bench, 2)
        await bench.put(queue, *"123456")
        channel, tag = listener.channel, "same"
        await channel.consume(queue, listener.got.append, tag=tag)
        await listener.has("12")
        await channel.cancel(tag)
        await channel.consume(queue, listener.got.append, tag=tag)
        quorum = kind is QueueType.QUORUM
        await bench.holds(queue, 4 if quorum else 2)
        channel.ack(listener.got[0].tag)
        await bench.holds(queue, 3 if quorum else 1)
        await bench.stays(queue, 3 if quorum else 1, 0.2)


@row(
    "9.8r",
    "When the single active consumer of a queue is cancelled with messages in hand, the next one is"
    " served at once; in a classic queue before 4.0 only when a message comes back",
)
async def cancelled_active(bench: Bench) -> None:
    for kind in BOTH:
        queue = await bench.queue(kind, {"x-single-active-consumer": True})
        one, two = await _listener(bench, 2), await _listener(bench, 2)
        await bench.put(queue, *"12345")
        await one.start(queue)
        await one.has("12")
        await two.start(queue)
        await one.channel.cancel(one.tag)
        if kind is QueueType.CLASSIC and bench.version < V4_0:
            one.channel.ack(one.got[0].tag)
            await bench.stays(queue, 3, 0.2)
            equal("served", two.bodies(), "")
            one.channel.nack(one.got[1].tag, requeue=True)
            await two.has("23")  # a publish in this state ends the queue's process: it is nacked
        else:
            await two.has("34")


@row("9.8g", "A consumer's tag is chosen by the broker if none is given, and kept if one is")
async def consumer_tags(bench: Bench) -> None:
    queue = await bench.classic()
    own = await bench.channel.consume(queue, lambda _: None, tag="mine")
    made = await bench.channel.consume(queue, lambda _: None)
    equal("own tag", own, "mine")
    that(made not in ("", "mine"), "a tag was made")


@row("9.8h", "Tags count deliveries of a channel from 1, whatever brought them")
async def delivery_tags(bench: Bench) -> None:
    queue, listener = await bench.classic(), await _listener(bench, 1)
    await bench.put(queue, *"123")
    await listener.start(queue)
    await listener.has("1")
    second = await bench.take(queue, channel=listener.channel)
    equal("tags", (listener.got[0].tag, second.tag), (1, 2))
    equal("queue", {listener.got[0].queue, second.queue}, {queue})


@row("9.8i", "recover brings everything unsettled back, marked as redelivered")
async def recover(bench: Bench) -> None:
    queue = await bench.classic()
    await bench.put(queue, *"12")
    channel = await bench.open_channel()
    for _ in range(2):
        await bench.take(queue, channel=channel)
    await channel.recover()
    await bench.holds(queue, 2)
    again = [await bench.take(queue, channel=channel) for _ in range(2)]
    equal("again", [(each.body, each.redelivered) for each in again], [(b"1", True), (b"2", True)])


@row("9.8j", "A lost connection gives back what it held, in order and marked as redelivered")
async def connection_closed(bench: Bench) -> None:
    for kind in BOTH:
        queue, line = await bench.queue(kind), await bench.connect()
        await bench.put(queue, *"123")
        listener = _Listener(bench, await line.open_channel())
        await listener.start(queue)
        await listener.has("123")
        await line.close()
        await bench.holds(queue, 3)
        found = [await bench.take(queue) for _ in range(3)]
        equal("order", "".join(each.body.decode() for each in found), "123")
        equal("redelivered", {each.redelivered for each in found}, {True})


async def _timed_out(bench: Bench) -> float:
    """How long to wait for a consumer timeout, with room."""
    timings = bench.timings
    return timings.consumer_timeout + 3 * timings.consumer_check + 5


@row(
    "9.7a",
    "A consumer that holds too long loses its channel (406) before 4.3, with all it held",
    Tag.TIMEOUT,
    Tag.SLOW,
    until=V4_3,
)
async def consumer_timeout(bench: Bench) -> None:
    for kind in BOTH:
        queue, listener = await bench.queue(kind), await _listener(bench)
        await bench.put(queue, *"12")
        await listener.start(queue)
        await listener.has("12")
        await _ends(bench, listener.channel)
        await bench.holds(queue, 2)


@row(
    "9.7b",
    "On 4.3 a quorum queue cancels the consumer that holds too long; the channel lives",
    Tag.TIMEOUT,
    Tag.SLOW,
    since=V4_3,
)
async def consumer_cancelled_by_timeout(bench: Bench) -> None:
    queue, listener = await bench.quorum(), await _listener(bench)
    await bench.put(queue)
    await listener.start(queue)
    await listener.has("m")
    await listener.is_cancelled(await _timed_out(bench))
    await bench.holds(queue, 1)
    listener.channel.ack(listener.got[0].tag)
    await bench.pause(0.3)
    equal("deliveries", listener.bodies(), "m")
    await listener.channel.declare_queue(Queue(bench.name()))
    equal("still to be had", (await bench.take(queue)).redelivered, True)


@row(
    "9.7c",
    "What basic.get holds too long ends the channel: both types before 4.3, quorum since",
    Tag.TIMEOUT,
    Tag.SLOW,
)
async def get_timeout(bench: Bench) -> None:
    for kind in BOTH if bench.version < V4_3 else (QueueType.QUORUM,):
        queue, channel = await bench.queue(kind), await bench.open_channel()
        await bench.put(queue)
        await bench.take(queue, channel=channel)
        await _ends(bench, channel)
        await bench.holds(queue, 1)


@row("9.7d", "On 4.3 a classic queue never times out", Tag.TIMEOUT, Tag.SLOW, since=V4_3)
async def classic_never_times_out(bench: Bench) -> None:
    queue, channel = await bench.classic(), await bench.open_channel()
    await bench.put(queue)
    held = await bench.take(queue, channel=channel)
    await bench.pause(await _timed_out(bench))
    channel.ack(held.tag)
    await channel.close()
    await bench.stays(queue, 0, 0.2)


async def _ends(bench: Bench, channel: Channel) -> None:
    """Wait until the broker has ended the channel with 406."""

    async def closed() -> BrokerError | None:
        try:
            await channel.qos(0)
        except BrokerError as error:
            return error
        return None

    error = await bench.eventually(closed, "a timeout", await _timed_out(bench))
    that(isinstance(error, PreconditionFailed), f"406, not {error!r}")
