"""Isolate messages that crash the process."""

# When a message crashes the process, all other deliveries of the process are requeued as well. On a
# quorum queue, this counts towards their delivery limit. Therefore:
#
# 1. A message is suspected after it has been requeued four times. Up to three times are considered
#    normal, because deploys, broker restarts, lost connections and killed processes all requeue
#    messages. The number is lower if the delivery limit of the queue is below 9, since finding the
#    message that causes the crash takes the rest of the limit.
# 2. A suspected message is handled alone: no other delivery of the queue is held and no other handler
#    is running. If several queues have suspected messages, the least requeued one is handled first,
#    because the message that causes the crashes is requeued by all of them. A message that is about
#    to reach its delivery limit comes before all others: it may only have waited for its turn while
#    another message crashed the process.
# 3. A message is dead-lettered when the process has died three times while handling it alone.
#    Headers cannot reveal this, because they do not show whether a message was being handled, or
#    whether the process or the connection was lost. It needs another process that survives the crash.
# 4. Messages are not suspected if they are requeued by design, i.e. if the plan uses the broker's
#    dead-lettering or if snoozed messages are requeued. The same applies to classic queues, which do
#    not count deliveries.

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from hopback.headers import counter_in
from hopback.policy.outcome import Park
from hopback.topology.plan import Leave, Plan

if TYPE_CHECKING:
    from hopback.message import Delivery
    from hopback.policy.reading import Reading

_ORDINARY_RETURNS = 3
"""See rule 1. A higher value means that a crash requeues more messages. With a lower value, queues
are processed serially too early.
"""
_LIMIT_SHARE = 3
"""The part of the delivery limit that is considered normal (1/3). The rest is needed to handle the
message alone.
"""
_LAST_RETURNS = 2
"""A message that can be requeued only this often before it reaches the limit is handled first."""
DEADLY = 3
"""A message is dead-lettered after this number of crashes. One or two of them may have other
causes, for example the OOM killer or an operator.
"""


def can_suspect(plan: Plan) -> bool:
    """Return True if messages in this queue are only requeued after failures."""
    return plan.leave is Leave.PUBLISH and plan.snooze is None


def returns_of(delivery: Delivery) -> int:
    """Return how often a message was requeued. Ignores the count if the redelivered flag is not
    set.
    """
    return (
        counter_in(delivery.properties.headers, "x-delivery-count") if delivery.redelivered else 0
    )


def ordinary_returns(delivery_limit: object) -> int:
    """Return how often a message may be requeued before we suspect it."""
    if not isinstance(delivery_limit, int) or delivery_limit < 0:
        return _ORDINARY_RETURNS
    return min(_ORDINARY_RETURNS, max(1, delivery_limit // _LIMIT_SHARE))


def is_suspected(delivery: Delivery, ordinary: int = _ORDINARY_RETURNS) -> bool:
    return returns_of(delivery) > ordinary


class Turn(NamedTuple):
    """The place of a suspected message among those of other queues. The lowest one is first."""

    can_wait: bool
    """False if the message is about to reach its delivery limit."""
    rank: int


def turn_of(delivery: Delivery, delivery_limit: object) -> Turn:
    """Return when the message is handled, if other queues have suspected messages as well."""
    returns = returns_of(delivery)
    if isinstance(delivery_limit, int) and 0 <= delivery_limit <= returns + _LAST_RETURNS:
        return Turn(can_wait=False, rank=delivery_limit - returns)
    return Turn(can_wait=True, rank=returns)


def suspect_token(reading: Reading) -> str:
    """Return a token that identifies the message until it is retried or re-driven."""
    delivery, known = reading.delivery, reading.history
    parts = (
        reading.plan.queue,
        reading.message_id,
        reading.attempt,
        known.snoozes,
        known.redrives,
    )
    digest = hashlib.sha256(repr(parts).encode("utf-8", "backslashreplace"))
    digest.update(delivery.body)
    return digest.hexdigest()[:32]


def deadly(deaths: int) -> Park | None:
    """Return Park if too many processes have died while handling the message."""
    if deaths < DEADLY:
        return None
    return Park(f"the process died {deaths} times while this message alone was being handled")
