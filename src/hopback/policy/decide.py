"""Decide how to settle a delivery.

This module makes all decisions about acking, retrying, dead-lettering and requeueing.
"""

# The following rules apply. The first one that matches is used.
#
# 1. There is no I/O, and no access to the clock or to random numbers. Both are arguments.
# 2. There is a decision for any combination of headers and outcomes.
# 3. A failed message is retried until the attempts of the plan are used up. Then it is dead-lettered.
# 4. Retries use a confirmed publish, or nack (requeue=False) if the plan uses the broker's
#    dead-lettering. A message is published even then if
#    a. it has a retry count from Hopback. It was published without x-death, so the count of the
#       broker would start at 0.
#    b. it needs a tier that the dead-letter exchange of the queue does not lead to.
#    c. the broker is older than 4.0, which trusts an x-death header published by a client, and this
#       header is malformed (which crashes the queue) or contains a death in this queue other than a
#       rejection (which makes the broker drop the message as a cycle).
# 5. A snooze does not count as an attempt. The message waits in a retry queue, because requeueing
#    counts towards the delivery limit of quorum queues. The plan may specify that it waits in the
#    process instead, for at least a minimum time. If the delay is longer than all tiers, the delay
#    queues are used if they exist. The same applies to retries.
# 6. A message without room for the retry count is dead-lettered. If its headers do not fit into a
#    frame, it is rejected if that leads to the dead-letter queue. Otherwise it is published without
#    its largest headers. A delivery is never left unsettled because of its content.
# 7. A message with undecodable headers is dead-lettered on the first failure or snooze, because the
#    retry count may be one of them.

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, assert_never

from hopback.headers import (
    Mark,
    can_park,
    can_retry,
    well_formed_deaths,
)
from hopback.policy import decision as decided
from hopback.policy import outcome as said
from hopback.policy.effects import count_mark
from hopback.policy.reading import Reading
from hopback.topology.delays import way_in
from hopback.topology.plan import Leave, LocalWait, Plan, Route, Tier
from hopback.topology.routing import topic_matches
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from hopback.message import Delivery
    from hopback.policy.decision import Decision
    from hopback.policy.outcome import Outcome

_V4_0 = BrokerVersion(4, 0)
_UNREAD = "its headers cannot be read, so its attempts cannot be counted"
_NO_ROOM = "its headers leave no room for the count of attempts"
_TOO_LARGE = "its headers do not fit a frame, so the largest are left out"


def decide(
    delivery: Delivery,
    outcome: Outcome,
    plan: Plan,
    *,
    version: BrokerVersion,
    chance: float = 0.0,
    dead_letters_park: bool = False,
    longest_delay_ms: int = 0,
    reading: Reading | None = None,
) -> Decision:
    """Decide how to settle a delivery.

    Args:
        delivery: The delivery.
        outcome: The outcome returned by the handler.
        plan: The plan of the queue.
        version: The RabbitMQ version.
        chance: A random number from 0 to 1, used to spread delays within the process.
        dead_letters_park: True if the dead-letter exchange of the queue leads to the dead-letter
            queue. Messages that are too large to be published can then be rejected.
        longest_delay_ms: The longest delay of the delay queues, or 0 if there are none.
        reading: The parsed headers, if available.
    """
    case = _Case(
        reading or Reading(delivery, plan), plan, version, dead_letters_park, longest_delay_ms
    )
    match outcome:
        case said.Done():
            return decided.Ack()
        case said.Retry(reason=reason, after=after):
            tiers = plan.tiers
            if case.unread:
                return _park(case, f"{reason} ({_UNREAD})")
            if case.is_last_attempt or not tiers:
                return _park(case, reason)
            if after is None:
                return _to_tier(
                    case, tiers[min(case.attempt, len(tiers)) - 1], reason, counted=True
                )
            return _wait(case, _seconds(after), reason, counted=True)
        case said.Park(reason=reason):
            return _park(case, reason)
        case said.Snooze(delay=delay):
            return _snooze(case, delay, chance)
        case _:
            assert_never(outcome)


class _Case(NamedTuple):
    """The arguments of a decision."""

    reading: Reading
    plan: Plan
    version: BrokerVersion
    dead_letters_park: bool
    longest_delay_ms: int

    @property
    def attempt(self) -> int:
        """The number of this attempt."""
        return self.reading.attempt

    @property
    def is_last_attempt(self) -> bool:
        """Whether this was the last attempt."""
        return self.attempt >= self.plan.attempts

    @property
    def unread(self) -> bool:
        """Whether some of the headers could not be decoded."""
        return bool(self.reading.delivery.properties.opaque_headers)


def _snooze(case: _Case, delay: float, chance: float) -> Decision:
    plan, seconds = case.plan, _seconds(delay)
    if case.unread:
        return _park(case, f"not due yet ({_UNREAD})")
    if plan.snooze_exhausts and case.is_last_attempt:
        return _park(case, "not due yet, and no attempt is left")
    if plan.snooze is not None:
        again = case.reading.delivery.redelivered
        return decided.Requeue(_local_wait(plan.snooze, seconds, chance, again=again))
    if not plan.tiers and not case.longest_delay_ms:
        return _park(case, "not due yet, and the plan has no retry queue to wait in")
    return _wait(case, seconds, "not due yet", counted=False)


def _local_wait(wait: LocalWait, seconds: float, chance: float, *, again: bool) -> float:
    """Return how long the message is held by the consumer before it is requeued, in seconds.

    The delay is between the minimum and maximum of the plan. The first one is random. If the
    message was requeued before, the delay is longer. A service that is not ready is then called
    less often.
    """
    spread = wait.min_ms + max(0.0, min(1.0, chance)) * (wait.max_ms - wait.min_ms)
    longest = wait.max_ms + wait.min_ms if again else spread
    return max(min(seconds, longest / 1000), wait.min_ms / 1000)


def _wait(case: _Case, seconds: float, reason: str, *, counted: bool) -> Decision:
    """Return the smallest tier that is long enough.

    If no tier is, use the delay queues. If there are none, use the last tier.
    """
    enough = [tier for tier in case.plan.tiers if tier.delay_ms >= seconds * 1000]
    if enough:
        tier = min(enough, key=lambda tier: tier.delay_ms)
        return _to_tier(case, tier, reason, counted=counted)
    if not case.longest_delay_ms:
        return _to_tier(case, case.plan.tiers[-1], reason, counted=counted)
    if not _count_fits(case, counted=counted):
        return _park(case, f"{reason} ({_NO_ROOM})")
    delay_ms = math.ceil(min(seconds * 1000, float(case.longest_delay_ms)))
    exchange, routing_key = way_in(delay_ms)
    route = Route(exchange, routing_key, exchange or routing_key)
    tier = Tier("delay", delay_ms, (route,))
    by = Leave.PUBLISH
    return decided.Retry(tier, route, by, case.attempt, reason, counted, delayed=True)


def _to_tier(case: _Case, tier: Tier, reason: str, *, counted: bool) -> Decision:
    """Move the message to a retry queue. If this is not possible, dead-letter it."""
    rejecting = counted and _may_reject(case, case.plan.leave) and tier == case.plan.tiers[0]
    by = Leave.REJECT if rejecting and not case.reading.history.attempts else Leave.PUBLISH
    if by is Leave.PUBLISH and not _count_fits(case, counted=counted):
        return _park(case, f"{reason} ({_NO_ROOM})")
    route = next(
        (one for one in tier.routes if topic_matches(one.pattern, case.reading.origin[1])), None
    )
    if route is None:
        return _park(case, f"{reason} (no way into a retry queue fits its routing key)")
    return decided.Retry(tier, route, by, case.attempt, reason, counted)


def _park(case: _Case, reason: str) -> Decision:
    if _may_reject(case, case.plan.parking.by):
        return decided.Park(Leave.REJECT, case.attempt, reason)
    bare = Mark(case.plan.queue, case.attempt)
    if can_park(case.reading.delivery.properties, bare):
        return decided.Park(Leave.PUBLISH, case.attempt, reason)
    if case.dead_letters_park and may_dead_letter(case.reading, case.version):
        return decided.Park(Leave.REJECT, case.attempt, reason)
    return decided.Park(Leave.PUBLISH, case.attempt, f"{reason} ({_TOO_LARGE})")


def _may_reject(case: _Case, by: Leave) -> bool:
    """Return True if it is safe to let the broker dead-letter the message."""
    return by is Leave.REJECT and may_dead_letter(case.reading, case.version)


def may_dead_letter(reading: Reading, version: BrokerVersion) -> bool:
    """Return True if the broker can dead-letter the message with its current `x-death` header."""
    if version >= _V4_0:
        return True
    return well_formed_deaths(reading.history.headers) and not any(
        death.queue == reading.plan.queue and death.reason != "rejected" for death in reading.deaths
    )


def _count_fits(case: _Case, *, counted: bool) -> bool:
    properties = case.reading.delivery.properties
    if not (properties.headers or properties.further_headers or case.unread):
        return True  # a queue name, two counts and other short properties are never too long
    mark = count_mark(case.reading, case.attempt, counted=counted)
    return can_retry(properties, mark, case.reading.history)


def _seconds(value: float) -> float:
    """Return a valid delay in seconds for an outcome."""
    try:
        seconds = float(value)
    except OverflowError:
        return math.inf
    except ValueError:
        return 0.0
    return 0.0 if math.isnan(seconds) else max(seconds, 0.0)
