"""Run rows against a broker and judge the results.

Known differences between the embedded broker and RabbitMQ are listed here with their reasons.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from hopback.errors import HopbackError
from tests.conformance.suite.row import Row, Tag, rows
from tests.conformance.suite.subject import Facilities, Lacking, Subject

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.broker.port import Broker
    from hopback.version import BrokerVersion

_COSTLY = frozenset({Tag.SLOW, Tag.DESTRUCTIVE})


class Outcome(StrEnum):
    HOLDS = "holds"
    FAILS = "fails"
    NOT_APPLICABLE = "does not apply"
    """The row does not apply to this version."""
    NOT_TESTED = "not tested"
    """The subject lacks a facility of the row."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one row, with a reason unless the row holds."""

    row: Row
    outcome: Outcome
    reason: str = ""


async def exercise(
    broker: Broker,
    facilities: Facilities | None = None,
    *,
    only: Iterable[Row] | None = None,
    without: Iterable[Tag] = _COSTLY,
) -> tuple[Result, ...]:
    """Run the rows one after the other, by default without slow and destructive ones."""
    excluded = frozenset(without)
    selected = rows() if only is None else tuple(only)
    return tuple(
        [await run_row(each, broker, facilities) for each in selected if not each.tags & excluded]
    )


async def run_row(row: Row, broker: Broker, facilities: Facilities | None = None) -> Result:
    """Run one row on a new subject."""
    subject = await Subject.set_up(broker, facilities)
    try:
        if not row.holds_for(subject.version):
            return Result(row, Outcome.NOT_APPLICABLE)
        # Longer than any row takes on such a broker.
        timings = subject.timings
        limit = 120 + 10 * timings.dead_letter_retry + 4 * timings.consumer_timeout
        async with asyncio.timeout(limit):
            await row.experiment(subject)
    except TimeoutError:
        return Result(row, Outcome.FAILS, "timeout")
    except Lacking as lack:
        return Result(row, Outcome.NOT_TESTED, str(lack))
    except (AssertionError, HopbackError, KeyError, IndexError) as error:
        return Result(row, Outcome.FAILS, f"{type(error).__name__}: {error}")
    finally:
        await subject.tear_down()
    return Result(row, Outcome.HOLDS)


@dataclass(frozen=True, slots=True)
class BrokerDifference:
    """A row in which the embedded broker differs from RabbitMQ."""

    row: str
    reason: str
    since: BrokerVersion | None = None
    until: BrokerVersion | None = None

    def concerns(self, row: str, version: BrokerVersion) -> bool:
        """Return whether the difference concerns this row on this version."""
        early = self.since is not None and version < self.since
        late = self.until is not None and version >= self.until
        return self.row == row and not early and not late


EMBEDDED_DIFFERENCES: tuple[BrokerDifference, ...] = (
    BrokerDifference("1.13", "The embedded broker has no streams: declaring one is refused."),
    BrokerDifference(
        "6.7b",
        "RabbitMQ's channel remembers the old queue, and its error closes the connection. The embedded"
        " broker's channel does not remember it, and the get succeeds.",
    ),
)


def judge(result: Result, version: BrokerVersion) -> str | None:
    """Return the error of the embedded broker's result, or None.

    A row that fails must be listed as a difference, and a listed one must fail.
    """
    known = [each for each in EMBEDDED_DIFFERENCES if each.concerns(result.row.id, version)]
    if result.outcome is Outcome.FAILS and not known:
        return result.reason
    if result.outcome is not Outcome.FAILS and known:
        return f"listed as a difference, but the row {result.outcome}: remove it from the list"
    if result.outcome is Outcome.NOT_TESTED:
        return f"expected a subject with all facilities, but it {result.reason}"
    return None
