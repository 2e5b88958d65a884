"""A delivery that another library's consumer handles, and its answer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from hopback.headers import failure_from_exception
from hopback.policy.decision import Settlement
from hopback.policy.outcome import (
    Done,
    Park,
    Retry,
    Rule,
    Snooze,
    outcome_of,
    reason_of,
)
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
    """A queue with a plan, and what concludes its deliveries while the plans are in force."""

    plan: Plan
    rules: tuple[Rule, ...]
    settling: Settling


class _Slip:
    """Takes down how a delivery is to be settled; its own library does it."""

    def __init__(self) -> None:
        self.how: Settlement | None = None

    def ack(self, tag: int) -> None:
        self.how = Settlement.ACK

    def nack(self, tag: int, *, requeue: bool) -> None:
        self.how = Settlement.RELEASE if requeue else Settlement.DEAD_LETTER


class ForeignDelivery:
    """A delivery in the hands of another library's consumer; the first answer to it counts.

    `ended` is set when the channel it came by has ended.
    """

    def __init__(
        self,
        planned: PlannedQueue,
        delivery: Received,
        version: BrokerVersion,
        ended: asyncio.Event,
    ) -> None:
        self._planned = planned
        self._slip = _Slip()
        # `Settling` settles and does nothing else with a channel.
        session = ConsumeSession(cast("Channel", self._slip), version, ended)
        self._held = HeldDelivery(delivery, session)
        self._began = time.monotonic()
        self.answered: bool = False
        """Whether its consumer has said what becomes of it."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """What the plan says of exceptions."""
        return self._planned.rules

    def copy_settlement(self) -> Settlement | None:
        """How to settle it at once, if it is a second copy of what has ended here; None if it is to run."""
        if not self._planned.settling.settle_copy(self._held):
            return None
        self.answered = True
        return self._slip.how

    async def conclude(self, answer: Answer) -> Settlement | None:
        """Move it on by its answer: how it has to be settled now, None if it stays unsettled."""
        if self.answered:
            raise RuntimeError("expected one answer to a delivery, got a second one")
        self.answered = True
        duration = time.monotonic() - self._began
        await self._planned.settling.conclude(self._held, answer, duration)
        return self._slip.how


def given_back(error: BaseException | None, rules: Iterable[Rule]) -> Answer:
    """The answer of a consumer that nacked or rejected with requeue: by the plan, never at once."""
    if error is not None:
        return answer_for(error, tuple(rules))
    return Answer(Retry("the consumer gave it back (requeue=True)"))


def rejected(error: BaseException | None) -> Answer:
    """The answer of a consumer that rejected for good: into the dead-letter queue, with the reason."""
    if error is None:
        return Answer(Park("the consumer rejected it (requeue=False)"))
    return Answer(Park(reason_of(error)), failure_from_exception(error), error=error)


def said(returned: object) -> Answer | None:
    """The answer of a consumer that returned an outcome of Hopback's; None for anything else."""
    if isinstance(returned, Done | Retry | Park | Snooze):
        return Answer(outcome_of(returned))
    return None
