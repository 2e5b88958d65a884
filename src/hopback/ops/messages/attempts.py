"""The number of attempts that a dead letter shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.headers import (
    Failure,
    counter_in,
)

if TYPE_CHECKING:
    from hopback.fields import Headers
    from hopback.headers import History
    from hopback.ops.brokers.discovery import DeadLetterQueue


_RETRY_COUNTERS = ("x-retry-count", "x-retries", "x-retry", "retry-count", "retry_count", "retries")
_RUN_COUNTERS = ("x-attempts", "x-attempt", "attempts", "x-delivery-attempts")
_MOST_RUNS = 100  # a larger number counts something else


def _runs_in_headers(headers: Headers) -> int:
    """The runs that a consumer without a framework counted under a usual name; 0 if it did not."""
    retries = max((counter_in(headers, name) for name in _RETRY_COUNTERS), default=0)
    runs = max((counter_in(headers, name) for name in _RUN_COUNTERS), default=0)
    counted = max(runs, retries + 1 if retries else 0)
    return counted if counted <= _MOST_RUNS else 0


def count_attempts(
    known: History,
    source: DeadLetterQueue | None,
    failure: Failure,
    retries: int | None,
) -> tuple[int, bool]:
    """How often its handler ran, and whether it may have been more often.

    What consumers count is right. The broker's record tells of rejects, and of laps through retry
    queues. A lap that began with a reject is that run again; one into which the consumer published
    the message itself is another. What was requeued or came back unanswered is in no record.
    """
    headers, origin = known.headers, known.queue
    plans = () if source is None else source.plans
    counters = [counter_in(headers, plan.count_header) for plan in plans if plan.queue == origin]
    counted = max(
        known.attempts,
        failure.attempts,
        # A framework that says of no retry may not know of those that the broker made.
        1 + retries if retries else 0,
        *counters,
        _runs_in_headers(headers),
        0,
    )
    rejected = known.broker_failures
    laps = {
        death.queue: death.count
        for death in known.broker_deaths
        if death.queue != origin and death.reason == "expired"
    }
    waited = sum(laps.values())
    taken_back = any(
        death.reason == "delivery_limit" and death.queue == origin for death in known.broker_deaths
    )
    if counted:
        return max(counted, rejected), False
    if not waited:
        # A framework that tells of no retry may have tried again within its own process.
        return max(rejected, int(retries is not None)), taken_back or not rejected
    ways = {} if source is None else {wait.queue: wait.by_broker for wait in source.waits}
    by_broker, most = all(ways.get(queue) for queue in laps), max(laps.values())
    # Laps through several queues after one reject are one lap.
    by_reject = by_broker or (rejected > 1 and rejected >= most)
    runs = max(rejected, most + 1) if by_reject else max(rejected, 1) + waited
    return runs, taken_back or not (by_broker or rejected <= 1)
