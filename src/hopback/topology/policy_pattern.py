"""The pattern of a policy against the name of a queue or exchange, in bounded time.

RabbitMQ gives the pattern to Erlang's `re`, which tries one way after another and gives up after
millions of tries. Patterns come from outside, and `^(a+)+$` has more ways than anyone can wait
for; so nothing is tried here. All places of the name are taken at once, as the bits of one number:
bit i is the place before byte i. Each part of a pattern turns the places where it may begin into
the places where it may have ended; the pattern matches if any are left at its end. As at the
broker, bytes are compared and letters are those of Latin-1.

Most patterns have few ways in all, and `re` is faster by far: those are written anew for it, from
what was read here, byte by byte, so that they mean the same.

What has no meaning for sets of places (references back, atomic groups, possessive repetition) is
not evaluated, and neither is what still takes too many steps: then the answer is None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Protocol

_LONGEST = 4096  # far beyond any pattern that people write
_DEEPEST = 40  # each group costs a level of Python's own stack
_MOST_STEPS = 5000
"""Patterns that people write take some tens; this many take a few milliseconds."""
_MOST_WAYS = 1024
"""One repetition without end has as many ways as a name has bytes; two have the square of that."""
_LONGEST_NAME = 255  # no queue or exchange has a longer name, in bytes
_ENDLESS = 1 << 64  # stands for any larger number: counting further would only cost time
_MOST_REPETITIONS = 65_535  # PCRE's own limit

_ALL = (1 << 256) - 1  # a bit for each value of a byte


class PatternFlaw(ValueError):
    """Why a pattern is not evaluated. `refused` if the broker would not take it either."""

    def __init__(self, text: str, *, refused: bool) -> None:
        super().__init__(text)
        self.refused = refused


@lru_cache(maxsize=4096)
def pattern_matches(pattern: str, name: str) -> bool | None:
    """Whether the pattern is found anywhere in the name; None if that is not evaluated."""
    read = _read(pattern)
    if isinstance(read, PatternFlaw):
        return None
    raw = name.encode("utf-8", "surrogatepass")
    if read.quick is not None and len(raw) <= _LONGEST_NAME:
        return read.quick.search(raw) is not None
    return read.slowly(raw)


def pattern_flaw(pattern: str) -> PatternFlaw | None:
    """Why the pattern is not evaluated, whatever the name; None if it is."""
    read = _read(pattern)
    return read if isinstance(read, PatternFlaw) else None


@dataclass(frozen=True, slots=True)
class _CompiledPattern:
    part: _PatternPart
    quick: re.Pattern[bytes] | None
    """The same for `re`, where that cannot take long."""

    def slowly(self, raw: bytes) -> bool | None:
        """Whether it is found, without trying one way after another."""
        name = _Name(raw)
        try:
            return self.part.ends(name.every, name) != 0
        except _TooManySteps:
            return None


@lru_cache(maxsize=512)
def _read(pattern: str) -> _CompiledPattern | PatternFlaw:
    if len(pattern) > _LONGEST:
        return PatternFlaw(f"it is longer than {_LONGEST} characters", refused=False)
    try:
        part = _PatternReader(pattern.encode("utf-8", "surrogatepass").decode("latin-1")).whole()
    except PatternFlaw as flaw:
        return flaw
    # Without what may be absent at either end: a name that holds the rest holds the whole.
    parts = list(part.parts) if isinstance(part, _Series) else [part]
    while parts and _may_be_absent(parts[-1]):
        parts.pop()
    while parts and _may_be_absent(parts[0]):
        parts.pop(0)
    part = _Series(tuple(parts))
    return _CompiledPattern(part, re.compile(part.written()) if part.ways() <= _MOST_WAYS else None)


def _may_be_absent(part: _PatternPart) -> bool:
    return isinstance(part, _Repeat) and part.least == 0


class _TooManySteps(Exception):
    pass


class _Name:
    """The name that is looked at, and how much has been done."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.every = (1 << (len(raw) + 1)) - 1
        self.end = 1 << len(raw)
        self._left = _MOST_STEPS
        self._places: dict[int, int] = {}
        by_byte: dict[int, int] = {}
        for place, byte in enumerate(raw):
            by_byte[byte] = by_byte.get(byte, 0) | 1 << place
        self._by_byte = tuple(by_byte.items())

    def step(self) -> None:
        """Count one more."""
        self._left -= 1
        if self._left < 0:
            raise _TooManySteps

    def before(self, accepted: int) -> int:
        """The places before a byte that is accepted, given as a set of bytes."""
        known = self._places.get(accepted)
        if known is None:
            known = 0
            for byte, places in self._by_byte:
                if accepted >> byte & 1:
                    known |= places
            self._places[accepted] = known
        return known


class _PatternPart(Protocol):
    """A part of a pattern."""

    def ends(self, starts: int, name: _Name) -> int:
        """Where it may have ended, if it may begin at these places."""

    def ways(self) -> int:
        """How many ways `re` would have to try from one place, at most."""

    def written(self) -> bytes:
        """The same for `re`."""


@dataclass(frozen=True, slots=True)
class _Byte:
    """One byte of a set."""

    accepted: int

    def ends(self, starts: int, name: _Name) -> int:
        name.step()
        return (starts & name.before(self.accepted)) << 1

    def ways(self) -> int:
        return 1

    def written(self) -> bytes:
        members = [byte for byte in range(256) if self.accepted >> byte & 1]
        if len(members) == 256:
            return b"[\\x00-\\xff]"
        return b"[%s]" % b"".join(b"\\x%02x" % byte for byte in members) if members else b"(?!)"


@dataclass(frozen=True, slots=True)
class _Series:
    parts: tuple[_PatternPart, ...]

    def ends(self, starts: int, name: _Name) -> int:
        for part in self.parts:
            if not starts:
                break
            starts = part.ends(starts, name)
        return starts

    def ways(self) -> int:
        return min(prod(part.ways() for part in self.parts), _ENDLESS)

    def written(self) -> bytes:
        return b"(?:%s)" % b"".join(part.written() for part in self.parts)


@dataclass(frozen=True, slots=True)
class _Either:
    parts: tuple[_PatternPart, ...]

    def ends(self, starts: int, name: _Name) -> int:
        found = 0
        for part in self.parts:
            found |= part.ends(starts, name)
        return found

    def ways(self) -> int:
        return min(sum(part.ways() for part in self.parts), _ENDLESS)

    def written(self) -> bytes:
        return b"(?:%s)" % b"|".join(part.written() for part in self.parts)


@dataclass(frozen=True, slots=True)
class _Repeat:
    """From `least` to `most` times; without end if `most` is None."""

    part: _PatternPart
    least: int
    most: int | None

    def ends(self, starts: int, name: _Name) -> int:
        for _ in range(self.least):
            name.step()
            starts = self.part.ends(starts, name)
            if not starts:
                return 0
        if self.most is None and isinstance(self.part, _Byte):
            # Adding carries each start to the end of the run of accepted bytes it stands in.
            run = name.before(self.part.accepted)
            name.step()
            return (((starts & run) + run) ^ run) | starts
        found, fresh, times = starts, starts, self.least
        while fresh and (self.most is None or times < self.most):
            name.step()
            fresh = self.part.ends(fresh, name) & ~found
            found |= fresh
            times += 1
        return found

    def ways(self) -> int:
        if not isinstance(self.part, _Byte):
            return _ENDLESS
        return 1 if self.least == self.most else _LONGEST_NAME + 1

    def written(self) -> bytes:
        most = b"" if self.most is None else b"%d" % self.most
        return b"(?:%s){%d,%s}" % (self.part.written(), self.least, most)


@dataclass(frozen=True, slots=True)
class _Ahead:
    """Looks at what follows, and stays."""

    part: _PatternPart
    wanted: bool

    def ends(self, starts: int, name: _Name) -> int:
        found = 0
        while starts:
            name.step()
            place = starts & -starts
            starts ^= place
            if bool(self.part.ends(place, name)) is self.wanted:
                found |= place
        return found

    def ways(self) -> int:
        return self.part.ways()

    def written(self) -> bytes:
        return b"(?%s%s)" % (b"=" if self.wanted else b"!", self.part.written())


@dataclass(frozen=True, slots=True)
class _Behind:
    """Looks at what comes before, and stays."""

    part: _PatternPart
    wanted: bool

    def ends(self, starts: int, name: _Name) -> int:
        reached = self.part.ends(name.every, name)
        return starts & (reached if self.wanted else ~reached)

    def ways(self) -> int:
        return _ENDLESS

    def written(self) -> bytes:
        raise NotImplementedError  # pragma: no cover - what has endless ways is never written


@dataclass(frozen=True, slots=True)
class _Anchor:
    """`^`, `$`, `\\A`, `\\z`, `\\Z`, `\\b` or `\\B`; `lines` if `^` and `$` stand at every line."""

    kind: str
    lines: bool = False

    def ends(self, starts: int, name: _Name) -> int:
        name.step()
        return starts & self._places(name)

    def ways(self) -> int:
        return 1 if self._written() else _ENDLESS

    def written(self) -> bytes:
        return self._written() or b"(?!)"

    def _written(self) -> bytes:
        """The usual ones; `re` means something else by the borders of words and by lines."""
        if self.lines:
            return b""
        return {"^": rb"\A", "A": rb"\A", "z": rb"\Z"}.get(self.kind) or (
            rb"(?=\n?\Z)" if self.kind in "$Z" else b""
        )

    def _places(self, name: _Name) -> int:
        newlines = name.before(_NEWLINE)
        match self.kind:
            case "^" if self.lines:
                return 1 | (newlines << 1 & ~name.end)
            case "^" | "A":
                return 1
            case "$" if self.lines:
                return name.end | newlines
            case "$" | "Z":
                return name.end | (newlines & name.end >> 1)
            case "z":
                return name.end
        words = name.before(_WORD)
        borders = words ^ words << 1
        return borders if self.kind == "b" else name.every & ~borders


def _bytes_of(text: str) -> int:
    return sum(1 << ord(one) for one in set(text))


def _span(first: int, last: int) -> int:
    return (1 << last + 1) - (1 << first)


def _those(kind: str) -> int:
    """The Latin-1 letters of a kind that Python knows by the same name."""
    return _bytes_of("".join(one for one in map(chr, range(256)) if getattr(one, f"is{kind}")()))


_NEWLINE = _bytes_of("\n")
_DIGIT = _span(0x30, 0x39)
_SPACE = _bytes_of("\t\n\v\f\r ")
_ALPHA = _those("alpha")
# Two that Python calls lower case without an upper case; Erlang's tables do not.
_LOWER = _those("lower") & ~_bytes_of("\xaa\xba")
_WORD = _ALPHA | _DIGIT | _bytes_of("_")
_GRAPH = _span(0x21, 0x7E) | _span(0xA0, 0xFF)
_SHORT = {
    "d": _DIGIT, "w": _WORD, "s": _SPACE, "h": _bytes_of("\t \xa0"), "v": _bytes_of("\n\v\f\r\x85"),
    "N": _ALL ^ _NEWLINE, "D": _ALL ^ _DIGIT, "W": _ALL ^ _WORD, "S": _ALL ^ _SPACE,
}  # fmt: skip
_NAMED = {
    "alpha": _ALPHA, "digit": _DIGIT, "alnum": _ALPHA | _DIGIT, "upper": _those("upper"),
    "lower": _LOWER, "space": _SPACE, "blank": _bytes_of("\t "), "graph": _GRAPH,
    "print": _GRAPH | _bytes_of(" "), "punct": _GRAPH & ~_ALPHA & ~_DIGIT, "word": _WORD,
    "xdigit": _bytes_of("0123456789abcdefABCDEF"), "ascii": _span(0, 0x7F),
    "cntrl": _span(0, 0x1F) | _span(0x7F, 0x9F),
}  # fmt: skip
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "e": "\x1b", "a": "\a"}


def _either_case(accepted: int) -> int:
    found = accepted
    for byte in range(256):
        if accepted >> byte & 1:
            other = chr(byte).swapcase()
            # Not ß, ÿ and µ: their other case is no Latin-1 letter.
            if len(other) == 1 and ord(other) < 256:
                found |= 1 << ord(other)
    return found


class _PatternReader:
    """Reads a pattern, given as one character for each byte."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._ignores_case = False
        self._dot_is_all = False
        self._lines = False

    def whole(self) -> _PatternPart:
        """The pattern; PatternFlaw if it is none, or none that is evaluated."""
        part = self._choice()
        if self._at < len(self._text):
            raise PatternFlaw("a closing parenthesis has no opening one", refused=True)
        return part

    def _choice(self) -> _PatternPart:
        """Alternatives up to the end of the group. Options set inside end with it."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise PatternFlaw(f"groups are nested deeper than {_DEEPEST}", refused=False)
        options = self._ignores_case, self._dot_is_all, self._lines
        ways = [self._sequence()]
        while self._take("|"):
            ways.append(self._sequence())
        self._ignores_case, self._dot_is_all, self._lines = options
        self._depth -= 1
        return ways[0] if len(ways) == 1 else _Either(tuple(ways))

    def _sequence(self) -> _PatternPart:
        parts: list[_PatternPart] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            if self._take(r"\Q"):
                quoted, _, _ = self._text[self._at :].partition(r"\E")
                self._at += len(quoted)
                self._take(r"\E")
                parts += [self._byte(1 << ord(one)) for one in quoted]
                if quoted:
                    parts.append(self._repeated(parts.pop()))
            elif not self._take(r"\E"):
                part = self._one()
                if part is not None:
                    parts.append(self._repeated(part))
        return parts[0] if len(parts) == 1 else _Series(tuple(parts))

    def _one(self) -> _PatternPart | None:
        one = self._next()
        match one:
            case "(":
                return self._group()
            case "[":
                return self._byte(self._set())
            case ".":
                return _Byte(_ALL if self._dot_is_all else _ALL ^ _NEWLINE)
            case "^" | "$":
                return _Anchor(one, self._lines)
            case "\\":
                escaped = self._next()
                if escaped in "AzZbB":
                    return _Anchor(escaped)
                return self._byte(self._escaped(escaped))
            case "*" | "+" | "?":
                raise PatternFlaw(f"there is nothing before {one!r} to repeat", refused=True)
            case "{" if self._count(self._at - 1) is not None:
                raise PatternFlaw("there is nothing before '{' to repeat", refused=True)
        return self._byte(1 << ord(one))

    def _byte(self, accepted: int) -> _Byte:
        return _Byte(_either_case(accepted) if self._ignores_case else accepted)

    def _repeated(self, part: _PatternPart) -> _PatternPart:
        """The part with the repetition that follows it, if one does."""
        if self._take("*"):
            least, most = 0, None
        elif self._take("+"):
            least, most = 1, None
        elif self._take("?"):
            least, most = 0, 1
        elif (count := self._count(self._at)) is not None:
            least, most, self._at = count
        else:
            return part
        if isinstance(part, _Anchor):
            raise PatternFlaw("an anchor cannot be repeated", refused=True)
        # As few as possible or as many: the places that can be reached are the same.
        if not self._take("?") and self._take("+"):
            raise PatternFlaw("possessive repetition is not evaluated", refused=False)
        return _Repeat(part, least, most)

    def _count(self, place: int) -> tuple[int, int | None, int] | None:
        """`{2}`, `{2,}` or `{2,5}` at a place, and where it ends; anything else is text."""
        if not self._text.startswith("{", place):
            return None
        inner, closed, _ = self._text[place + 1 : place + 16].partition("}")
        least, comma, most = inner.partition(",")
        if not closed or not _is_number(least) or (most and not _is_number(most)):
            return None
        after = place + len(inner) + 2
        low = int(least)
        high = int(most) if most else None if comma else low
        if max(low, high or 0) > _MOST_REPETITIONS or (high is not None and high < low):
            raise PatternFlaw(f"the repetition {{{inner}}} is out of range", refused=True)
        return low, high, after

    def _group(self) -> _PatternPart | None:
        if not self._take("?"):
            if self._text.startswith("*", self._at):
                raise PatternFlaw("verbs such as (*FAIL) are not evaluated", refused=False)
            return self._closed(self._choice())
        for sign, wanted in (("=", True), ("!", False)):
            if self._take(sign):
                return _Ahead(self._closed(self._choice()), wanted)
            if self._take(f"<{sign}"):
                return _Behind(self._closed(self._choice()), wanted)
        for opening, closing in (("P<", ">"), ("<", ">"), ("'", "'")):
            if self._take(opening):
                self._until(closing)
                return self._closed(self._choice())
        return self._options()

    def _options(self) -> _PatternPart | None:
        """`(?i)` for the rest of the group, `(?i:…)` for a group of its own, or `(?:…)`."""
        kept = self._ignores_case, self._dot_is_all, self._lines
        on = True
        while (one := self._next()) not in ":)":
            match one:
                case "-":
                    on = False
                case "i":
                    self._ignores_case = on
                case "s":
                    self._dot_is_all = on
                case "m":
                    self._lines = on
                case _:
                    raise PatternFlaw(f"groups that begin (?{one} are not evaluated", refused=False)
        if one == ")":
            return None
        inner = self._closed(self._choice())
        self._ignores_case, self._dot_is_all, self._lines = kept
        return inner

    def _closed(self, part: _PatternPart) -> _PatternPart:
        if not self._take(")"):
            raise PatternFlaw("a parenthesis is not closed", refused=True)
        return _Series((part,))

    def _escaped(self, one: str) -> int:
        """The bytes that an escape stands for, in a set or outside."""
        if one in _SHORT:
            return _SHORT[one]
        if one in _CONTROLS:
            return 1 << ord(_CONTROLS[one])
        if one == "x":
            return 1 << self._hexadecimal()
        if one.isascii() and one.isalnum():
            raise PatternFlaw(f"the escape \\{one} is not evaluated", refused=False)
        return 1 << ord(one)

    def _hexadecimal(self) -> int:
        if self._take("{"):
            digits = self._until("}")
        else:
            digits = self._text[self._at : self._at + 2]
            digits = digits[: next((n for n, one in enumerate(digits) if one not in _HEX), 2)]
            self._at += len(digits)
        if not set(digits) <= _HEX or int(digits or "0", 16) > 255:
            raise PatternFlaw(f"\\x{digits} is no byte", refused=True)
        return int(digits or "0", 16)

    def _set(self) -> int:
        """What stands in brackets."""
        inverted = self._take("^")
        found, first = 0, True
        while first or not self._take("]"):
            first = False
            bytes_, single = self._member()
            follows = self._text[self._at : self._at + 2]
            if single and follows.startswith("-") and follows not in {"-", "-]"}:
                self._at += 1
                last, single = self._member()
                if not single:
                    raise PatternFlaw("a class of characters ends no range", refused=True)
                if last < bytes_:
                    raise PatternFlaw("a range in brackets is out of order", refused=True)
                bytes_ = _span(bytes_.bit_length() - 1, last.bit_length() - 1)
            found |= bytes_
        # Case is ignored in what is listed, then that is inverted.
        found = _either_case(found) if self._ignores_case else found
        return _ALL ^ found if inverted else found

    def _member(self) -> tuple[int, bool]:
        """One member of a set, and whether it is a single byte."""
        if self._text.startswith("[:", self._at):
            name, closed, _ = self._text[self._at + 2 : self._at + 14].partition(":]")
            if closed and name.removeprefix("^").isalpha():
                if name.removeprefix("^") not in _NAMED:
                    raise PatternFlaw(f"[:{name}:] is no class of characters", refused=True)
                self._at += len(name) + 4
                known = _NAMED[name.removeprefix("^")]
                return _ALL ^ known if name.startswith("^") else known, False
        one = self._next()
        if one != "\\":
            return 1 << ord(one), True
        one = self._next()
        if one in "QE":
            raise PatternFlaw("quotes within brackets are not evaluated", refused=False)
        if one == "b":
            return 1 << 8, True
        return self._escaped(one), one not in _SHORT

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise PatternFlaw("it ends in the middle", refused=True)
        self._at += 1
        return self._text[self._at - 1]

    def _take(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _until(self, closing: str) -> str:
        inner, found, _ = self._text[self._at :].partition(closing)
        if not found:
            raise PatternFlaw(f"{closing!r} is missing", refused=True)
        self._at += len(inner) + len(closing)
        return inner


_HEX = frozenset("0123456789abcdefABCDEF")


def _is_number(text: str) -> bool:
    return text.isdecimal() and text.isascii()
