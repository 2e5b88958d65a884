"""Display untrusted text safely, and parse header values.

Messages may contain escape sequences, bidirectional controls and invisible characters. The
functions in this module replace or escape them for terminals, logs, web pages and headers. Header
values are parsed defensively. Invalid values are treated as missing.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING

from hopback.fields import FieldValue, as_text, text_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable


# Matches C0 and C1 controls, DEL, and characters that reorder or hide text.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
_JOINER = "\u200d"
# These characters are allowed between an emoji and a joiner: the variation selector and skin tones.
_EMOJI_SUFFIXES = "\ufe0f\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"
# Unicode categories of characters that cannot be seen: controls, format characters, private use,
# surrogates, and line and paragraph separators.
_INVISIBLE = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})


def one_line(text: str) -> str:
    """Replace control characters for output on a terminal or in a log line."""
    return _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text)


def safe_lines(text: str) -> str:
    """Do the same as `one_line`, but keep line breaks."""
    return "\n".join(map(one_line, text.split("\n")))


def escape_unsafe(json_text: str) -> str:
    """Escape control characters in a line of JSON."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found.group()):04x}", json_text)


def printable(text: str) -> str:
    """Replace unprintable characters with Python escapes."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


def visible(text: str, *, lines: bool = False) -> str:
    """Replace invisible characters for display on a page.

    Args:
        text: The text to display.
        lines: If True, keep newlines and tabs.
    """
    kept = "\n\t" if lines else ""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        each
        if each in kept or unicodedata.category(each) not in _INVISIBLE or _joins(text, place)
        else _name_character(each)
        for place, each in enumerate(text)
    )


def _joins(text: str, place: int) -> bool:
    """Return True if the joiner at `place` is part of an emoji sequence."""
    if text[place] != _JOINER or not 0 < place < len(text) - 1:
        return False
    before, after = text[place - 1], text[place + 1]
    return _is_pictorial(after) and (_is_pictorial(before) or before in _EMOJI_SUFFIXES)


def _is_pictorial(character: str) -> bool:
    return unicodedata.category(character) == "So"


def _name_character(character: str) -> str:
    """Return the Unicode control picture of a character, or its code point if there is none."""
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"


def text_matches(pattern: str, text: str) -> bool:
    """Match a text with a pattern that may contain `*`. This takes linear time."""
    first, *rest = pattern.split("*")
    if not rest:
        return text == pattern
    last = rest.pop()
    if not text.startswith(first) or len(text) < len(first) + len(last) or not text.endswith(last):
        return False
    position, end = len(first), len(text) - len(last)
    for part in rest:
        found = text.find(part, position, end)
        if found < 0:
            return False
        position = found + len(part)
    return True


def count_of(number: int, noun: str = "message") -> str:
    """Format a number with its noun, such as `1 message` or `1,200 messages`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size_text(size: int) -> str:
    """Format a size in bytes, such as `512 B`, `1.5 KiB` or `256 KiB`."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


LARGEST_COUNT = 2**31 - 1
"""The maximum value of a counter in a header. Larger values are reduced to it."""

_ELLIPSIS = "…"
_raw_decode = json.JSONDecoder().raw_decode


def clip(text: str, limit: int) -> str:
    """Truncate a text to `limit` bytes of UTF-8. If it is cut, it ends with an ellipsis.

    Characters that cannot be encoded are replaced with escapes.
    """
    if type(text) is str and len(text) <= limit and text.isascii():
        return text  # the common case
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= limit:
        return data.decode("utf-8")
    room = limit - len(_ELLIPSIS.encode())
    return data[:room].decode("utf-8", "ignore") + _ELLIPSIS if room > 0 else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean NAME?)` for the closest known name, or an empty string."""
    from difflib import get_close_matches  # this import is slow and only needed for errors

    close = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]}?)" if close else ""


def count_in(value: FieldValue) -> int:
    """Return the integer value of a header, clamped to 0..LARGEST_COUNT. Returns 0 for other types."""
    if not isinstance(value, int) or isinstance(value, bool):
        return 0
    return min(max(int(value), 0), LARGEST_COUNT)


def text_in(value: FieldValue, limit: int = 255) -> str | None:
    """Return the string value of a header. Returns None if it is not a string or is longer than
    `limit` bytes.
    """
    if type(value) is str and len(value) <= limit and value.isascii():
        return value  # the common case
    text = as_text(value)
    if text is None:
        return None
    return text if len(text) <= limit and _size(text) <= limit else None


def _size(text: str) -> int:
    """Return the encoded size in bytes. Text from JSON may contain lone surrogates."""
    try:
        return text_bytes(text)
    except UnicodeEncodeError:
        return len(text.encode("utf-8", "surrogatepass"))


def json_in(text: str) -> object:
    """Parse JSON. Returns None if it is invalid."""
    try:
        if text[:1] in "{[":
            # `json.loads` strips whitespace first, which takes as long as parsing a short text.
            found, end = _raw_decode(text)
            if end == len(text):
                return found
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def span_text(seconds: float) -> str:
    """Format a duration for a sentence: `9.5 s`, `90 s`, `2.5 min`, `3 h`. page.js does the same."""
    units = (("d", 86_400), ("h", 3600), ("min", 60))
    unit, size = next((one for one in units if seconds >= 2 * one[1]), ("s", 1))
    value = max(seconds, 0.0) / size
    return f"{value:.0f} {unit}" if value >= 9.95 else f"{round(value, 3):.2g} {unit}"


def timestamp(seconds: float) -> str:
    """Format a time as RFC 3339 in UTC with milliseconds. Invalid times are shown as 1970."""
    try:
        fraction, whole = math.modf(seconds)
        # Round to microseconds first, as datetime does. 0.1239999… s then becomes 124 ms.
        milliseconds = round(fraction * 1e6) // 1000
        if 0 <= milliseconds < 1000:  # the common case
            return f"{_second(int(whole))}.{milliseconds:03d}Z"
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        moment = datetime.fromtimestamp(0, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def whole_timestamp(seconds: float) -> str:
    """Format a time as RFC 3339 in UTC, rounded to seconds."""
    return timestamp(round(seconds)).replace(".000", "")


@lru_cache(maxsize=16)
def _second(seconds: int) -> str:
    """Format whole seconds. The result is cached, because many messages fail within the same
    second.
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19]


def seconds_in(value: object) -> float:
    """Parse a timestamp and return seconds since the epoch. Returns 0 if it is invalid."""
    if not isinstance(value, str):
        return 0.0
    try:
        return max(datetime.fromisoformat(value).astimezone(UTC).timestamp(), 0.0)
    except (OverflowError, ValueError, OSError):
        return 0.0
