"""Deliveries that are being handled, and their results."""

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
    """The result of a run, with the exception or HTTP status that caused it.

    `ran` is False if the result was known before the handler was called. The circuit breaker
    ignores such results, because they do not show whether the handler works.
    """

    outcome: Outcome
    failure: Failure | None = None
    status: int | None = None
    error: BaseException | None = None
    ran: bool = True


DONE = Answer(Done())
"""The result of a successful run."""

Run: TypeAlias = "Callable[[Delivery], Awaitable[Answer]]"
"""A function that handles a delivery."""

_ReportAnswers: TypeAlias = "Callable[[Sequence[Answer]], None]"
BatchObserver: TypeAlias = (
    "Callable[[Sequence[Delivery], Plan], AbstractContextManager[_ReportAnswers]]"
)
"""A context manager for handling a batch. It yields a function that is called with the results."""


@dataclass(slots=True, eq=False)
class ConsumeSession:
    """A channel that consumes a queue.

    AMQP requires that a delivery is settled on the channel it was received on.
    """

    channel: Channel
    version: BrokerVersion
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class HeldDelivery:
    """A delivery and the session it belongs to.

    `answer` is set when the result is known before a handler runs.
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
        if self._reading is None:
            self._reading = Reading(self.delivery, plan)
        return self._reading

    def with_answer(self, answer: Answer) -> HeldDelivery:
        """Return a copy with a result. No handler is run for it."""
        made = HeldDelivery(self.delivery, self.session, answer)
        made._reading = self._reading
        return made
