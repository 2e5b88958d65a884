"""Match policy patterns against names.

RabbitMQ evaluates patterns with Erlang's `re` module, which compares bytes and uses Latin-1
character classes. Patterns are translated to Python's `re` module here.

Both engines use backtracking, which can take exponential time for patterns such as `^(a+)+$`. The
number of possible matches is therefore estimated first, and patterns that would take too long are
not evaluated. The same applies to nested repetitions, backreferences, atomic groups and possessive
quantifiers. The result is None in this case.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

_LONGEST = 4096  # maximum length of a pattern
_DEEPEST = 40  # maximum nesting of groups, since the parser is recursive
_MOST_CHOICES = 4096
"""Maximum number of combinations of alternatives, such as `(a|b){13}`."""
_MOST_LOOPS = 4  # maximum number of unbounded repetitions, such as `^a*b*c*d*e*f`
_MOST_WAYS = 1 << 18
"""Maximum number of combinations to try for a name. This takes a few milliseconds."""
_FEW_TIMES = 16  # repetitions with a larger range count as unbounded
_LONGEST_NAME = 255  # maximum length of a name in bytes
_MOST_REPETITIONS = 65_535  # the limit of PCRE

_ALL = (1 << 256) - 1  # one bit for each byte value


class PatternFlaw(ValueError):
    """Describes why a pattern cannot be evaluated.

    `refused` is True if RabbitMQ would reject it as well.
    """

    def __init__(self, text: str, *, refused: bool) -> None:
        super().__init__(text)
        self.refused = refused


@lru_cache(maxsize=4096)
def pattern_matches(pattern: str, name: str) -> bool | None:
    """Return True if the pattern matches the name, or None if it cannot be evaluated."""
    read = _read(pattern)
    if isinstance(read, PatternFlaw):
        return None
    part, compiled = read
    raw = name.encode("utf-8", "surrogatepass")
    return None if part.ways(len(raw)) > _MOST_WAYS else compiled.search(raw) is not None


def pattern_flaw(pattern: str) -> PatternFlaw | None:
    """Return the reason why a pattern cannot be evaluated, or None."""
    read = _read(pattern)
    return read if isinstance(read, PatternFlaw) else None


@lru_cache(maxsize=512)
def _read(pattern: str) -> tuple[_PatternPart, re.Pattern[bytes]] | PatternFlaw:
    if len(pattern) > _LONGEST:
        return PatternFlaw(f"it is longer than {_LONGEST} characters", refused=False)
    try:
        part = _PatternReader(pattern.encode("utf-8", "surrogatepass").decode("latin-1")).whole()
    except PatternFlaw as flaw:
        return flaw
    return part, re.compile(part.written)


@dataclass(frozen=True, slots=True)
class _PatternPart:
    """A translated part of a pattern, with an estimate of the backtracking."""

    written: bytes
    width: int | None = 0
    """The number of bytes it matches, or None if it is variable."""
    choices: int = 1
    loops: int = 0
    """The number of unbounded repetitions."""
    is_byte: bool = False
    is_anchor: bool = False
    is_anchored: bool = False
    """True if it only matches at the start of the name."""
    is_optional: bool = False

    def __post_init__(self) -> None:
        if self.choices > _MOST_CHOICES or self.loops > _MOST_LOOPS:
            raise PatternFlaw("it can match a name in too many ways", refused=False)

    def ways(self, length: int) -> int:
        """Return the maximum number of combinations for a name of the given length."""
        loops = self.loops if self.is_anchored else self.loops + 1
        return self.choices * int((length + 1) ** loops)


def _byte(accepted: int) -> _PatternPart:
    members = b"".join(b"\\x%02x" % byte for byte in range(256) if accepted >> byte & 1)
    return _PatternPart(b"[%s]" % members if members else b"(?!)", 1, is_byte=True)


def _series(parts: list[_PatternPart]) -> _PatternPart:
    widths = [part.width for part in parts]
    return _PatternPart(
        b"".join(part.written for part in parts),
        None if None in widths else sum(width or 0 for width in widths),
        prod(part.choices for part in parts),
        sum(part.loops for part in parts),
        is_anchored=bool(parts) and parts[0].is_anchored,
    )


def _either(parts: list[_PatternPart]) -> _PatternPart:
    return _PatternPart(
        b"(?:%s)" % b"|".join(part.written for part in parts),
        parts[0].width if len({part.width for part in parts}) == 1 else None,
        sum(part.choices for part in parts),
        max(part.loops for part in parts),
        is_anchored=all(part.is_anchored for part in parts),
    )


def _repeat(part: _PatternPart, least: int, most: int | None) -> _PatternPart:
    """Repeat a part. `most` is None for an unbounded repetition."""
    if part.choices > 1 or part.loops:
        if most is None or most > _FEW_TIMES:
            raise PatternFlaw("repetition within repetition is not evaluated", refused=False)
        choices, loops = (most - least + 1) * part.choices**most, part.loops * most
    else:
        # A group may match the empty string, so every repetition counts.
        rounds = _LONGEST_NAME if most is None else most - least * part.is_byte + 1
        if rounds > _LONGEST_NAME and not part.is_byte:
            raise PatternFlaw("a group is repeated too often to be evaluated", refused=False)
        choices, loops = (rounds, 0) if rounds <= _FEW_TIMES else (1, 1)
    return _PatternPart(
        b"(?:%s){%d,%s}" % (part.written, least, b"" if most is None else b"%d" % most),
        None if part.width is None or least != most else part.width * least,
        choices,
        loops,
        is_optional=least == 0,
    )


def _look(part: _PatternPart, *, ahead: bool, wanted: bool) -> _PatternPart:
    """Return a lookahead or lookbehind."""
    if not ahead and (part.width is None or part.width > _LONGEST_NAME):
        raise PatternFlaw("a lookbehind of variable length is not evaluated", refused=False)
    sign = b"=" if wanted else b"!"
    written = b"(?%s%s%s)" % (b"" if ahead else b"<", sign, part.written)
    return _PatternPart(written, 0, part.choices, part.loops)


def _bytes_of(text: str) -> int:
    return sum(1 << ord(one) for one in set(text))


def _span(first: int, last: int) -> int:
    return (1 << last + 1) - (1 << first)


def _those(kind: str) -> int:
    """Return the Latin-1 characters of a class that has the same name in Python."""
    return _bytes_of("".join(one for one in map(chr, range(256)) if getattr(one, f"is{kind}")()))


_DIGIT = _span(0x30, 0x39)
_SPACE = _bytes_of("\t\n\v\f\r ")
_ALPHA = _those("alpha")
# Python treats these two as lower case, Erlang does not.
_LOWER = _those("lower") & ~_bytes_of("\xaa\xba")
_WORD = _ALPHA | _DIGIT | _bytes_of("_")
_GRAPH = _span(0x21, 0x7E) | _span(0xA0, 0xFF)
_SHORT = {
    "d": _DIGIT, "w": _WORD, "s": _SPACE, "h": _bytes_of("\t \xa0"), "v": _bytes_of("\n\v\f\r\x85"),
    "N": _ALL ^ _bytes_of("\n"), "D": _ALL ^ _DIGIT, "W": _ALL ^ _WORD, "S": _ALL ^ _SPACE,
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
            # Skip ß, ÿ and µ. Their upper case is not in Latin-1.
            if len(other) == 1 and ord(other) < 256:
                found |= 1 << ord(other)
    return found


def _anchor(kind: str) -> _PatternPart:
    word = _byte(_WORD).written
    border = b"(?:(?<=%s)(?!%s)|(?<!%s)(?=%s))" % (word, word, word, word)
    written = {
        "^": rb"\A", "A": rb"\A", "z": rb"\Z", "$": rb"(?=\n?\Z)", "Z": rb"(?=\n?\Z)",
        "b": border, "B": b"(?!%s)" % border,
    }[kind]  # fmt: skip
    return _PatternPart(written, is_anchor=True, is_anchored=kind in "^A")


class _PatternReader:
    """Parses a pattern. Each character represents one byte."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._ignores_case = False

    def whole(self) -> _PatternPart:
        """Parse the whole pattern. Raises PatternFlaw if it is invalid or cannot be evaluated."""
        part = self._choice()
        if self._at < len(self._text):
            raise PatternFlaw("a closing parenthesis has no opening one", refused=True)
        return part

    def _choice(self) -> _PatternPart:
        """Parse the alternatives of a group. Options are reset at the end of the group."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise PatternFlaw(f"groups are nested deeper than {_DEEPEST}", refused=False)
        kept = self._ignores_case
        ways = [self._sequence()]
        while self._take("|"):
            ways.append(self._sequence())
        self._ignores_case = kept
        self._depth -= 1
        return ways[0] if len(ways) == 1 else _either(ways)

    def _sequence(self) -> _PatternPart:
        parts: list[_PatternPart] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            if self._take(r"\Q"):
                quoted, _, _ = self._text[self._at :].partition(r"\E")
                self._at += len(quoted)
                self._take(r"\E")
                parts += [self._byte(1 << ord(one)) for one in quoted]
                if quoted:
                    parts.append(self._repetition(parts.pop()))
            elif not self._take(r"\E"):
                part = self._one()
                if part is not None:
                    parts.append(self._repetition(part))
        if self._depth == 1:
            # Optional parts at the end do not affect the result.
            while parts and parts[-1].is_optional:
                parts.pop()
            while parts and parts[0].is_optional:
                parts.pop(0)
        return parts[0] if len(parts) == 1 else _series(parts)

    def _one(self) -> _PatternPart | None:
        one = self._next()
        match one:
            case "(":
                return self._group()
            case "[":
                return self._byte(self._set())
            case ".":
                return _byte(_SHORT["N"])
            case "^" | "$":
                return _anchor(one)
            case "\\":
                escaped = self._next()
                if escaped in "AzZbB":
                    return _anchor(escaped)
                return self._byte(self._escape(escaped))
            case "*" | "+" | "?":
                raise PatternFlaw(f"{one!r} has no preceding item to repeat", refused=True)
            case "{" if self._count(self._at - 1) is not None:
                raise PatternFlaw("'{' has no preceding item to repeat", refused=True)
        return self._byte(1 << ord(one))

    def _byte(self, accepted: int) -> _PatternPart:
        return _byte(_either_case(accepted) if self._ignores_case else accepted)

    def _repetition(self, part: _PatternPart) -> _PatternPart:
        """Parse the repetition after a part, if there is one."""
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
        if part.is_anchor:
            raise PatternFlaw("an anchor cannot be repeated", refused=True)
        # Lazy and greedy repetitions match the same names.
        if not self._take("?") and self._take("+"):
            raise PatternFlaw("possessive repetition is not evaluated", refused=False)
        return _repeat(part, least, most)

    def _count(self, place: int) -> tuple[int, int | None, int] | None:
        """Parse `{2}`, `{2,}` or `{2,5}`. Returns None if the text is a literal."""
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
            return self._close(self._choice())
        for sign, wanted in (("=", True), ("!", False)):
            if self._take(sign):
                return _look(self._close(self._choice()), ahead=True, wanted=wanted)
            if self._take(f"<{sign}"):
                return _look(self._close(self._choice()), ahead=False, wanted=wanted)
        for opening, closing in (("P<", ">"), ("<", ">"), ("'", "'")):
            if self._take(opening):
                self._until(closing)
                return self._close(self._choice())
        return self._options()

    def _options(self) -> _PatternPart | None:
        """Parse the options of a group, such as `(?i)`, `(?i:…)` or `(?:…)`."""
        kept = self._ignores_case
        on = True
        while (one := self._next()) not in ":)":
            match one:
                case "-":
                    on = False
                case "i":
                    self._ignores_case = on
                case _:
                    raise PatternFlaw(f"groups that begin (?{one} are not evaluated", refused=False)
        if one == ")":
            return None
        inner = self._close(self._choice())
        self._ignores_case = kept
        return inner

    def _close(self, part: _PatternPart) -> _PatternPart:
        if not self._take(")"):
            raise PatternFlaw("a parenthesis is not closed", refused=True)
        return replace(part, is_anchor=False)

    def _escape(self, one: str) -> int:
        """Return the bytes that an escape sequence matches."""
        if one in _SHORT:
            return _SHORT[one]
        if one in _CONTROLS:
            return 1 << ord(_CONTROLS[one])
        if one.isascii() and one.isalnum():
            raise PatternFlaw(f"the escape \\{one} is not evaluated", refused=False)
        return 1 << ord(one)

    def _set(self) -> int:
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
                    raise PatternFlaw("a range cannot end with a character class", refused=True)
                if last < bytes_:
                    raise PatternFlaw("a range in brackets is out of order", refused=True)
                bytes_ = _span(bytes_.bit_length() - 1, last.bit_length() - 1)
            found |= bytes_
        # Ignore case before inverting the set.
        found = _either_case(found) if self._ignores_case else found
        return _ALL ^ found if inverted else found

    def _member(self) -> tuple[int, bool]:
        """Parse a member of a set, and return whether it is a single byte."""
        if self._text.startswith("[:", self._at):
            name, closed, _ = self._text[self._at + 2 : self._at + 14].partition(":]")
            if closed and name.removeprefix("^").isalpha():
                if name.removeprefix("^") not in _NAMED:
                    raise PatternFlaw(f"[:{name}:] is not a character class", refused=True)
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
        return self._escape(one), one not in _SHORT

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise PatternFlaw("it is incomplete", refused=True)
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


def _is_number(text: str) -> bool:
    return text.isdecimal() and text.isascii()
