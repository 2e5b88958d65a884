"""Text and numbers of unknown origin, made fit for a header."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopback.fields import FieldValue

__all__ = ["LARGEST_COUNT", "clipped", "count_in", "json_in", "seconds_in", "text_in", "timestamp"]

LARGEST_COUNT = 2**31 - 1
"""The largest number that a count in a header is taken for."""

_ELLIPSIS = "…"
_raw_decode = json.JSONDecoder().raw_decode


def clipped(text: str, limit: int) -> str:
    """The beginning of the text, at most `limit` bytes of UTF-8; an ellipsis marks a cut.

    What UTF-8 cannot carry is written as escapes.
    """
    if type(text) is str and len(text) <= limit and text.isascii():
        return text  # nearly always
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= limit:
        return data.decode("utf-8")
    room = limit - len(_ELLIPSIS.encode())
    return data[:room].decode("utf-8", "ignore") + _ELLIPSIS if room > 0 else ""


def count_in(value: FieldValue) -> int:
    """A count as someone wrote it: any integer from 0 up to what is sensible, else 0."""
    if not isinstance(value, int) or isinstance(value, bool):
        return 0
    return min(max(int(value), 0), LARGEST_COUNT)


def text_in(value: FieldValue, limit: int = 255) -> str | None:
    """A text of at most `limit` bytes, else None."""
    if type(value) is str and len(value) <= limit and value.isascii():
        return value  # nearly always
    if not isinstance(value, str):
        return None
    size = len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
    return value if size <= limit else None


def json_in(text: str) -> object:
    """What a text says in JSON; None, as for `null`, where it is none."""
    try:
        if text[:1] in "{[":
            # `json.loads` looks for spaces at both ends, which takes as long as reading a short text.
            found, end = _raw_decode(text)
            if end == len(text):
                return found
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def timestamp(seconds: float) -> str:
    """RFC 3339 in UTC with milliseconds; the nearest that can be written for an impossible time."""
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        moment = datetime.fromtimestamp(0, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds_in(value: object) -> float:
    """Seconds since 1970 of a moment as `timestamp` writes it, else 0."""
    if not isinstance(value, str):
        return 0.0
    try:
        return max(datetime.fromisoformat(value).astimezone(UTC).timestamp(), 0.0)
    except (OverflowError, ValueError, OSError):
        return 0.0
