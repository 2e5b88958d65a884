"""Declaring, checking and deleting queues and exchanges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.errors import (
    AccessRefused,
    BrokerError,
    ChannelClosed,
    ConnectionLost,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
)
from hopback.message import Message
from hopback.topology.model import Binding, Exchange, Queue, QueueType
from tests.conformance.suite.chapters.arrangements import BOTH, V4_0, to
from tests.conformance.suite.row import equal, expect, row

if TYPE_CHECKING:
    from hopback.fields import Headers
    from tests.conformance.suite.subject import Subject


async def _conflict(subject: Subject, queue: Queue) -> str:
    """Return the text with which the broker refuses the declare with 406."""
    error = await subject.error_of(lambda channel: channel.declare_queue(queue))
    if not isinstance(error, PreconditionFailed):
        expect(condition=False, what=f"{queue} gives 406, not {error!r}")
    return str(error)


@row("6.1a", "A different, missing or additional argument gives 406, which names the argument")
async def other_arguments(subject: Subject) -> None:
    name = await subject.classic({"x-message-ttl": 1000})
    others: tuple[tuple[str, Headers], ...] = (
        ("x-message-ttl", {"x-message-ttl": 2000}),
        ("x-message-ttl", {}),
        ("x-max-length", {"x-message-ttl": 1000, "x-max-length": 5}),
        ("x-dead-letter-exchange", {"x-message-ttl": 1000, "x-dead-letter-exchange": ""}),
    )
    for argument, arguments in others:
        text = await _conflict(subject, Queue(name, arguments=arguments))
        expect(argument in text and name in text, f"{argument} and {name} are named in {text!r}")


@row("6.1b", "A different type, durability or auto-delete gives 406")
async def other_nature(subject: Subject) -> None:
    name = await subject.classic()
    await _conflict(subject, Queue(name, QueueType.QUORUM))
    await _conflict(subject, Queue(name, durable=False))
    await _conflict(subject, Queue(name, auto_delete=True))


@row("6.1c", "An equal declaration succeeds and returns the number of messages")
async def same_again(subject: Subject) -> None:
    for kind in BOTH:
        queue = Queue(subject.name(), kind, arguments={"x-message-ttl": 60_000})
        await subject.declare(queue)
        await subject.put(queue.name, "1", "2")
        await subject.holds(queue.name, 2)
        equal("messages", (await subject.channel.declare_queue(queue)).messages, 2)


@row("6.1d", "Unknown arguments are not compared. An explicit type classic equals no type")
async def not_compared(subject: Subject) -> None:
    name = await subject.classic()
    await subject.declare(Queue(name, arguments={"own": 1}))
    await subject.declare(Queue(name, arguments={"x-queue-type": "classic"}))


@row("6.1e", "An exchange's type, durability and alternate exchange are compared")
async def other_exchange(subject: Subject) -> None:
    name = await subject.exchange("direct", {"alternate-exchange": "one"})
    same: Headers = {"alternate-exchange": "one"}
    others = (
        Exchange(name, "fanout", arguments=same),
        Exchange(name, "direct", durable=False, arguments=same),
        Exchange(name, "direct", arguments={"alternate-exchange": "two"}),
    )
    for other in others:
        error = await subject.error_of(lambda channel, other=other: channel.declare_exchange(other))  # type: ignore[misc]
        expect(isinstance(error, PreconditionFailed), f"{other} gives 406, not {error!r}")
    await subject.channel.declare_exchange(Exchange(name, "direct", arguments=same))


@row("6.2a", "A passive declare compares only the name and counts ready messages")
async def passive(subject: Subject) -> None:
    name = await subject.quorum({"x-message-ttl": 60_000})
    await subject.put(name, "1", "2", "3")
    await subject.take(name)
    await subject.holds(name, 2)
    state = await subject.channel.declare_queue(Queue(name, durable=False), passive=True)
    equal("state", (state.name, state.messages), (name, 2))


@row("6.2b", "A passive declare of a missing object gives 404 and closes the channel")
async def missing_passive(subject: Subject) -> None:
    name = subject.name()
    channel = await subject.open_channel()
    for attempt in (
        channel.declare_queue(Queue(name), passive=True),
        channel.get(await subject.classic()),
    ):
        error: BrokerError | None = None
        try:
            await attempt
        except BrokerError as found:
            error = found
        expect(isinstance(error, NotFound), f"404 for this and later calls, not {error!r}")
    missing = Exchange(subject.name("exchange"))
    error = await subject.error_of(lambda fresh: fresh.declare_exchange(missing, passive=True))
    expect(isinstance(error, NotFound), f"404 for the exchange, not {error!r}")


@row("6.2c", "A declare counts the consumers")
async def counts_consumers(subject: Subject) -> None:
    name = await subject.classic()
    for _ in range(2):
        await subject.channel.consume(name, lambda _: None)
    state = await subject.channel.declare_queue(Queue(name), passive=True)
    equal("consumers", state.consumers, 2)


@row("6.7", "New channels can use a queue that was deleted and declared with another type")
async def type_change(subject: Subject) -> None:
    name = await subject.quorum()
    await subject.put(name)
    equal("deleted", await subject.channel.delete_queue(name), 1)
    connection = await subject.connect()
    channel = await connection.open_channel()
    await channel.declare_queue(Queue(name))
    await subject.put(name, "fresh")
    equal("body", (await subject.take(name, channel=channel)).body, b"fresh")


@row(
    "6.7b",
    "A client that used a queue before its type changed loses the connection at the next get",
)
async def type_change_under_a_channel(subject: Subject) -> None:
    for before, after in (
        (QueueType.QUORUM, QueueType.CLASSIC),
        (QueueType.CLASSIC, QueueType.QUORUM),
    ):
        name = await subject.queue(before)
        connection = await subject.connect()
        channel = await connection.open_channel()
        await channel.get(name)
        await subject.channel.delete_queue(name)
        await subject.queue(after, name=name)
        lost = before is QueueType.QUORUM or subject.version < V4_0
        try:
            await channel.get(name)
            ended = False
        except ConnectionLost:
            ended = True
        equal(f"{before} to {after} ends the connection", ended, lost)


@row("A.1", "The broker names a queue without a name")
async def server_named(subject: Subject) -> None:
    one = await subject.channel.declare_queue(Queue("", durable=False, exclusive=True))
    two = await subject.channel.declare_queue(Queue("", durable=False, exclusive=True))
    expect(one.name.startswith("amq.gen-"), f"generated names start with amq.gen-, not {one.name}")
    expect(one.name != two.name, "the names differ")
    await subject.put(one.name)
    equal("ready", await subject.count(one.name), 1)


@row("A.2", "An exclusive queue is locked for other connections and deleted with its own")
async def exclusive(subject: Subject) -> None:
    owner = await subject.connect()
    channel = await owner.open_channel()
    queue = Queue(subject.name(), durable=False, exclusive=True)
    await channel.declare_queue(queue)
    error = await subject.error_of(lambda other: other.get(queue.name))
    expect(isinstance(error, ResourceLocked), f"405 for others, not {error!r}")
    await owner.close()

    async def gone() -> bool:
        return not await subject.exists(queue.name)

    await subject.eventually(gone, "an end of the exclusive queue")


@row("A.3", "An auto-delete queue is deleted with its last consumer, not before the first")
async def auto_delete(subject: Subject) -> None:
    name = await subject.declare(Queue(subject.name(), auto_delete=True))
    expect(await subject.exists(name), "it exists before its first consumer")
    tags = [await subject.channel.consume(name, lambda _: None) for _ in range(2)]
    await subject.channel.cancel(tags[0])
    expect(await subject.exists(name), "it exists while one consumes")
    await subject.channel.cancel(tags[1])

    async def gone() -> bool:
        return not await subject.exists(name)

    await subject.eventually(gone, "an end of the auto-delete queue")


@row(
    "A.4",
    "Delete respects if-unused and if-empty, counts messages, and accepts a missing queue",
)
async def delete(subject: Subject) -> None:
    name = await subject.classic()
    await subject.put(name, "1", "2")
    error = await subject.error_of(lambda channel: channel.delete_queue(name, if_empty=True))
    expect(isinstance(error, PreconditionFailed), f"406 when not empty, not {error!r}")
    tag = await subject.channel.consume(name, lambda _: None)
    error = await subject.error_of(lambda channel: channel.delete_queue(name, if_unused=True))
    expect(isinstance(error, PreconditionFailed), f"406 when in use, not {error!r}")
    await subject.channel.cancel(tag)
    await subject.put(name, "3")
    equal("deleted", await subject.channel.delete_queue(name) >= 1, True)
    equal("deleted again", await subject.channel.delete_queue(name), 0)


@row("A.5", "Purge removes ready messages, not unacked ones")
async def purge(subject: Subject) -> None:
    for kind in BOTH:
        name = await subject.queue(kind)
        await subject.put(name, "held", "2", "3")
        held = await subject.take(name)
        equal("purged", await subject.channel.purge_queue(name), 2)
        subject.channel.nack(held.tag, requeue=True)
        await subject.holds(name, 1)
        equal("left", await subject.bodies(name), ["held"])


@row("A.6", "Names that start with amq. are reserved")
async def name_prefix(subject: Subject) -> None:
    queue, exchange = Queue("amq.conformance"), Exchange("amq.conformance")
    error = await subject.error_of(lambda channel: channel.declare_queue(queue))
    expect(isinstance(error, AccessRefused), f"403 for the queue, not {error!r}")
    error = await subject.error_of(lambda channel: channel.declare_exchange(exchange))
    expect(isinstance(error, AccessRefused), f"403 for the exchange, not {error!r}")


@row("A.7", "The default exchange cannot be declared, deleted or bound")
async def default_exchange(subject: Subject) -> None:
    name = await subject.classic()
    attempts = (
        lambda channel: channel.declare_exchange(Exchange("")),
        lambda channel: channel.delete_exchange(""),
        lambda channel: channel.bind(Binding("", name, "other")),
        lambda channel: channel.unbind(Binding("", name, name)),
    )
    for attempt in attempts:
        error = await subject.error_of(attempt)
        expect(isinstance(error, AccessRefused), f"403, not {error!r}")


@row("A.8", "Binding a missing object gives 404. Unbinding a missing binding succeeds")
async def bind_missing(subject: Subject) -> None:
    name, exchange = await subject.classic(), await subject.exchange()
    for binding in (Binding("no-such", name), Binding(exchange, "no-such")):
        error = await subject.error_of(lambda channel, binding=binding: channel.bind(binding))  # type: ignore[misc]
        expect(isinstance(error, NotFound), f"404 for {binding}, not {error!r}")
    await subject.channel.unbind(Binding(exchange, name, "never bound"))
    await subject.channel.delete_exchange("no-such")


@row("A.9", "delete_exchange with if_unused refuses while a binding exists")
async def delete_exchange_in_use(subject: Subject) -> None:
    name, exchange = await subject.classic(), await subject.exchange()
    await subject.bind(exchange, name, "key")
    error = await subject.error_of(
        lambda channel: channel.delete_exchange(exchange, if_unused=True)
    )
    expect(isinstance(error, PreconditionFailed), f"406 while bound, not {error!r}")
    await subject.channel.unbind(Binding(exchange, name, "key"))
    await subject.channel.delete_exchange(exchange, if_unused=True)
    missing = Exchange(exchange)
    error = await subject.error_of(lambda channel: channel.declare_exchange(missing, passive=True))
    expect(isinstance(error, NotFound), f"it is gone, not {error!r}")


@row("A.10", "An auto-delete exchange is deleted with its last binding")
async def auto_delete_exchange(subject: Subject) -> None:
    queue = await subject.classic()
    exchange = Exchange(subject.name("exchange"), "fanout", auto_delete=True)
    await subject.channel.declare_exchange(exchange)
    await subject.bind(exchange.name, queue)
    await subject.channel.declare_exchange(exchange, passive=True)
    await subject.channel.unbind(Binding(exchange.name, queue))
    error = await subject.error_of(lambda channel: channel.declare_exchange(exchange, passive=True))
    expect(isinstance(error, NotFound), f"it is gone, not {error!r}")


@row("A.11", "Deleting a queue deletes its bindings")
async def binding_removal(subject: Subject) -> None:
    exchange, name = await subject.exchange("fanout"), await subject.classic()
    await subject.bind(exchange, name)
    await subject.channel.delete_queue(name)
    await subject.classic(name=name)
    error = await subject.error_of(lambda _: subject.put("", exchange=exchange))
    expect(not isinstance(error, ChannelClosed), f"the message has no route, not {error!r}")
    equal("ready", await subject.count(name), 0)


@row("A.12", "An internal exchange refuses publishes of clients and routes dead letters")
async def internal_exchange(subject: Subject) -> None:
    dead = await subject.classic()
    exchange = Exchange(subject.name("exchange"), "fanout", internal=True)
    await subject.channel.declare_exchange(exchange)
    await subject.bind(exchange.name, dead)
    queue = await subject.classic({"x-dead-letter-exchange": exchange.name})
    await subject.put(queue)
    subject.channel.nack((await subject.take(queue)).tag, requeue=False)
    await subject.holds(dead, 1)
    channel = await subject.open_channel()
    fate = channel.publish(Message(exchange.name, "", b""))
    error = await subject.end_of(channel)
    expect(isinstance(error, AccessRefused), f"403 for the publish, not {error!r}")
    await subject.error_of(lambda _: fate)
    await subject.channel.delete_exchange(exchange.name)


@row(
    "A.13",
    "An unknown exchange type closes the connection with 503, from 4.0 on the channel with 406",
)
async def unknown_exchange_type(subject: Subject) -> None:
    connection = await subject.connect()
    channel = await connection.open_channel()
    name = subject.name("exchange")
    try:
        await channel.declare_exchange(Exchange(name, "x-no-such-type"))
    except BrokerError as error:
        kind = subject.since({"3.10": ConnectionLost, "4.0": PreconditionFailed})
        expect(isinstance(error, kind), f"{kind.__name__}, not {error!r}")
        expect(
            "unknown exchange type 'x-no-such-type'" in str(error), f"the type is named: {error}"
        )
    else:
        expect(condition=False, what="the exchange type is refused")
    await subject.classic(to("still here"))
