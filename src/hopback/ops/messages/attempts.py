"""Count the attempts to handle a message, based on its headers.

The counters written by consumers are exact. The broker's `x-death` header contains the number of
rejects and how often the message has passed each retry queue. If a reject moved the message to a
retry queue, both belong to the same attempt. If the consumer published the message to the retry
queue itself, this is another attempt. The headers do not show requeued and unacked deliveries.

This module is pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.headers import Failure, History, counter_in

if TYPE_CHECKING:
    from hopback.fields import Headers
    from hopback.ops.brokers.discovery import DeadLetterQueue


_RETRY_COUNTERS = ("x-retry-count", "x-retries", "x-retry", "retry-count", "retry_count", "retries")
_RUN_COUNTERS = ("x-attempts", "x-attempt", "attempts", "x-delivery-attempts")
_MOST_RUNS = 100  # attempts. A larger number is probably not a counter, so it is ignored.


def attempts_in(headers: Headers) -> int:
    """Return the attempts that a consumer has counted in one of the common headers, or 0."""
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
    """Return the number of attempts, and whether there may have been more.

    `retries` is the number counted by the message's framework, or None if there is none.
    """
    headers, origin = known.headers, known.queue
    plans = () if source is None else source.plans
    counters = [counter_in(headers, plan.count_header) for plan in plans if plan.queue == origin]
    counted = max(
        known.attempts,
        failure.attempts,
        # A framework that has counted no retries may not know about retries made with the broker.
        1 + retries if retries else 0,
        *counters,
        attempts_in(headers),
        0,
    )
    rejected = known.broker_failures
    laps = {
        death.queue: death.count
        for death in known.broker_deaths
        if death.queue != origin and death.reason == "expired"
    }
    waited = sum(laps.values())
    is_limited = any(
        death.reason == "delivery_limit" and death.queue == origin for death in known.broker_deaths
    )
    if counted:
        return max(counted, rejected), False
    if not waited:
        # A framework that has counted no retries may have retried in its process.
        return max(rejected, int(retries is not None)), is_limited or not rejected
    ways = {} if source is None else {wait.queue: wait.by_broker for wait in source.waits}
    by_broker, most = all(ways.get(queue) for queue in laps), max(laps.values())
    # If a reject leads through several retry queues, they are counted once.
    by_reject = by_broker or (rejected > 1 and rejected >= most)
    runs = max(rejected, most + 1) if by_reject else max(rejected, 1) + waited
    return runs, is_limited or not (by_broker or rejected <= 1)
