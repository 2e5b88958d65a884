"""Read untrusted data and collect all problems.

Reading a value never raises an exception. If a value is invalid, the problem is recorded and a
default is returned. This way, all problems are found in a single pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from hopback.durations import parse_duration_ms
from hopback.errors import InvalidTopology, Problem
from hopback.topology.wording import did_you_mean, either, path_to, show_value

if TYPE_CHECKING:
    from enum import StrEnum

    Option = TypeVar("Option", bound=StrEnum)

T = TypeVar("T")


class Located:
    """A value with its path. All values of an input share a list of problems."""

    __slots__ = ("path", "problems", "value")

    def __init__(self, path: str, value: object, problems: list[Problem]) -> None:
        self.path: str = path
        self.value: object = value
        self.problems: list[Problem] = problems

    def wrong(self, expected: str, got: str | None = None) -> None:
        """Record a problem."""
        self.problems.append(
            Problem(self.path, expected, show_value(self.value) if got is None else got)
        )

    def inner(self, key: str | int, value: object) -> Located:
        """Return an item of this value."""
        return Located(path_to(self.path, key), value, self.problems)

    def text(self) -> str:
        if isinstance(self.value, str):
            return self.value
        self.wrong("text")
        return ""

    def flag(self) -> bool:
        if isinstance(self.value, bool):
            return self.value
        self.wrong("true or false")
        return False

    def integer(self) -> int:
        if isinstance(self.value, int) and not isinstance(self.value, bool):
            return self.value
        self.wrong("a whole number")
        return 0

    def positive(self) -> int:
        """Read a positive integer."""
        number = self.integer()
        if isinstance(self.value, int) and number < 1:
            self.wrong("a positive whole number")
        return max(number, 1)

    def duration_ms(self) -> int:
        """Read a duration and return it in milliseconds."""
        try:
            return parse_duration_ms(self.value)  # type: ignore[arg-type]
        except ValueError as error:
            self.wrong(str(error).removeprefix("expected ").rpartition(", got ")[0])
        return 0

    def option(self, options: type[Option]) -> Option:
        """Read a member of an enum."""
        words = [str(option) for option in options]
        if isinstance(self.value, str) and self.value in words:
            return options(self.value)
        hint = did_you_mean(self.value, words) if isinstance(self.value, str) else ""
        self.wrong(either(words), show_value(self.value) + hint)
        return next(iter(options))

    def items(self) -> tuple[Located, ...]:
        """Read the items of an array."""
        if isinstance(self.value, list | tuple):
            return tuple(self.inner(index, value) for index, value in enumerate(self.value))
        self.wrong("an array")
        return ()

    def entries(self) -> tuple[tuple[str, Located], ...]:
        """Read the items of a table."""
        if not isinstance(self.value, Mapping):
            many = isinstance(self.value, list) and len(self.value) > 0
            self.wrong(f"a table, as in [{self.path}.NAME]" if many else "a table")
            return ()
        found = []
        for key, value in self.value.items():
            if isinstance(key, str):
                found.append((key, self.inner(key, value)))
            else:
                self.wrong("text for every key", show_value(key))
        return tuple(found)

    def table(self) -> Table:
        """Read a table. Returns an empty table if the value is not a table."""
        return Table(self, dict(self.entries()))

    def check(self, where: str) -> None:
        """Raise InvalidTopology if there are any problems."""
        if self.problems:
            raise InvalidTopology(tuple(dict.fromkeys(self.problems)), where=where)


class Table:
    """A table with known keys. `close` reports the keys that were not read."""

    __slots__ = ("_asked", "_entries", "place")

    def __init__(self, place: Located, entries: dict[str, Located]) -> None:
        self.place: Located = place
        self._entries = entries
        self._asked: set[str] = set()

    def get(self, key: str) -> Located | None:
        """Return the value of a key, or None."""
        self._asked.add(key)
        return self._entries.get(key)

    def read(self, key: str, how: Callable[[Located], T], otherwise: T) -> T:
        """Read an optional key."""
        place = self.get(key)
        return otherwise if place is None else how(place)

    def need(
        self, key: str, how: Callable[[Located], T], otherwise: T, expected: str = "text"
    ) -> T:
        """Read a required key."""
        place = self.get(key)
        if place is not None:
            return how(place)
        self.place.inner(key, None).wrong(expected, "nothing")
        return otherwise

    def items(self, key: str) -> tuple[Located, ...]:
        """Read the items of an optional array."""
        return self.read(key, Located.items, ())

    def entries(self, key: str) -> tuple[tuple[str, Located], ...]:
        """Read the items of an optional table."""
        return self.read(key, Located.entries, ())

    def without(self, known: Iterable[str]) -> dict[str, Located]:
        """Return the items whose keys are not in `known`."""
        return {key: place for key, place in self._entries.items() if key not in set(known)}

    def close(self) -> None:
        """Report all keys that were not read."""
        known = sorted(self._asked)
        for key, place in self.without(known).items():
            place.wrong(f"one of {', '.join(known)}", show_value(key) + did_you_mean(key, known))


_POSITION = re.compile(r"(.*) \(at (.*)\)", re.DOTALL)
_UNCLOSED = re.compile(r"""Illegal character '\\n'|Unterminated string|Expected "'+\"""")
"""Texts of `tomllib` for a string without its closing quote."""


def toml_problem(error: ValueError | RecursionError) -> Problem:
    """Return the place and cause of a syntax error in TOML."""
    if isinstance(error, RecursionError):
        return Problem("line 1", "valid TOML", "values nested too deeply")
    found = _POSITION.fullmatch(str(error))
    text, place = found.groups() if found else (str(error), "file")
    if _UNCLOSED.fullmatch(text):
        return Problem(place, "valid TOML", "a string without its closing quote")
    return Problem(place, "valid TOML", f"a syntax error: {text}")
