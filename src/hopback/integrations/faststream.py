"""Failure plans for FastStream subscribers.

Existing subscribers don't need to be changed:

```python
broker = RabbitBroker(url)
plans = FastStreamPlans(broker)
plans.queue("orders", retry=["10s", "1m"])
app = FastStream(broker, on_startup=[plans.start], after_shutdown=[plans.close])
```

A middleware settles each message after it has been processed, including replies and publishers.
FastStream itself does not settle these messages.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self, Unpack

from hopback.errors import UnsafeOperation
from hopback.extras import needs
from hopback.integrations.foreign_delivery import (
    ForeignDelivery,
    answer_to_reject,
    answer_to_requeue,
)
from hopback.integrations.planned import PlannedQueues, PlanOptions
from hopback.policy.outcome import OUTCOMES, Done, Park, Retry, Rule, Snooze, Verdict, reason_of
from hopback.runtime.answer import DONE, Answer
from hopback.runtime.worker import answer_for

with needs("faststream", "hopback.integrations.faststream"):
    from aio_pika import IncomingMessage
    from fast_depends.exceptions import ValidationError
    from faststream import AckPolicy, BaseMiddleware
    from faststream.exceptions import AckMessage, NackMessage, RejectMessage
    from faststream.message import AckStatus

    from hopback.integrations.aio_pika import (
        ChannelEndings,
        connection_url,
        convert_delivery,
        settle,
    )

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from faststream.rabbit import RabbitBroker


__all__ = ["FastStreamPlans"]

_REFUSED = {
    AckPolicy.ACK_FIRST: "acks a message before its subscriber runs",
    AckPolicy.ACK: "acks a message though its subscriber has failed",
}
"""The ack policies that are not supported, and the reasons."""

_HOPELESS = Rule(ValidationError, Verdict.PARK)
"""The default rule for invalid payloads. They are dead-lettered because a retry would fail as well.
"""


class FastStreamPlans(PlannedQueues):
    """Failure plans for queues consumed with FastStream.

    Pass `start` and `close` as hooks of the FastStream app. Messages are published on a separate
    connection with the same settings as `broker`.
    """

    _reports_failures = False  # FastStream logs exceptions itself

    def __init__(self, broker: RabbitBroker, **options: Unpack[PlanOptions]) -> None:
        super().__init__(**options)
        self._framework = broker
        self.endings: ChannelEndings = ChannelEndings()
        broker.insert_middleware(self)

    async def start(self) -> None:
        """Check the ack policies, connect and declare the queues of the plans."""
        for subscriber in self._framework.subscribers:
            queue, policy = _queue_of(subscriber), subscriber.ack_policy
            if queue in self.queue_names and policy in _REFUSED:
                raise UnsafeOperation(
                    f"the subscriber of queue {queue!r} has ack_policy {policy.name}, which "
                    f"{_REFUSED[policy]}. Failed messages could not be retried. Remove ack_policy."
                )
        connection = None if self._publish_to else await self._framework.connect()
        await self.begin(self._publish_to or connection_url(connection))  # type: ignore[arg-type]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __call__(self, msg: Any, /, *, context: Any) -> BaseMiddleware[Any, Any]:
        """Create the middleware for a message. Called by FastStream."""
        return _PlanMiddleware(msg, context=context, plans=self)


class _PlanMiddleware(BaseMiddleware[Any, Any]):
    """A middleware that settles a message according to the plan of its queue."""

    def __init__(self, msg: Any, /, *, context: Any, plans: FastStreamPlans) -> None:
        super().__init__(msg, context=context)
        self._plans = plans
        self._taken: ForeignDelivery | None = None
        self._stream_message: Any = None
        self._subscriber: Any = None

    async def on_receive(self) -> None:
        """Take over the settlement of the message."""
        subscriber = self.context.get_local("handler_")
        # Skip messages of the FastStream test broker.
        if type(self.msg) is not IncomingMessage or subscriber is None:
            return
        queue = _queue_of(subscriber)
        if queue not in self._plans.queue_names:
            return
        self._subscriber = subscriber
        # Lock the message so that FastStream does not settle it.
        self.msg.lock()
        self._taken = self._plans.take(
            convert_delivery(queue, self.msg), self._plans.endings.of(self.msg)
        )

    async def consume_scope(self, call_next: Callable[[Any], Awaitable[Any]], msg: Any) -> Any:
        """Call the subscriber, unless the message is a duplicate of one that was already handled."""
        self._stream_message = msg
        if self._taken is not None:
            copy = self._taken.copy_settlement()
            if copy is not None:
                await settle(self.msg, copy)
                return None
            # Decode early. FastStream caches the result.
            try:
                await msg.decode()
            except Exception:
                self._stream_message = None  # handle as a parse error
                raise
        return await call_next(msg)

    async def after_processed(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> bool | None:
        """Settle the message after it has been processed."""
        if self._taken is None or self._taken.answered:
            return False
        if isinstance(exc_val, asyncio.CancelledError):
            return False  # on shutdown, the broker redelivers the message
        how = await self._plans.conclude(self._taken, self._answer(exc_val))
        if how is not None:
            await settle(self.msg, how)
        # Let FastStream log errors, but don't propagate outcomes.
        return isinstance(exc_val, OUTCOMES)

    def _answer(self, error: BaseException | None) -> Answer:
        unfit = Rule(ValueError, Verdict.PARK, when=self._is_of_payload)
        rules = (*(self._taken.rules if self._taken else ()), _HOPELESS, unfit)
        match error:
            case Done() | Retry() | Park() | Snooze():
                return answer_for(error)
            case AckMessage():
                return DONE
            case NackMessage():
                return answer_to_requeue(error.__context__, rules)
            case RejectMessage():
                return answer_to_reject(error.__context__)
            case None:
                # The subscriber has settled the message or returned.
                match getattr(self._stream_message, "committed", None):
                    case AckStatus.NACKED:
                        return answer_to_requeue(None, ())
                    case AckStatus.REJECTED:
                        return answer_to_reject(None)
                    case None if self._subscriber.ack_policy is AckPolicy.MANUAL:
                        return Answer(
                            Retry("the subscriber returned without settling (AckPolicy.MANUAL)")
                        )
                return DONE
        if self._stream_message is None:
            # The subscriber was not called, because parsing or decoding failed or no filter
            # matched.
            made = answer_for(error)
            return made._replace(outcome=Park(reason_of(error)))
        return answer_for(error, rules)

    def _is_of_payload(self, error: BaseException) -> bool:
        """Return True if pydantic rejected an argument of the subscriber.

        The title of the error is the name of the subscriber in this case. Validation errors raised
        inside the subscriber have a different title and may be worth retrying.
        """
        title = getattr(error, "title", None)
        return title is not None and title in {call.name for call in self._subscriber.calls}


def _queue_of(subscriber: Any) -> str:
    """Return the name of the queue, including the prefixes of routers."""
    prefix = subscriber.routing().removesuffix(subscriber.queue.routing())
    return f"{prefix}{subscriber.queue.name}"
