"""Dead-lettering: reasons, headers, changed properties, and lost messages."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from typing import TYPE_CHECKING, cast

from hopback.errors import Nacked, PreconditionFailed
from hopback.fields import Timestamp
from hopback.message import Message, Properties
from hopback.topology.model import Queue, QueueType
from tests.conformance.suite.chapters.arrangements import (
    BOTH,
    V3_13,
    V4_0,
    deaths,
    lap,
    nested,
    pair,
    to,
)
from tests.conformance.suite.row import Tag, equal, expect, row

if TYPE_CHECKING:
    from hopback.fields import Headers
    from tests.conformance.suite.subject import Subject


@row("1.1a", "Reject and nack without requeue dead-letter with reason rejected")
async def reject_and_nack(subject: Subject) -> None:
    for kind in BOTH:
        queue, dead = await pair(subject, kind)
        await subject.put(queue, "by reject", "by nack")
        subject.channel.reject((await subject.take(queue)).tag, requeue=False)
        subject.channel.nack((await subject.take(queue)).tag, requeue=False)
        for body in ("by reject", "by nack"):
            found = await subject.take_done(dead)
            equal("body", found.body.decode(), body)
            equal("reason", deaths(found)[0]["reason"], "rejected")


@row("1.1b", "An expired message dead-letters with reason expired")
async def message_expiry(subject: Subject) -> None:
    for kind in BOTH:
        queue, dead = await pair(subject, kind, message_ttl=50)
        await subject.put(queue)
        found = await subject.take_done(dead)
        equal("reason", deaths(found)[0]["reason"], "expired")
        equal("ready in the source", await subject.count(queue), 0)


@row("1.1c", "Above max-length the oldest messages dead-letter with reason maxlen")
async def drop_from_head(subject: Subject) -> None:
    for kind in BOTH:
        queue, dead = await pair(subject, kind, max_length=2)
        await subject.put(queue, "1", "2", "3", "4")
        first, second = await subject.take_done(dead), await subject.take_done(dead)
        equal("dead", [first.body, second.body], [b"1", b"2"])
        equal("reason", deaths(first)[0]["reason"], "maxlen")
        equal("kept", await subject.bodies(queue), ["3", "4"])


@row("1.1d", "With reject-publish-dlx a full classic queue nacks a new message and dead-letters it")
async def refuse_to_dlx(subject: Subject) -> None:
    queue, dead = await pair(subject, max_length=1, overflow="reject-publish-dlx")
    await subject.put(queue, "kept")
    fate = subject.channel.publish(Message("", queue, b"refused"))
    error = await subject.error_of(lambda _: fate)
    expect(isinstance(error, Nacked), f"the publish is nacked, not {error!r}")
    found = await subject.take_done(dead)
    equal("dead", (found.body, deaths(found)[0]["reason"]), (b"refused", "maxlen"))
    equal("kept", await subject.bodies(queue), ["kept"])


@row("1.1e", "A quorum queue's delivery limit dead-letters with reason delivery_limit")
async def over_the_limit(subject: Subject) -> None:
    queue, dead = await pair(subject, QueueType.QUORUM, delivery_limit=2)
    await subject.put(queue)
    for _ in range(3):
        subject.channel.reject((await subject.take(queue)).tag, requeue=True)
    found = await subject.take_done(dead)
    equal("reason", deaths(found)[0]["reason"], "delivery_limit")


@row("1.1f", "A queue that expires, is deleted or purged does not dead-letter")
async def no_death_by_removal(subject: Subject) -> None:
    dead = await subject.classic()
    expiring = await subject.classic(to(dead, expires=100))
    deleted, purged = await subject.classic(to(dead)), await subject.classic(to(dead))
    for queue in (expiring, deleted, purged):
        await subject.put(queue)
    equal("deleted", await subject.channel.delete_queue(deleted), 1)
    equal("purged", await subject.channel.purge_queue(purged), 1)
    await subject.pause(1.5)  # a declare in between would renew the lease
    expect(not await subject.exists(expiring), "the expiring queue is gone")
    await subject.stays(dead, 0, 0.2)


@row("1.2", "x-death is an array of tables with these fields and wire types")
async def form_of_a_death(subject: Subject) -> None:
    exchange, (queue, dead) = await subject.exchange(), await pair(subject)
    await subject.bind(exchange, queue, "key")
    await subject.put("key", exchange=exchange, expiration="50")
    entry = dict(deaths(await subject.take_done(dead))[0])
    types = {name: type(value) for name, value in entry.items()}
    equal("types", types.pop("routing-keys") in (list, tuple), True)
    text = dict.fromkeys(("reason", "queue", "exchange", "original-expiration"), str)
    equal("types", types, {"count": int, "time": Timestamp, **text})
    expect(
        abs(cast("int", entry.pop("time")) - subject.facilities.wall()) < 86400,
        "the time is in seconds",
    )
    entry["routing-keys"] = list(cast("list[str]", entry["routing-keys"]))
    origin = {"exchange": exchange, "routing-keys": ["key"], "original-expiration": "50"}
    equal("entry", entry, {"count": 1, "reason": "expired", "queue": queue, **origin})


@row(
    "1.3",
    "Another death with the same queue and reason increments count and keeps the other fields",
)
async def count_of_deaths(subject: Subject) -> None:
    exchange, main, wait = await subject.exchange(), subject.name("main"), subject.name("wait")
    await subject.classic(to(main, message_ttl=1100), name=wait)
    await subject.classic(to(wait), name=main)
    await subject.bind(exchange, main, "first key")
    await subject.put("first key", exchange=exchange)
    await lap(subject, main)
    first = deaths(await lap(subject, main))
    again = deaths(await subject.take_done(main))
    for reason in ("rejected", "expired"):
        before = next(entry for entry in first if entry["reason"] == reason)
        after = next(entry for entry in again if entry["reason"] == reason)
        equal("counts", (before["count"], after["count"]), (1, 2))
        equal("the rest", {**after, "count": 0}, {**before, "count": 0})


@row("1.4", "The newest death is first. Before 4.0 the others have no useful order")
async def order_of_deaths(subject: Subject) -> None:
    names = [subject.name(each) for each in "abcd"]
    for name, target in pairwise(names):
        await subject.classic(to(target, message_ttl=30), name=name)
    await subject.classic(name=names[3])
    await subject.put(names[0])
    order = [
        names.index(str(entry["queue"])) for entry in deaths(await subject.take_done(names[3]))
    ]
    equal("order", order, subject.since({"3.0": [2, 0, 1], "4.0": [2, 1, 0]}))


@row(
    "1.5a",
    "x-first-death-* describe the first death and never change. x-last-death-* exist from 3.13 on",
)
async def first_and_last_death(subject: Subject) -> None:
    exchange, last = await subject.exchange(), await subject.classic()
    middle = await subject.classic(to(last, message_ttl=30))
    first = await subject.classic(to(middle))
    await subject.bind(exchange, first, "key")
    await subject.put("key", exchange=exchange)
    await lap(subject, first)
    headers = (await subject.take_done(last)).properties.headers
    expected = {"first": (first, "rejected", exchange), "last": (middle, "expired", "")}
    for which, values in expected.items():
        found = [
            headers.get(f"x-{which}-death-{field}") for field in ("queue", "reason", "exchange")
        ]
        known = which == "first" or subject.version >= V3_13
        equal(f"x-{which}-death-*", found, list(values) if known else [None] * 3)


@row(
    "1.6a",
    "A dead letter keeps key and properties, but not its expiration or its redelivered flag",
)
async def effects_on_the_message(subject: Subject) -> None:
    exchange, dead = await subject.exchange("fanout"), await subject.classic()
    await subject.bind(exchange, dead)
    queue = await subject.classic({"x-dead-letter-exchange": exchange})
    sent = Properties(
        content_type="text/plain", correlation_id="c", message_id="m", app_id="a", type="t",
        timestamp=1_000_000_000, delivery_mode=2, priority=3, user_id=subject.facilities.user,
        reply_to="r", content_encoding="utf-8", expiration="60000", headers={"own": "kept"},
    )  # fmt: skip
    await subject.channel.publish(Message("", queue, b"body", sent))
    await lap(subject, queue)
    found = await subject.take_done(dead)
    equal("exchange and key", (found.exchange, found.routing_key), (exchange, queue))
    equal("own header", found.properties.headers["own"], "kept")
    without = replace(found.properties, headers={})
    equal("properties", without, replace(sent, headers={}, expiration=None))
    equal("redelivered", found.redelivered, False)


@row(
    "1.6b",
    "x-dead-letter-routing-key replaces the key, and the default exchange routes it to a queue",
)
async def dead_letter_key(subject: Subject) -> None:
    for kind in BOTH:
        queue, dead = await pair(subject, kind)
        await subject.put(queue)
        await lap(subject, queue)
        found = await subject.take_done(dead)
        equal("exchange and key", (found.exchange, found.routing_key), ("", dead))


@row("1.6c", "On 4.3 a message that was returned before it died is delivered as redelivered")
async def return_before_death(subject: Subject) -> None:
    found: dict[str, bool] = {}
    for kind, target in product(BOTH, BOTH):
        queue, dead = await pair(subject, kind, target)
        await subject.put(queue)
        channel = await subject.open_channel()
        await subject.take(queue, channel=channel)
        await channel.close()
        await lap(subject, queue)
        found[f"{kind} to {target}"] = (await subject.take_done(dead)).redelivered
    fresh = dict.fromkeys(found, False)
    since_4_0 = {**fresh, "quorum to quorum": True}
    expected = subject.since({"3.0": fresh, "4.0": since_4_0, "4.3": dict.fromkeys(found, True)})
    equal("redelivered", found, expected)


@row("1.9a", "CC and BCC deliver with further keys, and BCC is removed")
async def copies(subject: Subject) -> None:
    queues = [await subject.classic() for _ in range(3)]
    await subject.put(queues[0], headers={"CC": [queues[1]], "BCC": [queues[2]]})
    for queue in queues:
        headers = (await subject.take_done(queue)).properties.headers
        equal("CC", list(cast("list[str]", headers["CC"])), [queues[1]])
        expect("BCC" not in headers, "BCC is removed")


@row(
    "1.9b",
    "Without a dead-letter key a message is dead-lettered with all its keys and keeps CC",
)
async def copies_die_together(subject: Subject) -> None:
    exchange = await subject.exchange()
    one, two = await subject.classic(), await subject.classic()
    await subject.bind(exchange, two, "copy")
    queue = await subject.classic({"x-dead-letter-exchange": exchange})
    await subject.bind(exchange, one, queue)
    await subject.put(queue, headers={"CC": ["copy"]})
    await lap(subject, queue)
    for target in (one, two):
        found = await subject.take_done(target)
        equal("CC", list(cast("list[str]", found.properties.headers["CC"])), ["copy"])
        keys = list(cast("list[str]", deaths(found)[0]["routing-keys"]))
        equal("routing-keys", keys, [queue, "copy"])


@row("1.9c", "A dead-letter key removes CC before 4.0 and keeps it from 4.0 on")
async def copies_with_dead_letter_key(subject: Subject) -> None:
    (queue, dead), copy = await pair(subject), await subject.classic()
    await subject.put(queue, headers={"CC": [copy]})
    await subject.holds(copy, 1)
    await lap(subject, queue)
    found = await subject.take_done(dead)
    equal("CC is kept", "CC" in found.properties.headers, subject.version >= V4_0)
    await subject.stays(copy, 1, 0.2)


@row("1.9d", "The first of two CC headers applies. From 4.0 on the second is removed")
async def copies_named_twice(subject: Subject) -> None:
    (queue, dead), copy, other = (
        await pair(subject),
        await subject.classic(),
        await subject.classic(),
    )
    twice = Properties(headers={"CC": [copy]}, further_headers=((b"CC", [other]),))
    await subject.channel.publish(Message("", queue, b"m", twice))
    found = await lap(subject, queue)
    kept = subject.since({"3.0": ((b"CC", [other]),), "4.0": ()})
    equal("CC", found.properties.headers["CC"], [copy])
    equal("further", found.properties.further_headers, kept)
    # Before 4.0 the dead-letter key removes the first CC, so only the second is left.
    died = (await subject.take_done(dead)).properties
    equal("CC of the dead letter", died.headers["CC"], [copy if subject.version >= V4_0 else other])
    equal("further of the dead letter", died.further_headers, ())
    await subject.holds(copy, 1)
    await subject.stays(other, 0, 0.2)


@row("1.9e", "The first of two BCC headers applies and is removed. The second remains")
async def blind_copies_named_twice(subject: Subject) -> None:
    queue, copy, other = [await subject.classic() for _ in range(3)]
    twice = Properties(headers={"BCC": [copy]}, further_headers=((b"BCC", [other]),))
    await subject.channel.publish(Message("", queue, b"m", twice))
    found = (await subject.take_done(queue)).properties
    equal("BCC", (found.headers["BCC"], found.further_headers), ([other], ()))
    await subject.holds(copy, 1)
    await subject.stays(other, 0, 0.2)


@row("1.9f", "A CC after a deeply nested header applies")
async def copies_behind_depth(subject: Subject) -> None:
    queue, copy = await subject.classic(), await subject.classic()
    await subject.put(queue, headers={"A0": nested(40), "CC": [copy]})
    await subject.holds(copy, 1)
    equal("A0", (await subject.take_done(queue)).properties.headers["A0"], nested(40))


@row("1.16", "Dead-lettering sorts headers by name on every version")
async def header_order_after_death(subject: Subject) -> None:
    for kind in (QueueType.CLASSIC, QueueType.QUORUM):
        queue, dead = await pair(subject, kind)
        await subject.put(queue, headers={"z": 1, "aaa": nested(40), "m": 2})
        await lap(subject, queue)
        names = list((await subject.take_done(dead)).properties.headers)
        equal("order", names, sorted(names))
        equal("first", names[0], "aaa")


@row("1.10a", "A dead letter without exchange, route or target is dropped without an error")
async def drop_without_target(subject: Subject) -> None:
    unbound = await subject.exchange()
    nowhere: list[Headers] = [
        to(subject.name("missing")),
        {"x-dead-letter-exchange": subject.name("no-exchange")},
    ]
    for kind in BOTH:
        for arguments in (*nowhere, {"x-dead-letter-exchange": unbound}):
            queue = await subject.queue(kind, arguments)
            await subject.put(queue, "first", "second")
            await lap(subject, queue)
            equal("left", await subject.bodies(queue), ["second"])
            await subject.stays(queue, 0, 0.1)


@row(
    "1.10b",
    "An alternate exchange of the dead-letter exchange receives unroutable dead letters",
)
async def alternate_for_dead_letters(subject: Subject) -> None:
    spare, caught = await subject.exchange("fanout"), await subject.classic()
    await subject.bind(spare, caught)
    dlx = await subject.exchange("direct", {"alternate-exchange": spare})
    queue = await subject.classic({"x-dead-letter-exchange": dlx})
    await subject.put(queue)
    await lap(subject, queue)
    equal("exchange", (await subject.take_done(caught)).exchange, dlx)


@row("1.10c", "A dead-letter key without a dead-letter exchange is refused with 406")
async def key_without_exchange(subject: Subject) -> None:
    for kind in BOTH:
        queue = Queue(subject.name(), kind, arguments={"x-dead-letter-routing-key": "k"})
        error = await subject.error_of(lambda channel, queue=queue: channel.declare_queue(queue))  # type: ignore[misc]
        expect(isinstance(error, PreconditionFailed), f"the declare gives 406, not {error!r}")


@row(
    "1.12",
    "A full reject-publish target drops dead letters if it is classic and accepts them if quorum",
)
async def full_target(subject: Subject) -> None:
    full: Headers = {"x-max-length": 1, "x-overflow": "reject-publish"}
    for kind, kept in ((QueueType.CLASSIC, 1), (QueueType.QUORUM, 4)):
        dead = await subject.queue(kind, full)
        queue = await subject.classic(to(dead))
        await subject.put(queue, "1", "2", "3", "4")
        for _ in range(4):
            await lap(subject, queue)
        await subject.holds(dead, kept)
        await subject.stays(dead, kept, 0.3)


@row("1.13", "A stream accepts dead letters on 4.0 and 4.3. On 3.10 they are lost")
async def stream_target(subject: Subject) -> None:
    queue, dead = await pair(subject, target=QueueType.STREAM)
    await subject.put(queue)
    await lap(subject, queue)
    if subject.version < V4_0:
        await subject.stays(dead, 0, 1.0)
    else:
        await subject.holds(dead, 1)
    equal("left in the source", await subject.count(queue), 0)


@row("1.14", "Without a dead-letter exchange a rejected message is deleted")
async def delete_without_dlx(subject: Subject) -> None:
    for kind in BOTH:
        queue = await subject.queue(kind)
        await subject.put(queue, "first", "second")
        await lap(subject, queue)
        equal("left", await subject.bodies(queue), ["second"])


@row(
    "1.15a",
    "A malformed x-death entry crashes a classic queue before 4.0, and the message returns",
    Tag.DESTRUCTIVE,
)
async def malformed_death(subject: Subject) -> None:
    queue, dead = await pair(subject)
    entry: Headers = {"queue": queue, "reason": "rejected", "count": "3", "exchange": "", "time": 1}
    await subject.put(queue, "poison", headers={"x-death": [{**entry, "routing-keys": [queue]}]})
    await lap(subject, queue)
    if subject.version < V4_0:
        await subject.pause(1.0)
        await subject.reconnect()  # a request while the queue is down closes the connection
        equal("redelivered body", (await subject.take(queue)).body, b"poison")
        await subject.stays(dead, 0, 0.3)
    else:
        equal("count", deaths(await subject.take_done(dead))[0]["count"], 1)


@row("1.15b", "An x-death that is not an array is harmless: the next death replaces it")
async def death_of_wrong_type(subject: Subject) -> None:
    queue, dead = await pair(subject)
    for value in ("text", {"queue": queue}):
        await subject.put(queue, headers={"x-death": value})
        await lap(subject, queue)
        entries = deaths(await subject.take_done(dead))
        equal("deaths", [(entry["queue"], entry["count"]) for entry in entries], [(queue, 1)])
