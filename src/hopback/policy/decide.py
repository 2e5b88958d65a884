"""Decide about a delivery. All decisions about ack, retry, park and requeue are in this file."""

# The rules of this file:
#
# 1. It does no I/O, reads no clock and draws no random number: time and chance are arguments.
# 2. It is total: there is a decision for any headers and any outcome of the handler.
# 3. A failure below the plan's attempts goes to a retry queue. The last one is parked.
# 4. A message goes for retry by a confirmed publish, or by nack (requeue=False) where the plan
#    leaves that to the broker. Instead of nack it is published into the same retry queue when
#    a. it has our count: it was published without x-death, so the broker would count from 0;
#    b. it needs a tier that the queue's dead-letter exchange does not lead to;
#    c. the broker is older than 4.0, so believes an x-death that a client published, and this one
#       is malformed (it crashes the queue) or has a death in this queue that was not a
#       rejection (the way back is then dropped as a cycle).
# 5. A snooze counts no attempt. The message waits in a retry queue, or in the process if the plan
#    specifies that: a requeue costs a quorum queue one of its deliveries. A wait in the process
#    is never shorter than the plan's minimum.
#    A wait longer than any retry queue of the plan uses the delay queues, if they exist. The message
#    then returns at the given time. A retry with a longer wait than any tier does the same.
# 6. A message that cannot carry its count cannot be retried by publish: it is parked. If its headers
#    do not fit a frame it is rejected where that leads to the dead-letter queue, else it is published
#    there without the largest of them. No content keeps a delivery unsettled.
# 7. A message with unreadable headers is parked at its first failure or snooze: its count may be
#    among them.
#
# The first matching rule applies. Code outside this file adds no exceptions.

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
    """Decide the handling of `delivery` from its handler's `outcome`.

    `chance` from 0 to 1 spreads local waits. `dead_letters_park` is true if the queue's dead-letter
    exchange leads to the dead-letter queue (see `hopback.topology.expand`), so that a message too
    large to be published may be rejected there. `longest_delay_ms` is the longest wait of the delay
    queues, 0 if there are none. `reading` is the parsed delivery, if it already exists.
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
    """The inputs of a decision."""

    reading: Reading
    plan: Plan
    version: BrokerVersion
    dead_letters_park: bool
    longest_delay_ms: int

    @property
    def attempt(self) -> int:
        """The number of the run that has ended."""
        return self.reading.attempt

    @property
    def is_last_attempt(self) -> bool:
        """Whether the plan allows no further run."""
        return self.attempt >= self.plan.attempts

    @property
    def unread(self) -> bool:
        """Whether it has headers that cannot be read."""
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
    """Return the seconds to wait in the consumer before a requeue: the remaining time, within limits.

    The lower limit is the plan's minimum. The upper limit of the first wait is random within the plan's
    range. A message that was requeued before may wait longer, so that a receiver that never becomes
    ready is called less often.
    """
    spread = wait.min_ms + max(0.0, min(1.0, chance)) * (wait.max_ms - wait.min_ms)
    longest = wait.max_ms + wait.min_ms if again else spread
    return max(min(seconds, longest / 1000), wait.min_ms / 1000)


def _wait(case: _Case, seconds: float, reason: str, *, counted: bool) -> Decision:
    """Wait in the smallest tier that is long enough, else for the exact time in the delay queues.

    Without delay queues it waits in the last tier.
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
    """Move the message to the tier's retry queue by the plan's route or the safe one. Park it if
    neither is possible.
    """
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
    if case.dead_letters_park and _is_trusted(case):
        return decided.Park(Leave.REJECT, case.attempt, reason)
    return decided.Park(Leave.PUBLISH, case.attempt, f"{reason} ({_TOO_LARGE})")


def _may_reject(case: _Case, by: Leave) -> bool:
    """Whether the plan lets the broker move the message, and this broker version does so safely."""
    return by is Leave.REJECT and _is_trusted(case)


def _is_trusted(case: _Case) -> bool:
    """Whether the message's `x-death` is harmless when the broker dead-letters it."""
    reading = case.reading
    if case.version >= _V4_0:
        return True
    return well_formed_deaths(reading.history.headers) and not any(
        death.queue == case.plan.queue and death.reason != "rejected" for death in reading.deaths
    )


def _count_fits(case: _Case, *, counted: bool) -> bool:
    properties = case.reading.delivery.properties
    if not (properties.headers or properties.further_headers or case.unread):
        return True  # a queue, two counts and the other short properties always fit
    mark = count_mark(case.reading, case.attempt, counted=counted)
    return can_retry(properties, mark, case.reading.history)


def _seconds(value: float) -> float:
    """Return a handler's duration as a valid number: not negative, not too large, not NaN."""
    try:
        seconds = float(value)
    except OverflowError:
        return math.inf
    except ValueError:
        return 0.0
    return 0.0 if math.isnan(seconds) else max(seconds, 0.0)
