"""Deliveries that are consumed by another library."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from hopback.headers import failure_from_exception
from hopback.policy.decision import Settlement
from hopback.policy.outcome import OUTCOMES, Park, Retry, Rule, outcome_of, reason_of
from hopback.runtime.answer import Answer, ConsumeSession, HeldDelivery
from hopback.runtime.worker import answer_for

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from hopback.broker.port import Channel
    from hopback.message import Received
    from hopback.runtime.settling import Settling
    from hopback.topology.plan import Plan
    from hopback.version import BrokerVersion


@dataclass(frozen=True, slots=True)
class PlannedQueue:
    """A queue with its plan and rules."""

    plan: Plan
    rules: tuple[Rule, ...]
    settling: Settling


class _SettlementRecorder:
    """Replaces a channel and records how a delivery should be settled."""

    def __init__(self) -> None:
        self.how: Settlement | None = None

    def ack(self, tag: int) -> None:
        self.how = Settlement.ACK

    def nack(self, tag: int, *, requeue: bool) -> None:
        self.how = Settlement.RELEASE if requeue else Settlement.DEAD_LETTER


class ForeignDelivery:
    """A delivery that is consumed by another library.

    `ended` is set when the channel of the delivery is closed.
    """

    def __init__(
        self,
        planned: PlannedQueue,
        delivery: Received,
        version: BrokerVersion,
        ended: asyncio.Event,
    ) -> None:
        self._planned = planned
        self._recorder = _SettlementRecorder()
        # Only `ack` and `nack` of the channel are used.
        session = ConsumeSession(cast("Channel", self._recorder), version, ended)
        self._held = HeldDelivery(delivery, session)
        self._began = time.monotonic()
        self.answered: bool = False
        """Whether the consumer has settled the delivery."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The exception rules of the queue."""
        return self._planned.rules

    def copy_settlement(self) -> Settlement | None:
        """Return how to settle the delivery if it is a duplicate of a handled message, otherwise
        None.
        """
        if not self._planned.settling.settle_copy(self._held):
            return None
        self.answered = True
        return self._recorder.how

    async def conclude(self, answer: Answer) -> Settlement | None:
        """Apply the plan and return how to settle the delivery.

        Returns None if the delivery must stay unsettled.
        """
        if self.answered:
            raise RuntimeError("expected one answer to a delivery, got a second one")
        self.answered = True
        duration = time.monotonic() - self._began
        await self._planned.settling.conclude(self._held, answer, duration)
        return self._recorder.how


def answer_to_requeue(error: BaseException | None, rules: Iterable[Rule]) -> Answer:
    """Return the answer for a nack or reject with requeue: a retry with delay."""
    if error is not None:
        return answer_for(error, tuple(rules))
    return Answer(Retry("the consumer requeued the message (requeue=True)"))


def answer_to_reject(error: BaseException | None) -> Answer:
    """Return the answer for a reject without requeue: dead-letter the message."""
    if error is None:
        return Answer(Park("the consumer rejected the message (requeue=False)"))
    return Answer(Park(reason_of(error)), failure_from_exception(error), error=error)


def answer_of_outcome(returned: object) -> Answer | None:
    """Return the answer if the consumer returned an outcome, otherwise None."""
    if isinstance(returned, OUTCOMES):
        return Answer(outcome_of(returned))
    return None
