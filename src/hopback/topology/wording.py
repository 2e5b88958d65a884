"""How names, values and paths are shown to people.

Names come from brokers and files that anybody may have written, so nothing here lets a control
character through to a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime, time
from difflib import get_close_matches
from typing import TYPE_CHECKING

from hopback.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["did_you_mean", "either", "path_to", "quoted", "shown"]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_LONGEST = 60  # a value in a sentence: enough to know it again


def quoted(text: str) -> str:
    """The text in double quotes, escaped, cut if it is long."""
    inner = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    escaped = inner.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{printable(escaped)}"'


def path_to(path: str, key: str | int) -> str:
    """The path of an entry: `queues.orders`, `queues."a b"`, `retry[2]`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    step = key if _BARE_KEY.fullmatch(key) else quoted(key)
    return f"{path}.{step}" if path else step


def shown(value: object) -> str:
    """A value as an error message names it: short, and in the words of JSON and TOML."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(int(value)) if abs(value) < 10**30 else "a far larger number"
        case float():
            return str(float(value))
        case str():
            return quoted(str(value))
        case Mapping():
            return "a table" if value else "an empty table"
        case list() | tuple():
            return "an array" if value else "an empty array"
        case datetime() | date() | time():
            return "a date or time"
    return f"a value of type {type(value).__name__}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint in parentheses if one of the known words is close to this one, else nothing."""
    close = get_close_matches(word[:_LONGEST], list(known), n=1)
    return f" (did you mean {quoted(close[0])}?)" if close else ""


def either(options: Iterable[str]) -> str:
    """`"a", "b" or "c"`."""
    words = [quoted(option) for option in options]
    return " or ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
