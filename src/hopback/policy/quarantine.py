"""Messages that may kill the process: how they are suspected and isolated."""

# A message that kills the process also returns every other delivery in its hands, and a quorum
# queue counts each return towards the delivery limit. So:
#
# 1. A message that returned four times is suspected. Up to three returns are ordinary: deploys, restarts
#    of the broker, lost connections and killed processes each return a whole window, often two in a row,
#    and none of them indicates a bad message. A queue with a delivery limit below 9 allows fewer: finding
#    the deadly message takes the rest of the limit.
# 2. A suspected message runs while no other delivery of its queue is in hand and no other run of the
#    process is in progress. Of the suspected messages of several queues, the one with the fewest returns
#    runs first.
# 3. It is parked when the process has died three times while it ran alone. No header shows that: a message
#    returns in the same way whether it was being handled or waiting, and whether the process died or its
#    connection was lost. Only a process that outlives this one can know.
# 4. If the broker returns failed messages (reject loops) or a snooze requeues them, messages return by
#    design and none is suspected. The same applies to classic queues, which do not count returns.

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from hopback.headers import counter_in
from hopback.policy.outcome import Park
from hopback.topology.plan import Leave, Plan

if TYPE_CHECKING:
    from hopback.message import Delivery
    from hopback.policy.reading import Reading

_ORDINARY_RETURNS = 3
"""See rule 1. A higher value lets a deadly message return its neighbours once more. A lower value
makes a queue serial after its process was killed three times.
"""
_LIMIT_SHARE = 3
"""At most a third of the delivery limit may be ordinary returns. The deadly message needs three
deaths alone, and a neighbour may return a few times more before its turn.
"""
DEADLY = 3
"""Deaths that convict: one may be the kernel's choice, two an operator's hand."""


def can_suspect(plan: Plan) -> bool:
    """Whether messages of this queue return only after a failure."""
    return plan.leave is Leave.PUBLISH and plan.snooze is None


def returns_of(delivery: Delivery) -> int:
    """Return the number of returns. The broker's count is trusted only with the redelivered flag."""
    return (
        counter_in(delivery.properties.headers, "x-delivery-count") if delivery.redelivered else 0
    )


def ordinary_returns(delivery_limit: object) -> int:
    """Return how often a message may return without suspicion, by the queue's `x-delivery-limit`."""
    if not isinstance(delivery_limit, int) or delivery_limit < 0:
        return _ORDINARY_RETURNS
    return min(_ORDINARY_RETURNS, max(1, delivery_limit // _LIMIT_SHARE))


def is_suspected(delivery: Delivery, ordinary: int = _ORDINARY_RETURNS) -> bool:
    """Whether it returned more often than is ordinary in its queue."""
    return returns_of(delivery) > ordinary


def suspect_token(reading: Reading) -> str:
    """Return a token that is stable across returns and changes after a retry or re-drive."""
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
    """Return Park if the process died too often with this message alone, or None."""
    if deaths < DEADLY:
        return None
    return Park(f"the process died {deaths} times while this message alone was being handled")
