"""Count the attempts of a dead letter by its headers. Pure.

The counters of consumers are exact. The broker's `x-death` shows rejects and laps through retry queues. A
lap that began with a reject belongs to that attempt. A lap into which the consumer published the message
itself is another attempt. Requeued and unacked deliveries are not recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.headers import Failure, History, counter_in

if TYPE_CHECKING:
    from hopback.fields import Headers
    from hopback.ops.brokers.discovery import DeadLetterQueue


_RETRY_COUNTERS = ("x-retry-count", "x-retries", "x-retry", "retry-count", "retry_count", "retries")
_RUN_COUNTERS = ("x-attempts", "x-attempt", "attempts", "x-delivery-attempts")
_MOST_RUNS = 100  # a larger number is not a count of attempts and is ignored


def attempts_in(headers: Headers) -> int:
    """Return the attempts that a consumer counted under a usual header name, or 0 without one."""
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

    `retries` is the count of the message's framework, or None without one.
    """
    headers, origin = known.headers, known.queue
    plans = () if source is None else source.plans
    counters = [counter_in(headers, plan.count_header) for plan in plans if plan.queue == origin]
    counted = max(
        known.attempts,
        failure.attempts,
        # A framework that counted no retry may not know about those by the broker.
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
        # A framework that counted no retry may have retried within its process.
        return max(rejected, int(retries is not None)), is_limited or not rejected
    ways = {} if source is None else {wait.queue: wait.by_broker for wait in source.waits}
    by_broker, most = all(ways.get(queue) for queue in laps), max(laps.values())
    # Laps through several queues after one reject count as one lap.
    by_reject = by_broker or (rejected > 1 and rejected >= most)
    runs = max(rejected, most + 1) if by_reject else max(rejected, 1) + waited
    return runs, is_limited or not (by_broker or rejected <= 1)
