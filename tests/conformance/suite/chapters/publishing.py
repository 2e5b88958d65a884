"""Publishing: routes, returns, refusals, confirms."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from hopback.broker.port import REPLY_TO
from hopback.errors import BrokerError, Nacked, NotFound, PublishInterrupted, Returned
from hopback.message import Message, Properties
from tests.conformance.suite.chapters.arrangements import V4_3
from tests.conformance.suite.row import equal, expect, row

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from tests.conformance.suite.subject import Subject


async def _fate(publish: Awaitable[None]) -> str:
    """Return "confirmed", or the name of the error."""
    try:
        await publish
    except BrokerError as error:
        return type(error).__name__
    return "confirmed"


@row("9.1a", "A mandatory unroutable message is returned with 312, and the channel stays open")
async def mandatory_return(subject: Subject) -> None:
    missing = subject.name("missing")
    error = await subject.error_of(lambda _: subject.put(missing))
    if not isinstance(error, Returned):
        expect(condition=False, what=f"it is returned, not {error!r}")
        return
    equal("return", (error.code, error.exchange, error.routing_key), (312, "", missing))
    await subject.put(await subject.classic())


@row("9.1b", "Without mandatory an unroutable message is confirmed and lost")
async def confirm_without_route(subject: Subject) -> None:
    name = subject.name("missing")
    await subject.channel.publish(Message("", name, b"m"), mandatory=False)
    await subject.classic(name=name)
    await subject.stays(name, 0, 0.1)


@row("9.1c", "Each of many publishes in flight gets its own result, also with equal ids")
async def own_fates(subject: Subject) -> None:
    queue, missing = await subject.quorum(), subject.name("missing")
    same = Properties(message_id="same", delivery_mode=2)
    targets = [queue, missing, queue, queue, missing, missing, queue] * 5
    fates = [subject.channel.publish(Message("", target, b"m", same)) for target in targets]
    found = await asyncio.gather(*map(_fate, fates))
    equal("fates", found, ["confirmed" if target == queue else "Returned" for target in targets])
    await subject.holds(queue, targets.count(queue))


@row("9.2a", "A full classic queue with reject-publish nacks and keeps its messages")
async def nack_by_length(subject: Subject) -> None:
    queue = await subject.classic({"x-max-length": 2, "x-overflow": "reject-publish"})
    fates = [await _fate(subject.put(queue, body)) for body in "1234"]
    equal("fates", fates, ["confirmed", "confirmed", "Nacked", "Nacked"])
    equal("kept", await subject.bodies(queue), ["1", "2"])


@row(
    "9.2b", "If one of several queues refuses, the publish is nacked although the others stored it"
)
async def nack_by_one_queue(subject: Subject) -> None:
    exchange, open_queue = await subject.exchange("fanout"), await subject.classic()
    full = await subject.classic({"x-max-length": 1, "x-overflow": "reject-publish"})
    await subject.put(full, "there")
    for queue in (open_queue, full):
        await subject.bind(exchange, queue)
    error = await subject.error_of(lambda _: subject.put("", "again", exchange=exchange))
    expect(isinstance(error, Nacked), f"it is nacked, not {error!r}")
    equal("the other queue", await subject.bodies(open_queue), ["again"])
    equal("the full queue", await subject.bodies(full), ["there"])


@row("9.2c", "max-length-bytes counts only bodies and drops from the head")
async def length_in_bytes(subject: Subject) -> None:
    queue = await subject.classic({"x-max-length-bytes": 10})
    await subject.put(queue, "1234", "5678", "90ab", headers={"long": "x" * 100})
    await subject.holds(queue, 2)
    equal("kept", await subject.bodies(queue), ["5678", "90ab"])


@row(
    "9.3a",
    "An alternate exchange that routes satisfies mandatory. One that does not causes a return",
)
async def alternate_exchange(subject: Subject) -> None:
    spare, caught = await subject.exchange("fanout"), await subject.classic()
    exchange = await subject.exchange("direct", {"alternate-exchange": spare})
    equal("unbound", await _fate(subject.put("key", exchange=exchange)), "Returned")
    await subject.bind(spare, caught)
    equal("bound", await _fate(subject.put("key", exchange=exchange)), "confirmed")
    found = await subject.take_done(caught)
    equal("exchange and key", (found.exchange, found.routing_key), (exchange, "key"))


@row("9.3b", "A publish to a missing exchange gives 404 and closes the channel")
async def no_exchange(subject: Subject) -> None:
    queue = await subject.classic()
    channel = await subject.open_channel()
    fate = channel.publish(Message(subject.name("exchange"), "key", b""))
    error = await subject.end_of(channel)
    expect(isinstance(error, NotFound), f"404, not {error!r}")
    equal("fate", await _fate(fate), PublishInterrupted.__name__)
    late = await subject.error_of(lambda _: channel.get(queue))
    expect(isinstance(late, NotFound), f"later calls raise it again, not {late!r}")


@row("9.3c", "An unknown tag gives 406, and all unacked messages of the channel are requeued")
async def unknown_tag(subject: Subject) -> None:
    for settle_twice in (False, True):
        queue = await subject.classic()
        await subject.put(queue, "1", "2", "3")
        channel = await subject.open_channel()
        first = await subject.take(queue, channel=channel)
        await subject.take(queue, channel=channel)
        if settle_twice:
            channel.ack(first.tag)
        channel.ack(first.tag if settle_twice else 99)
        error = await subject.end_of(channel)
        equal("code", getattr(error, "code", error), 406)
        await subject.holds(queue, 2 if settle_twice else 3)


@row("9.3d", "ack with multiple settles all messages up to the tag and none after it")
async def ack_multiple(subject: Subject) -> None:
    queue = await subject.classic()
    await subject.put(queue, *"12345")
    channel = await subject.open_channel()
    tags = [(await subject.take(queue, channel=channel)).tag for _ in range(4)]
    channel.ack(tags[2], multiple=True)
    await channel.close()
    await subject.holds(queue, 2)
    equal("left", await subject.bodies(queue), ["4", "5"])


@row("9.3e", "nack with multiple dead-letters or requeues all messages up to the tag")
async def nack_multiple(subject: Subject) -> None:
    dead = await subject.classic()
    queue = await subject.classic({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    await subject.put(queue, *"12345")
    tags = [(await subject.take(queue)).tag for _ in range(4)]
    subject.channel.nack(tags[1], requeue=False, multiple=True)
    subject.channel.nack(tags[3], requeue=True, multiple=True)
    await subject.holds(dead, 2)
    await subject.holds(queue, 3)
    equal("dead", await subject.bodies(dead), ["1", "2"])
    equal("back", await subject.bodies(queue), ["3", "4", "5"])


@row("9.3f", "Tag 0 with multiple settles all unacked messages")
async def ack_everything(subject: Subject) -> None:
    queue = await subject.classic()
    await subject.put(queue, *"123")
    channel = await subject.open_channel()
    for _ in range(2):
        await subject.take(queue, channel=channel)
    channel.ack(0, multiple=True)
    await channel.close()
    await subject.stays(queue, 1, 0.2)


async def _direct_reply(subject: Subject, *, mandatory: bool) -> tuple[str, bytes]:
    """Send a request and reply to its address. Return the result of the reply and its body."""
    queue, answers = await subject.classic(), asyncio.Queue[bytes]()
    requester = await subject.open_channel()
    await requester.consume(REPLY_TO, lambda reply: answers.put_nowait(reply.body), no_ack=True)
    await requester.publish(Message("", queue, b"?", Properties(reply_to=REPLY_TO)))
    request = await subject.take_done(queue)
    name = str(request.properties.reply_to)
    expect(
        condition=name.startswith(f"{REPLY_TO}."), what=f"the request has an address, not {name!r}"
    )
    while True:
        fate = await _fate(subject.channel.publish(Message("", name, b"!"), mandatory=mandatory))
        # RabbitMQ 4.0.5 confirms the first reply after a start and loses it. The second arrives.
        with contextlib.suppress(TimeoutError):
            body = await asyncio.wait_for(answers.get(), 2)
            await requester.close()
            return fate, body


@row("9.4a", "A direct reply reaches the requesting channel and is confirmed")
async def direct_reply(subject: Subject) -> None:
    equal("reply", await _direct_reply(subject, mandatory=False), ("confirmed", b"!"))


@row("9.4b", "A mandatory direct reply arrives, but before 4.3 it is also returned")
async def mandatory_direct_reply(subject: Subject) -> None:
    fate = "confirmed" if subject.version >= V4_3 else "Returned"
    equal("reply", await _direct_reply(subject, mandatory=True), (fate, b"!"))
