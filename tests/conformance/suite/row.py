"""A row of the conformance suite: one sentence about RabbitMQ, and the experiment that shows it.

Rows compare by `equal` and its like: errors say what was looked at, what was expected and what was found.
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
    """The broker under test does not do what the row says."""


def equal(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise Mismatch(f"{what}: expected {expected!r}, found {found!r}")


def that(condition: object, what: str) -> None:
    if not condition:
        raise Mismatch(f"expected that {what}")


Experiment: TypeAlias = "Callable[[Subject], Awaitable[None]]"
"""Plays the row; an AssertionError, or an error of the broker, says that the row does not hold."""


class Tag(StrEnum):
    """What a row costs, and what it needs beside AMQP."""

    SLOW = "slow"
    """Takes a minute or more on a broker with RabbitMQ's own timings."""
    DESTRUCTIVE = "destructive"
    """Wrecks what it runs on: not for a broker that others use."""
    POLICIES = "policies"
    """Sets policies."""
    NODE = "node"
    """Restarts the node or raises its alarms."""
    TIMEOUT = "timeout"
    """Waits for the consumer timeout."""
    SOCKET = "socket"
    """Writes frames of its own: only for a broker on a socket."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row: `id` is stable, `title` a sentence that holds for versions from `since` to `until`.

    What differs between versions within these bounds is part of the experiment.
    """

    id: str
    title: str
    experiment: Experiment
    tags: frozenset[Tag] = frozenset()
    since: BrokerVersion | None = None
    until: BrokerVersion | None = None
    """The first version for which it no longer holds."""

    def holds_for(self, version: BrokerVersion) -> bool:
        """Whether the row says anything about that version."""
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
    """Enter the decorated experiment as a row; ValueError if the number is taken."""

    def enter(experiment: Experiment) -> Experiment:
        if number in _rows:
            raise ValueError(f"expected a new row number, got {number}: {_rows[number].title}")
        _rows[number] = Row(number, title, experiment, frozenset(tags), since, until)
        return experiment

    return enter


def rows() -> tuple[Row, ...]:
    """All rows, in the order of their numbers."""
    import tests.conformance.suite.chapters  # noqa: F401  entering is importing

    return tuple(sorted(_rows.values(), key=lambda each: _order(each.id)))


def _order(number: str) -> tuple[bool, str, int, str]:
    """`1.10b` after `1.9`, and letters after figures."""
    chapter, _, rest = number.partition(".")
    digits = "".join(sign for sign in rest if sign.isdigit())
    return chapter.isalpha(), chapter.rjust(3), int(digits or 0), rest
