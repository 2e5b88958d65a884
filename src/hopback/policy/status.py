"""The event bus's table: what an HTTP answer means for the event that was pushed."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, assert_never

from hopback.policy import decision as decided
from hopback.policy.outcome import Done, Retry, Snooze

if TYPE_CHECKING:
    from hopback.policy.decision import Decision
    from hopback.policy.outcome import Outcome

__all__ = ["TOO_EARLY", "ConsumerStatus", "consumer_status", "outcome_for_status"]

TOO_EARLY = 425
"""The answer of a service to an event whose `processAfterDelayMs` is not over."""


class ConsumerStatus(StrEnum):
    """The document's names for what a consumer does with a message."""

    ACK = "ACK"
    DROP = "DROP"
    REQUEUE = "REQUEUE"


def outcome_for_status(
    status: int, *, due_in: float = 0.0, retry_after: float | None = None
) -> Outcome:
    """The outcome of an HTTP answer.

    2xx is done; 425 is not due yet (`due_in` seconds to go); everything else is retried: 429 and
    409, server errors, other client errors (which will likely fail again, and park in the end),
    and answers that should not occur at all.
    """
    if 200 <= status <= 299:
        return Done()
    if status == TOO_EARLY:
        return Snooze(due_in)
    return Retry(f"HTTP {status}", retry_after)


def consumer_status(decision: Decision) -> ConsumerStatus | None:
    """The document's name for a decision: a parked message is acknowledged, as its table says.

    None where nothing is settled, which the document does not know.
    """
    match decision:
        case decided.Ack() | decided.Park():
            return ConsumerStatus.ACK
        case decided.Retry():
            return ConsumerStatus.DROP
        case decided.Requeue():
            return ConsumerStatus.REQUEUE
        case decided.Keep():
            return None
        case _:
            assert_never(decision)
