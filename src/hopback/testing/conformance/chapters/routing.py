"""Routing: the exchange types, bindings between exchanges, wildcards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.message import Message, Properties
from hopback.testing.conformance.expect import equal
from hopback.testing.conformance.row import row
from hopback.topology.model import Binding

if TYPE_CHECKING:
    from hopback.fields import Headers
    from hopback.testing.conformance.bench import Bench

__all__: list[str] = []

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


async def _reaches(bench: Bench, exchange: str, key: str, headers: Headers, queue: str) -> bool:
    content = Properties(headers=headers)
    await bench.channel.publish(Message(exchange, key, b"", content), mandatory=False)
    found = await bench.channel.get(queue)
    if found is not None:
        bench.channel.ack(found.tag)
    return found is not None


@row("A.20", "direct: the key must be equal; one queue may be bound under many keys")
async def direct(bench: Bench) -> None:
    exchange, queue = await bench.exchange("direct"), await bench.classic()
    await bench.bind(exchange, queue, "one")
    await bench.bind(exchange, queue, "two")
    found = [await _reaches(bench, exchange, key, {}, queue) for key in ("one", "two", "On", "")]
    equal("reached", found, [True, True, False, False])


@row("A.21", "fanout: every bound queue gets one copy, whatever the key")
async def fanout(bench: Bench) -> None:
    exchange, one, two = (
        await bench.exchange("fanout"),
        await bench.classic(),
        await bench.classic(),
    )
    for queue, key in ((one, "a"), (one, "b"), (two, "")):
        await bench.bind(exchange, queue, key)
    await bench.put("anything", exchange=exchange)
    await bench.holds(one, 1)
    await bench.holds(two, 1)


@row("A.22", "topic: * is one word, # any number of words, none included")
async def topic(bench: Bench) -> None:
    queue = await bench.classic()
    for pattern in _PATTERNS:
        exchange = await bench.exchange("topic")
        await bench.bind(exchange, queue, pattern)
        found = [key for key in _KEYS if await _reaches(bench, exchange, key, {}, queue)]
        equal(pattern, found, [key for key in _KEYS if _matches(_words(pattern), _words(key))])


def _words(text: str) -> list[str]:
    """The words between the dots, empty ones too; an empty text has none."""
    return text.split(".") if text else []


def _matches(pattern: list[str], words: list[str]) -> bool:
    """The rule, by recursion."""
    if not pattern:
        return not words
    head, rest = pattern[0], pattern[1:]
    if head == "#":
        return any(_matches(rest, words[skip:]) for skip in range(len(words) + 1))
    return bool(words) and head in ("*", words[0]) and _matches(rest, words[1:])


@row("A.23", "headers: x-match all needs every pair, any needs one, and nothing else matters")
async def headers(bench: Bench) -> None:
    queue = await bench.classic()
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
        exchange = await bench.exchange("headers")
        await bench.bind(exchange, queue, "", arguments)
        equal(f"{arguments} {sent}", await _reaches(bench, exchange, "", sent, queue), expected)


@row("A.24", "Exchanges bound to exchanges route on; a ring delivers once")
async def between_exchanges(bench: Bench) -> None:
    first, second = await bench.exchange("topic"), await bench.exchange("topic")
    queue = await bench.classic()
    await bench.channel.bind(Binding(first, second, "a.#", to_exchange=True))
    await bench.channel.bind(Binding(second, first, "#", to_exchange=True))
    await bench.bind(second, queue, "*.b")
    await bench.bind(first, queue, "a.b")
    await bench.put("a.b", exchange=first)
    await bench.holds(queue, 1)
    equal("exchange", (await bench.take_done(queue)).exchange, first)
    equal("by another key", await _reaches(bench, first, "c.b", {}, queue), False)


@row("A.25", "The default exchange reaches exactly the queue that the key names")
async def default_exchange(bench: Bench) -> None:
    one, two = await bench.classic(), await bench.classic()
    await bench.put(one)
    await bench.holds(one, 1)
    await bench.stays(two, 0, 0.1)


@row("A.26", "An unbound key no longer routes; other keys of the queue still do")
async def unbound(bench: Bench) -> None:
    exchange, queue = await bench.exchange("direct"), await bench.classic()
    for key in ("one", "two"):
        await bench.bind(exchange, queue, key)
    await bench.channel.unbind(Binding(exchange, queue, "one"))
    found = [await _reaches(bench, exchange, key, {}, queue) for key in ("one", "two")]
    equal("reached", found, [False, True])


@row("A.27", "Alternate exchanges form a chain, and stop at one that is missing")
async def alternates(bench: Bench) -> None:
    queue = await bench.classic()
    last = await bench.exchange("fanout")
    await bench.bind(last, queue)
    middle = await bench.exchange("direct", {"alternate-exchange": last})
    first = await bench.exchange("direct", {"alternate-exchange": middle})
    equal("by the chain", await _reaches(bench, first, "key", {}, queue), True)
    broken = await bench.exchange("direct", {"alternate-exchange": bench.name("no-exchange")})
    equal("into nothing", await _reaches(bench, broken, "key", {}, queue), False)
