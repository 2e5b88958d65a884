"""A delivery that is being handled, and the answer of its handler."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from hopback.policy.outcome import Done, Outcome
from hopback.policy.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractContextManager

    from hopback.broker.port import Channel
    from hopback.headers import Failure
    from hopback.message import Delivery
    from hopback.topology.plan import Plan
    from hopback.version import BrokerVersion


class Answer(NamedTuple):
    """The outcome of a run, with the exception or HTTP status behind it."""

    outcome: Outcome
    failure: Failure | None = None
    status: int | None = None
    error: BaseException | None = None


DONE = Answer(Done())
"""The answer of every handler that simply worked."""

Run: TypeAlias = "Callable[[Delivery], Awaitable[Answer]]"
"""Runs a handler on one delivery."""

_ReportAnswers: TypeAlias = "Callable[[Sequence[Answer]], None]"
BatchObserver: TypeAlias = (
    "Callable[[Sequence[Delivery], Plan], AbstractContextManager[_ReportAnswers]]"
)
"""Surrounds the handling of a batch. The yielded function is called with the answers."""


@dataclass(slots=True, eq=False)
class ConsumeSession:
    """One life of a consuming channel. Settlement belongs to it and never to a later one."""

    channel: Channel
    version: BrokerVersion
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class HeldDelivery:
    """A delivery and the session it came by.

    `answer` is set where it is known before any handler runs: the delivery has no lane.
    """

    __slots__ = ("_reading", "answer", "delivery", "session")

    def __init__(
        self, delivery: Delivery, session: ConsumeSession, answer: Answer | None = None
    ) -> None:
        self.delivery: Delivery = delivery
        self.session: ConsumeSession = session
        self.answer: Answer | None = answer
        self._reading: Reading | None = None

    def reading(self, plan: Plan) -> Reading:
        """The headers of the delivery, read for its queue's plan on first use."""
        if self._reading is None:
            self._reading = Reading(self.delivery, plan)
        return self._reading

    def with_answer(self, answer: Answer) -> HeldDelivery:
        """The same delivery, to be settled by this answer without a run."""
        made = HeldDelivery(self.delivery, self.session, answer)
        made._reading = self._reading
        return made
