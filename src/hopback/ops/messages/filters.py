"""Parse and evaluate filters, which consist of terms that must all match.

``reason:rejected origin:q.validator type:FileUploaded* error:TimeoutError group:3f9a
header.x-tenant:acme age>2h redrives>=1 size>1MB payload.order.id:123``

`*` matches any characters, and text with spaces has to be in double quotes. A single word or a text
in quotes is searched anywhere in a message, which includes the decompressed body, headers,
properties and routing key. Case is ignored. Users cannot enter regular expressions.

A filter is parsed once. Errors for invalid terms contain the term and the expected form. There are
limits for searching bodies. If a limit is exceeded, the result is `NOT_LOOKED_INTO` instead of
`DIFFERS`.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from typing import TYPE_CHECKING

from hopback.durations import parse_duration_ms
from hopback.errors import BadFilter
from hopback.ops.messages.body import is_msgpack, parse_as, unpack_body
from hopback.text import text_matches

if TYPE_CHECKING:
    from hopback.message import Delivery
    from hopback.ops.contract.values import DeadLetter

_LONGEST = 4096  # characters. Longer filters would fill a page and are refused.
# terms, which are evaluated for each message. Filters with more terms are refused.
_MOST_TERMS = 32
# characters of a fingerprint. Fewer would match too many groups.
_SHORTEST_GROUP = 4
_UNREAD = object()
_ANYWHERE = "anywhere"
_WORD = re.compile(r'("(?:[^"\\]|\\.)+"|[^\s":<>=]+)(?=\s|$)')
_TERM = re.compile(r'([A-Za-z][^\s:<>="]*)(:|>=|<=|>|<)("(?:[^"\\]|\\.)*"|[^\s"]+)(?=\s|$)')
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,3})?)(B|KB|MB|GB|KiB|MiB|GiB)?")
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ":": operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_TEXTS = ("reason", "origin", "type", "error", "group", "id", "key", "job")
_NUMBERS = ("age", "redrives", "attempts", "size")
_NAMES = frozenset((*_TEXTS, *_NUMBERS, "header", "payload"))
_KNOWN = ", ".join((*_TEXTS, *_NUMBERS, "header.NAME", "payload.PATH"))

PAYLOAD_BYTES = 1024 * 1024
"""Bytes of a body for `payload.` terms, which take some tens of milliseconds. Larger bodies are not
checked.
"""

_SEARCHED_BYTES = 4 * 1024 * 1024
"""Bytes of a body in which words are searched, which takes some milliseconds. The rest is not checked."""


class Judgement(Enum):
    """The result of a filter for a message."""

    MATCHES = auto()
    DIFFERS = auto()
    NOT_LOOKED_INTO = auto()
    """It is unknown whether the message matches, because its body is too large or too deeply nested."""


@dataclass(frozen=True, slots=True)
class Term:
    """A condition. `wanted` is a pattern for text fields, and otherwise a number."""

    field: str
    comparison: str
    wanted: str | float

    @property
    def needs_content(self) -> bool:
        """Whether the body or the headers are needed."""
        return self.field.startswith(("header.", "payload.")) or self.field == _ANYWHERE

    @property
    def needs_payload(self) -> bool:
        """Whether the parsed body is needed."""
        return self.field.startswith("payload.")

    def matches(self, dead_letter: DeadLetter, delivery: Delivery | None, now: float) -> bool:
        """Return whether a property or a header matches. Unknown values do not match."""
        if self.field.startswith("header."):
            name = self.field.partition(".")[2]
            headers = {} if delivery is None else delivery.properties.headers
            return name in headers and text_matches(str(self.wanted), _value_text(headers[name]))
        if isinstance(self.wanted, str):
            return any(
                text_matches(self.wanted, text) for text in texts_of(self.field, dead_letter)
            )
        number: float | None = dead_letter.attempts
        match self.field:
            case "age":
                number = dead_letter.age(now)
            case "size":
                number = dead_letter.size
            case "redrives":
                number = dead_letter.redrives
        return number is not None and _COMPARISONS[self.comparison](number, self.wanted)

    def matches_payload(self, payload: object) -> bool:
        """Return whether a parsed payload matches. It is parsed only once for all terms."""
        found = _at(payload, self.field.partition(".")[2].split("."))
        return any(text_matches(str(self.wanted), text) for text in found)


@dataclass(frozen=True, slots=True)
class Filter:
    """A list of terms that must all match. Without terms, all messages match."""

    terms: tuple[Term, ...] = ()
    text: str = ""

    @property
    def needs_content(self) -> bool:
        """Whether the body or the headers are needed."""
        return any(term.needs_content for term in self.terms)

    @property
    def words(self) -> tuple[str, ...]:
        """The words to search anywhere in a message."""
        return tuple(str(term.wanted) for term in self.terms if term.field == _ANYWHERE)

    def words_in(self, delivery: Delivery) -> Judgement:
        """Return whether a message contains all words. The message is not decoded for this."""
        judged = Judgement.MATCHES
        for word in self.words:
            found = _word_in(word, delivery)
            if found is Judgement.DIFFERS:
                return found
            if found is Judgement.NOT_LOOKED_INTO:
                judged = found
        return judged

    def judge(self, dead_letter: DeadLetter, delivery: Delivery | None, now: float) -> Judgement:
        """Return whether all terms match. `now` is in seconds since 1970.

        The body is only parsed if all other terms match, and only once.
        """
        if not all(
            term.matches(dead_letter, delivery, now)
            for term in self.terms
            if not term.needs_payload and term.field != _ANYWHERE
        ):
            return Judgement.DIFFERS
        by_words = Judgement.MATCHES
        if self.words:
            by_words = Judgement.DIFFERS if delivery is None else self.words_in(delivery)
            if by_words is Judgement.DIFFERS:
                return by_words
        payload_terms = [term for term in self.terms if term.needs_payload]
        if not payload_terms:
            return by_words
        payload = None if delivery is None else _payload(delivery)
        if payload is _UNREAD:
            return Judgement.NOT_LOOKED_INTO
        is_match = all(term.matches_payload(payload) for term in payload_terms)
        return by_words if is_match else Judgement.DIFFERS

    def matches(self, dead_letter: DeadLetter, delivery: Delivery | None, now: float) -> bool:
        """Return whether all terms match. If this is unknown, the result is False."""
        return self.judge(dead_letter, delivery, now) is Judgement.MATCHES


EVERYTHING = Filter()
"""A filter that matches all messages."""


def parse_filter(text: str) -> Filter:
    """Parse a filter. Raises BadFilter with the expected form if a term is invalid."""
    if len(text) > _LONGEST:
        raise BadFilter(text, f"a filter of at most {_LONGEST} characters")
    terms: list[Term] = []
    position = 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        found = _TERM.match(text, position)
        word = None if found is not None else _WORD.match(text, position)
        if word is not None and word.group() not in _NAMES:
            terms.append(Term(_ANYWHERE, ":", _unquote(word.group())))
            position = word.end()
            continue
        if found is None:
            raise BadFilter(
                text[position:].split(maxsplit=1)[0],
                "a word, a text in double quotes, FIELD:VALUE or FIELD>NUMBER, as in C-01234,"
                " reason:rejected or age>2h",
            )
        terms.append(_term(found.group(), *found.groups()))
        position = found.end()
    if len(terms) > _MOST_TERMS:
        raise BadFilter(text, f"at most {_MOST_TERMS} terms")
    return Filter(tuple(terms), text.strip())


def write_term(field: str, value: str) -> str | None:
    """Return a term for exactly this value, or None if the grammar or a form cannot contain it."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    text = f"{field}:{escaped}" if escaped.isalnum() else f'{field}:"{escaped}"'
    if {"*", "\r", "\n"} & {*value} or (field == "group" and len(value) < _SHORTEST_GROUP):
        return None
    try:
        found = parse_filter(text).terms
    except BadFilter:
        return None
    return text if found == (Term(field, ":", value),) else None


def value_in(delivery: Delivery, field: str) -> str | None:
    """Return the value of `header.NAME` or `payload.PATH` in a message, or None if it is missing."""
    kind, _, path = field.partition(".")
    if kind == "header":
        headers = delivery.properties.headers
        return _value_text(headers[path]) if path in headers else None
    return next(_at(_payload(delivery), path.split(".")), None)


def _unquote(raw: str) -> str:
    return re.sub(r"\\(.)", r"\1", raw[1:-1]) if raw.startswith('"') else raw


def _term(whole: str, field: str, comparison: str, raw: str) -> Term:
    value = _unquote(raw)
    if field in _NUMBERS:
        return Term(field, comparison, _parse_number(whole, field, value))
    kind, _, path = field.partition(".")
    if field in _TEXTS or (kind in {"header", "payload"} and path):
        if comparison != ":":
            raise BadFilter(whole, f"{field}:VALUE; only {', '.join(_NUMBERS)} can be compared")
        return Term(field, comparison, value)
    from difflib import get_close_matches  # slow to import, and needed only for an error

    close = get_close_matches(field, (*_TEXTS, *_NUMBERS), n=1)
    meant = f" (did you mean {close[0]}{comparison}{raw}?)" if close else ""
    raise BadFilter(
        whole, f"one of {_KNOWN}, or the text in double quotes to look for it anywhere{meant}"
    )


def _parse_number(whole: str, field: str, value: str) -> float:
    if field == "age":
        try:
            return parse_duration_ms(value) / 1000
        except ValueError:
            raise BadFilter(whole, "a duration like 250ms, 30s, 5m, 2h or 1h30m") from None
    if field == "size":
        found = _SIZE.fullmatch(value)
        if found is None:
            raise BadFilter(whole, "a size like 500, 10KB, 1MB or 64KiB")
        return float(found.group(1)) * _UNITS[found.group(2) or "B"]
    if not (value.isdecimal() and value.isascii() and len(value) <= 10):
        raise BadFilter(whole, "a whole number from 0")
    return float(value)


def texts_of(field: str, dead_letter: DeadLetter) -> Iterator[str]:
    """Yield the texts to which a pattern is applied. The name of an error is also used without its
    module.
    """
    match field:
        case "reason":
            yield dead_letter.reason
        case "origin":
            yield dead_letter.origin
        case "type":
            yield dead_letter.type
        case "error":
            yield dead_letter.error
            yield re.split(r"[.\\]", dead_letter.error)[-1]
        case "group":
            yield from (
                dead_letter.fingerprint[:length]
                for length in range(_SHORTEST_GROUP, len(dead_letter.fingerprint) + 1)
            )
        case "id":
            yield dead_letter.message_id
            yield dead_letter.id
        case "key":
            yield dead_letter.routing_key
        case "job":
            yield dead_letter.redrive_job


@lru_cache(maxsize=64)
def _needles(word: str) -> tuple[bytes, ...]:
    """Return the lower-case word in all possible encodings, which are UTF-8, UTF-16 and JSON escapes."""
    lower = word.lower()
    ways = [lower.encode("utf-8", "backslashreplace"), lower.encode("utf-16-le", "ignore")]
    if not lower.isascii():
        escaped = "".join(sign if sign.isascii() else json.dumps(sign)[1:-1] for sign in lower)
        ways.append(escaped.encode("ascii", "ignore"))
    return tuple(dict.fromkeys(ways))


def _word_in(word: str, delivery: Delivery) -> Judgement:
    """Return whether a message contains a word anywhere, ignoring case."""
    needles = _needles(word)
    body = unpack_body(delivery, _SEARCHED_BYTES)
    lower = body.data.lower()
    if any(needle in lower for needle in needles):
        return Judgement.MATCHES
    raw = getattr(delivery, "raw_properties", None)
    if not isinstance(raw, bytes):
        raw = repr(vars(delivery.properties)).encode("utf-8", "backslashreplace")
    about = f"{delivery.routing_key}\n{delivery.exchange}".encode("utf-8", "backslashreplace")
    if needles[0] in raw.lower() or needles[0] in about.lower():
        return Judgement.MATCHES
    return Judgement.DIFFERS if body.is_whole else Judgement.NOT_LOOKED_INTO


def _payload(delivery: Delivery) -> object:
    """Return the parsed body, None if it is invalid, or `_UNREAD` if it exceeds the limits."""
    kind = delivery.properties.content_type
    body, is_whole, _ = unpack_body(delivery, PAYLOAD_BYTES)
    if not is_whole:
        # The first bytes show whether it could be JSON.
        may_be = body[:64].lstrip()[:1] in (b"{", b"[", b"") or is_msgpack(kind)
        return _UNREAD if may_be else None
    return parse_as(kind, body, too_deep=_UNREAD)


def _at(value: object, path: list[str]) -> Iterator[str]:
    """Yield the value at a path, unless it is an object or a list. A number in the path is the
    index of a list item.
    """
    for step in path:
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif (
            isinstance(value, list)
            and step.isdecimal()
            and len(step) < 7
            and int(step) < len(value)
        ):
            value = value[int(step)]
        else:
            return
    if not isinstance(value, dict | list):
        yield _value_text(value)


def _value_text(value: object) -> str:
    """Format a value as it is written in a filter."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case bytes():
            return value.decode("utf-8", "replace")
        case int() if value.bit_length() > 256:
            return "a number far beyond that"
        case int():
            return str(int(value))
    return str(value)
