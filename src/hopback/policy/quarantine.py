"""Messages that may kill the process: which ones are suspected, and what is done about them."""

# A message that ends the process takes along whatever else was in its hands: all of it comes back, and a
# quorum queue counts it closer to its delivery limit. So:
#
# 1. A message that came back four times is suspected. Up to three returns are ordinary: deploys, restarts of
#    the broker, broken lines and killed processes each return a whole window, often two in a row, and none of
#    them says anything about a message. A queue with a delivery limit below 9 allows fewer: finding the
#    deadly message takes the rest of the limit.
# 2. What is suspected runs while nothing else of its queue is in hand and nothing of the process runs; of
#    several queues' suspected messages, the one that came back least often goes first.
# 3. It is parked when the process has died three times while it ran alone. No header can tell that: a
#    message comes back in the same way whether it was being handled or waited, whether the process died or
#    its line broke. Only who outlives the process has seen it.
# 4. Where the broker itself takes a failed message round (reject loops), or a snooze gives it back, messages
#    come back by design, and nothing is suspected; nor in classic queues, which do not count.

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
"""See rule 1. Each more lets a deadly message take its neighbours along once more. One less makes a queue
whose process was killed three times serial."""
_LIMIT_SHARE = 3
"""At most a third of the delivery limit may be ordinary returns: the poison needs three deaths alone, and a
neighbour may come back a few times more before it has its turn."""
DEADLY = 3
"""Deaths that convict: one may be the kernel's choice, two an operator's hand."""


def can_suspect(plan: Plan) -> bool:
    """Whether messages of this queue come back only when something broke."""
    return plan.leave is Leave.PUBLISH and plan.snooze is None


def returns_of(delivery: Delivery) -> int:
    """How often it came back; the count of the broker is believed only beside its flag."""
    return (
        counter_in(delivery.properties.headers, "x-delivery-count") if delivery.redelivered else 0
    )


def ordinary_returns(delivery_limit: object) -> int:
    """How often a message of a queue with this `x-delivery-limit` may come back without being suspected."""
    if not isinstance(delivery_limit, int) or delivery_limit < 0:
        return _ORDINARY_RETURNS
    return min(_ORDINARY_RETURNS, max(1, delivery_limit // _LIMIT_SHARE))


def is_suspected(delivery: Delivery, ordinary: int = _ORDINARY_RETURNS) -> bool:
    """Whether it came back more often than is ordinary in its queue."""
    return returns_of(delivery) > ordinary


def suspect_token(reading: Reading) -> str:
    """What is the same whenever this message comes back, and another once it was retried or re-driven."""
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
    """The outcome of a message at whose side the process died so often; None while it may run."""
    if deaths < DEADLY:
        return None
    return Park(f"the process died {deaths} times while this message alone was being handled")
