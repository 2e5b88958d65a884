"""Routing: the exchange types, bindings between exchanges, wildcards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.message import Message, Properties
from hopback.topology.model import Binding
from tests.conformance.suite.row import equal, row

if TYPE_CHECKING:
    from hopback.fields import Headers
    from tests.conformance.suite.subject import Subject

_PATTERNS = (
    "",
    "#",
    "*",
    "a.#",
    "a.*",
    "#.c",
    "a.#.c",
    "*.b.#",
    "#.b.#",
    "*.*",
    "a..b",
    "#.*.#",
    "ab",
)
_KEYS = (
    "", "a", "a.b", "a.b.c", "c", "a.c", "a.b.b.c", "b", ".", "a.", ".b", "a..b", "x..y", "ab.c",
)  # fmt: skip


async def _reaches(subject: Subject, exchange: str, key: str, headers: Headers, queue: str) -> bool:
    content = Properties(headers=headers)
    await subject.channel.publish(Message(exchange, key, b"", content), mandatory=False)
    found = await subject.channel.get(queue)
    if found is not None:
        subject.channel.ack(found.tag)
    return found is not None


@row("A.20", "direct: the key must be equal. A queue may be bound with several keys")
async def direct(subject: Subject) -> None:
    exchange, queue = await subject.exchange("direct"), await subject.classic()
    await subject.bind(exchange, queue, "one")
    await subject.bind(exchange, queue, "two")
    found = [await _reaches(subject, exchange, key, {}, queue) for key in ("one", "two", "On", "")]
    equal("reached", found, [True, True, False, False])


@row("A.21", "fanout: every bound queue gets one copy with any key")
async def fanout(subject: Subject) -> None:
    exchange, one, two = (
        await subject.exchange("fanout"),
        await subject.classic(),
        await subject.classic(),
    )
    for queue, key in ((one, "a"), (one, "b"), (two, "")):
        await subject.bind(exchange, queue, key)
    await subject.put("anything", exchange=exchange)
    await subject.holds(one, 1)
    await subject.holds(two, 1)


@row("A.22", "topic: * is one word, # any number of words, also none")
async def topic(subject: Subject) -> None:
    queue = await subject.classic()
    for pattern in _PATTERNS:
        exchange = await subject.exchange("topic")
        await subject.bind(exchange, queue, pattern)
        found = [key for key in _KEYS if await _reaches(subject, exchange, key, {}, queue)]
        equal(pattern, found, [key for key in _KEYS if _matches(_words(pattern), _words(key))])


def _words(text: str) -> list[str]:
    """Return the words between the dots, including empty ones. An empty text has none."""
    return text.split(".") if text else []


def _matches(pattern: list[str], words: list[str]) -> bool:
    """Match recursively by the definition."""
    if not pattern:
        return not words
    head, rest = pattern[0], pattern[1:]
    if head == "#":
        return any(_matches(rest, words[skip:]) for skip in range(len(words) + 1))
    return bool(words) and head in ("*", words[0]) and _matches(rest, words[1:])


@row(
    "A.23",
    "headers: x-match all needs every pair, any needs one. Other headers are ignored",
)
async def headers(subject: Subject) -> None:
    queue = await subject.classic()
    cases: tuple[tuple[Headers, Headers, bool], ...] = (
        ({"x-match": "all", "a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 0}, True),
        ({"x-match": "all", "a": 1, "b": "x"}, {"a": 1}, False),
        ({"a": 1, "b": "x"}, {"b": "x"}, False),
        ({"x-match": "any", "a": 1, "b": "x"}, {"b": "x"}, True),
        ({"x-match": "any", "a": 1}, {"a": 2}, False),
        ({"x-match": "all", "x-own": 1}, {}, True),
        ({"x-match": "all-with-x", "x-own": 1}, {}, False),
        ({"x-match": "any-with-x", "x-own": 1}, {"x-own": 1}, True),
        ({"x-match": "all"}, {"a": 1}, True),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"x-match": "all", "a": None}, {"a": 5}, True),
        ({"x-match": "all", "a": None}, {}, False),
    )
    for arguments, sent, expected in cases:
        exchange = await subject.exchange("headers")
        await subject.bind(exchange, queue, "", arguments)
        equal(f"{arguments} {sent}", await _reaches(subject, exchange, "", sent, queue), expected)


@row("A.24", "Exchanges bound to exchanges route further. A cycle delivers once")
async def between_exchanges(subject: Subject) -> None:
    first, second = await subject.exchange("topic"), await subject.exchange("topic")
    queue = await subject.classic()
    await subject.channel.bind(Binding(first, second, "a.#", to_exchange=True))
    await subject.channel.bind(Binding(second, first, "#", to_exchange=True))
    await subject.bind(second, queue, "*.b")
    await subject.bind(first, queue, "a.b")
    await subject.put("a.b", exchange=first)
    await subject.holds(queue, 1)
    equal("exchange", (await subject.take_done(queue)).exchange, first)
    equal("by another key", await _reaches(subject, first, "c.b", {}, queue), False)


@row("A.25", "The default exchange routes only to the queue with the name of the key")
async def default_exchange(subject: Subject) -> None:
    one, two = await subject.classic(), await subject.classic()
    await subject.put(one)
    await subject.holds(one, 1)
    await subject.stays(two, 0, 0.1)


@row("A.26", "An unbound key no longer routes. Other keys of the queue still do")
async def no_route_after_unbind(subject: Subject) -> None:
    exchange, queue = await subject.exchange("direct"), await subject.classic()
    for key in ("one", "two"):
        await subject.bind(exchange, queue, key)
    await subject.channel.unbind(Binding(exchange, queue, "one"))
    found = [await _reaches(subject, exchange, key, {}, queue) for key in ("one", "two")]
    equal("reached", found, [False, True])


@row("A.27", "Alternate exchanges form a chain that ends at a missing one")
async def alternates(subject: Subject) -> None:
    queue = await subject.classic()
    last = await subject.exchange("fanout")
    await subject.bind(last, queue)
    middle = await subject.exchange("direct", {"alternate-exchange": last})
    first = await subject.exchange("direct", {"alternate-exchange": middle})
    equal("by the chain", await _reaches(subject, first, "key", {}, queue), True)
    broken = await subject.exchange("direct", {"alternate-exchange": subject.name("no-exchange")})
    equal("to a missing exchange", await _reaches(subject, broken, "key", {}, queue), False)
