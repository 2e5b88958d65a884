"""From a decision to its effects, in order: publish and confirm first, settle last.

Whoever carries them out stops at the first that fails; then nothing is settled and the message
stays where it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from hopback.headers import park_properties, retry_properties
from hopback.message import Message
from hopback.policy import decision as decided
from hopback.policy.decision import Hold, Publish, Settle, Settlement
from hopback.policy.marking import park_mark, retry_mark
from hopback.policy.reading import Reading
from hopback.topology.plan import Leave

if TYPE_CHECKING:
    from hopback.message import Delivery, Properties
    from hopback.policy.decision import Decision, Effect
    from hopback.policy.marking import Occasion
    from hopback.topology.plan import Plan

__all__ = ["effects"]

_ACK = (Settle(Settlement.ACK),)
_DEAD_LETTER = (Settle(Settlement.DEAD_LETTER),)


def effects(
    decision: Decision,
    delivery: Delivery,
    plan: Plan,
    occasion: Occasion,
    *,
    reading: Reading | None = None,
) -> tuple[Effect, ...]:
    """The steps that carry out `decision`; none at all where the message stays unsettled.

    `reading` is the delivery as somebody has read it already.
    """
    match decision:
        case decided.Ack():
            return _ACK
        case decided.Requeue(delay=delay):
            return (Hold(delay), Settle(Settlement.RELEASE))
        case decided.Keep():
            return ()
        case decided.Retry(by=Leave.REJECT) | decided.Park(by=Leave.REJECT):
            return _DEAD_LETTER
        case decided.Retry(route=route):
            read = reading or Reading(delivery, plan)
            mark = retry_mark(decision, read, occasion)
            marked = retry_properties(delivery.properties, mark, read.history)
            return _moved(delivery, route.exchange, route.routing_key, marked)
        case decided.Park():
            read, parking = reading or Reading(delivery, plan), plan.parking
            mark = park_mark(decision, read, occasion)
            marked = park_properties(delivery.properties, mark, read.history)
            return _moved(delivery, parking.exchange, parking.routing_key, marked)
        case _:
            assert_never(decision)


def _moved(
    delivery: Delivery, exchange: str, routing_key: str, properties: Properties | None
) -> tuple[Effect, ...]:
    """Publish, then ack. What does not fit a frame stays; `decide` never asks for it."""
    if properties is None:
        return ()
    return (Publish(Message(exchange, routing_key, delivery.body, properties)), *_ACK)
