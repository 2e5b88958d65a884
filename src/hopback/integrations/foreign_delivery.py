"""A delivery that another library's consumer handles, and its answer."""

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
    """A queue with its plan, its rules and the settlement of its deliveries."""

    plan: Plan
    rules: tuple[Rule, ...]
    settling: Settling


class _SettlementRecorder:
    """Stands in for a channel: records the settlement that the library has to carry out."""

    def __init__(self) -> None:
        self.how: Settlement | None = None

    def ack(self, tag: int) -> None:
        self.how = Settlement.ACK

    def nack(self, tag: int, *, requeue: bool) -> None:
        self.how = Settlement.RELEASE if requeue else Settlement.DEAD_LETTER


class ForeignDelivery:
    """A delivery that another library's consumer handles. It takes one answer.

    `ended` is set when the channel of the delivery has ended.
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
        # `Settling` uses only `ack` and `nack` of a channel.
        session = ConsumeSession(cast("Channel", self._recorder), version, ended)
        self._held = HeldDelivery(delivery, session)
        self._began = time.monotonic()
        self.answered: bool = False
        """Whether the consumer has answered."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of the plan for exceptions."""
        return self._planned.rules

    def copy_settlement(self) -> Settlement | None:
        """Return how to settle a second copy of a handled message. None: the consumer must run."""
        if not self._planned.settling.settle_copy(self._held):
            return None
        self.answered = True
        return self._recorder.how

    async def conclude(self, answer: Answer) -> Settlement | None:
        """Carry out the answer and return the settlement. None: the delivery stays unsettled."""
        if self.answered:
            raise RuntimeError("expected one answer to a delivery, got a second one")
        self.answered = True
        duration = time.monotonic() - self._began
        await self._planned.settling.conclude(self._held, answer, duration)
        return self._recorder.how


def answer_to_requeue(error: BaseException | None, rules: Iterable[Rule]) -> Answer:
    """Answer for a consumer that nacked or rejected with requeue: retry by the plan, not at once."""
    if error is not None:
        return answer_for(error, tuple(rules))
    return Answer(Retry("the consumer gave it back (requeue=True)"))


def answer_to_reject(error: BaseException | None) -> Answer:
    """Answer for a consumer that rejected without requeue: park with the reason."""
    if error is None:
        return Answer(Park("the consumer rejected it (requeue=False)"))
    return Answer(Park(reason_of(error)), failure_from_exception(error), error=error)


def answer_of_outcome(returned: object) -> Answer | None:
    """Answer for a consumer that returned an outcome of Hopback. None for any other value."""
    if isinstance(returned, OUTCOMES):
        return Answer(outcome_of(returned))
    return None
