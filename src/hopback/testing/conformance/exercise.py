"""Play rows against a broker and tell what came of each."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from hopback.errors import HopbackError
from hopback.testing.conformance.row import Row, Tag, rows
from hopback.testing.conformance.subject import Facilities, Lacking, Subject

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.broker.port import Broker

__all__ = ["Outcome", "Result", "exercise", "play"]

_COSTLY = frozenset({Tag.SLOW, Tag.DESTRUCTIVE})


class Outcome(StrEnum):
    """What came of a row."""

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
