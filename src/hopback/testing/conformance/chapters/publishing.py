"""Publishing: routes, returns, refusals, confirms."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hopback.errors import BrokerError, Nacked, NotFound, PublishInterrupted, Returned
from hopback.message import Message, Properties
from hopback.testing.conformance.expect import equal, that
from hopback.testing.conformance.row import row

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from hopback.testing.conformance.bench import Bench

__all__: list[str] = []


async def _fate(publish: Awaitable[None]) -> str:
    """What became of a publish: confirmed, or the name of the error."""
    try:
        await publish
    except BrokerError as error:
        return type(error).__name__
    return "confirmed"


@row("9.1a", "A mandatory message without route is returned with 312; the channel goes on")
async def returned(bench: Bench) -> None:
    missing = bench.name("missing")
    error = await bench.refused(lambda _: bench.put(missing))
    if not isinstance(error, Returned):
        that(condition=False, what=f"it is returned, not {error!r}")
        return
    equal("return", (error.code, error.exchange, error.routing_key), (312, "", missing))
    await bench.put(await bench.classic())


@row("9.1b", "Without mandatory a message without route is confirmed, and gone")
async def confirmed_and_gone(bench: Bench) -> None:
    name = bench.name("missing")
    await bench.channel.publish(Message("", name, b"m"), mandatory=False)
    await bench.classic(name=name)
    await bench.stays(name, 0, 0.1)


@row("9.1c", "Each of many publishes in flight learns its own fate, equal ids or not")
async def own_fates(bench: Bench) -> None:
    queue, missing = await bench.quorum(), bench.name("missing")
    same = Properties(message_id="same", delivery_mode=2)
    targets = [queue, missing, queue, queue, missing, missing, queue] * 5
    fates = [bench.channel.publish(Message("", target, b"m", same)) for target in targets]
    found = await asyncio.gather(*map(_fate, fates))
    equal("fates", found, ["confirmed" if target == queue else "Returned" for target in targets])
    await bench.holds(queue, targets.count(queue))


@row("9.2a", "A full classic queue with reject-publish nacks, and keeps what it had")
async def refused_by_length(bench: Bench) -> None:
    queue = await bench.classic({"x-max-length": 2, "x-overflow": "reject-publish"})
    fates = [await _fate(bench.put(queue, body)) for body in "1234"]
    equal("fates", fates, ["confirmed", "confirmed", "Nacked", "Nacked"])
    equal("kept", await bench.bodies(queue), ["1", "2"])


@row("9.2b", "If one of several queues refuses, the publish is nacked though the others have it")
async def refused_by_one(bench: Bench) -> None:
    exchange, open_queue = await bench.exchange("fanout"), await bench.classic()
    full = await bench.classic({"x-max-length": 1, "x-overflow": "reject-publish"})
    await bench.put(full, "there")
    for queue in (open_queue, full):
        await bench.bind(exchange, queue)
    error = await bench.refused(lambda _: bench.put("", "again", exchange=exchange))
    that(isinstance(error, Nacked), f"it is nacked, not {error!r}")
    equal("the other queue", await bench.bodies(open_queue), ["again"])
    equal("the full queue", await bench.bodies(full), ["there"])


@row("9.2c", "max-length-bytes counts bodies only and drops from the head")
async def length_in_bytes(bench: Bench) -> None:
    queue = await bench.classic({"x-max-length-bytes": 10})
    await bench.put(queue, "1234", "5678", "90ab", headers={"long": "x" * 100})
    await bench.holds(queue, 2)
    equal("kept", await bench.bodies(queue), ["5678", "90ab"])


@row("9.3a", "An alternate exchange that routes satisfies mandatory; one that does not returns")
async def alternate_exchange(bench: Bench) -> None:
    spare, caught = await bench.exchange("fanout"), await bench.classic()
    exchange = await bench.exchange("direct", {"alternate-exchange": spare})
    equal("unbound", await _fate(bench.put("key", exchange=exchange)), "Returned")
    await bench.bind(spare, caught)
    equal("bound", await _fate(bench.put("key", exchange=exchange)), "confirmed")
    found = await bench.take_done(caught)
    equal("exchange and key", (found.exchange, found.routing_key), (exchange, "key"))


@row("9.3b", "Publishing to a missing exchange gives 404 and ends the channel")
async def missing_exchange(bench: Bench) -> None:
    queue = await bench.classic()
    channel = await bench.open_channel()
    fate = channel.publish(Message(bench.name("exchange"), "key", b""))
    error = await bench.end_of(channel)
    that(isinstance(error, NotFound), f"404, not {error!r}")
    equal("fate", await _fate(fate), PublishInterrupted.__name__)
    late = await bench.refused(lambda _: channel.get(queue))
    that(isinstance(late, NotFound), f"later calls raise it again, not {late!r}")


@row("9.3c", "An unknown tag gives 406, and everything held on the channel goes back")
async def unknown_tag(bench: Bench) -> None:
    for settle_twice in (False, True):
        queue = await bench.classic()
        await bench.put(queue, "1", "2", "3")
        channel = await bench.open_channel()
        first = await bench.take(queue, channel=channel)
        await bench.take(queue, channel=channel)
        if settle_twice:
            channel.ack(first.tag)
        channel.ack(first.tag if settle_twice else 99)
        error = await bench.end_of(channel)
        equal("code", getattr(error, "code", error), 406)
        await bench.holds(queue, 2 if settle_twice else 3)


@row("9.3d", "ack with multiple settles everything up to the tag, and nothing after it")
async def ack_multiple(bench: Bench) -> None:
    queue = await bench.classic()
    await bench.put(queue, *"12345")
    channel = await bench.open_channel()
    tags = [(await bench.take(queue, channel=channel)).tag for _ in range(4)]
    channel.ack(tags[2], multiple=True)
    await channel.close()
    await bench.holds(queue, 2)
    equal("left", await bench.bodies(queue), ["4", "5"])


@row("9.3e", "nack with multiple dead-letters or returns everything up to the tag")
async def nack_multiple(bench: Bench) -> None:
    dead = await bench.classic()
    queue = await bench.classic({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    await bench.put(queue, *"12345")
    tags = [(await bench.take(queue)).tag for _ in range(4)]
    bench.channel.nack(tags[1], requeue=False, multiple=True)
    bench.channel.nack(tags[3], requeue=True, multiple=True)
    await bench.holds(dead, 2)
    await bench.holds(queue, 3)
    equal("dead", await bench.bodies(dead), ["1", "2"])
    equal("back", await bench.bodies(queue), ["3", "4", "5"])


@row("9.3f", "Tag 0 with multiple settles everything that is held")
async def ack_everything(bench: Bench) -> None:
    queue = await bench.classic()
    await bench.put(queue, *"123")
    channel = await bench.open_channel()
    for _ in range(2):
        await bench.take(queue, channel=channel)
    channel.ack(0, multiple=True)
    await channel.close()
    await bench.stays(queue, 1, 0.2)
