"""Play rows against a broker, tell what came of each, and judge it.

Where the embedded broker is known to differ from RabbitMQ, and why, stands here, as short as can be.
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
    SAYS_NOTHING = "says nothing"
    """The row is not about this version."""
    NOT_SHOWN = "not shown"
    """The subject lacks what the row needs."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one row, and the reason where it does not hold."""

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
    """Play the rows one after the other; by default all but those that are slow or destructive."""
    unwanted = frozenset(without)
    chosen = rows() if only is None else tuple(only)
    return tuple(
        [await play(each, broker, facilities) for each in chosen if not each.tags & unwanted]
    )


async def play(row: Row, broker: Broker, facilities: Facilities | None = None) -> Result:
    """Play one row on a subject of its own."""
    subject = await Subject.set_up(broker, facilities)
    try:
        if not row.holds_for(subject.version):
            return Result(row, Outcome.SAYS_NOTHING)
        # Longer than any row takes on such a broker.
        timings = subject.timings
        limit = 120 + 10 * timings.dead_letter_retry + 4 * timings.consumer_timeout
        async with asyncio.timeout(limit):
            await row.experiment(subject)
    except TimeoutError:
        return Result(row, Outcome.FAILS, "it came to no end")
    except Lacking as lack:
        return Result(row, Outcome.NOT_SHOWN, str(lack))
    except (AssertionError, HopbackError, KeyError, IndexError) as error:
        return Result(row, Outcome.FAILS, f"{type(error).__name__}: {error}")
    finally:
        await subject.tear_down()
    return Result(row, Outcome.HOLDS)


@dataclass(frozen=True, slots=True)
class BrokerDifference:
    """A row that the embedded broker does not show as RabbitMQ does."""

    row: str
    reason: str
    since: BrokerVersion | None = None
    until: BrokerVersion | None = None

    def concerns(self, row: str, version: BrokerVersion) -> bool:
        """Whether it is about this row on this version."""
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
    """What is wrong with a result of the embedded broker; None if it is as it should be.

    A row that fails must be listed as a difference, and a listed one must fail.
    """
    known = [each for each in EMBEDDED_DIFFERENCES if each.concerns(result.row.id, version)]
    if result.outcome is Outcome.FAILS and not known:
        return result.reason
    if result.outcome is not Outcome.FAILS and known:
        return f"listed as a difference, but the row {result.outcome}: take it off the list"
    if result.outcome is Outcome.NOT_SHOWN:
        return f"the subject should have everything, but it {result.reason}"
    return None
