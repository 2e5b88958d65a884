"""A row of the conformance suite: a statement about RabbitMQ and an experiment that checks it.

Rows compare with `equal` and `expect`. Errors contain the compared item, the expected and the
actual value.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hopback.version import BrokerVersion
    from tests.conformance.suite.subject import Subject


class Mismatch(AssertionError):
    """The broker under test contradicts the row."""


def equal(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise Mismatch(f"{what}: expected {expected!r}, found {found!r}")


def expect(condition: object, what: str) -> None:
    if not condition:
        raise Mismatch(f"expected that {what}")


Experiment: TypeAlias = "Callable[[Subject], Awaitable[None]]"
"""Runs the row. It raises an AssertionError or a broker error if the row does not hold."""


class Tag(StrEnum):
    """The cost of a row, and its needs besides AMQP."""

    SLOW = "slow"
    """Takes a minute or more with RabbitMQ's default timings."""
    DESTRUCTIVE = "destructive"
    """Damages its broker. Not for a broker with other users."""
    POLICIES = "policies"
    """Sets policies."""
    NODE = "node"
    """Restarts the node or raises its alarms."""
    TIMEOUT = "timeout"
    """Waits for the consumer timeout."""
    SOCKET = "socket"
    """Writes raw frames. Only for a broker on a socket."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row. `id` is stable. `title` is a statement that holds for versions from `since` to
    `until`.

    The experiment covers differences between versions within these bounds.
    """

    id: str
    title: str
    experiment: Experiment
    tags: frozenset[Tag] = frozenset()
    since: BrokerVersion | None = None
    until: BrokerVersion | None = None
    """The first version for which it no longer holds."""

    def holds_for(self, version: BrokerVersion) -> bool:
        """Return whether the row applies to that version."""
        early = self.since is not None and version < self.since
        late = self.until is not None and version >= self.until
        return not early and not late


_rows: dict[str, Row] = {}


def row(
    number: str,
    title: str,
    *tags: Tag,
    since: BrokerVersion | None = None,
    until: BrokerVersion | None = None,
) -> Callable[[Experiment], Experiment]:
    """Register the decorated experiment as a row. Raises ValueError for a used number."""

    def enter(experiment: Experiment) -> Experiment:
        if number in _rows:
            raise ValueError(f"expected a new row number, got {number}: {_rows[number].title}")
        _rows[number] = Row(number, title, experiment, frozenset(tags), since, until)
        return experiment

    return enter


def rows() -> tuple[Row, ...]:
    """Return all rows in the order of their numbers."""
    import tests.conformance.suite.chapters  # noqa: F401  the import registers the rows

    return tuple(sorted(_rows.values(), key=lambda each: _order(each.id)))


def _order(number: str) -> tuple[bool, str, int, str]:
    """Order `1.10b` after `1.9`, and letters after digits."""
    chapter, _, rest = number.partition(".")
    digits = "".join(sign for sign in rest if sign.isdigit())
    return chapter.isalpha(), chapter.rjust(3), int(digits or 0), rest
