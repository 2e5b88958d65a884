"""Failure plans for aio-pika consumers.

Existing callbacks don't need to be changed:

```python
plans = AioPikaPlans(connection)
plans.queue("orders", retry=["10s", "1m"])
async with plans:
    await plans.consume(queue, on_message)
```

The callback settles messages with `ack`, `nack`, `reject` or `process` as usual. Messages are
retried if the callback raises an exception in `process`, or if it calls `nack` or `reject` with
requeue. They are dead-lettered after a `reject` without requeue. Messages that are not settled by
the callback stay unsettled.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from datetime import datetime
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Self, Unpack, cast
from weakref import WeakKeyDictionary

from hopback.errors import UnsafeOperation
from hopback.extras import needs
from hopback.fields import LongStr
from hopback.integrations.address import broker_url
from hopback.integrations.foreign_delivery import (
    ForeignDelivery,
    answer_of_outcome,
    answer_to_reject,
    answer_to_requeue,
)
from hopback.integrations.header_values import header_values
from hopback.integrations.planned import PlannedQueues, PlanOptions
from hopback.message import Properties, Received
from hopback.policy.decision import Settlement
from hopback.policy.outcome import FAILURES, OUTCOMES, Rule
from hopback.runtime.answer import DONE, Answer
from hopback.runtime.worker import answer_for

with needs("aio-pika", "hopback.integrations.aio_pika"):
    from aio_pika.exceptions import MessageProcessError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from aio_pika import Connection
    from aio_pika.abc import AbstractConnection, AbstractIncomingMessage, AbstractQueue

__all__ = [
    "AioPikaPlans",
    "ChannelEndings",
    "PlannedMessage",
    "connection_url",
    "convert_delivery",
    "settle",
]

_LOG = logging.getLogger("hopback.integrations")

_TLS_OPTIONS = {"cafile": "cacertfile", "certfile": "certfile", "keyfile": "keyfile"}
"""The URL options of aio-pika and the corresponding options of Hopback."""


class ChannelEndings:
    """Provides an event for each aio-pika channel, which is set when the channel is closed."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Any, asyncio.Event] = WeakKeyDictionary()

    def of(self, message: AbstractIncomingMessage) -> asyncio.Event:
        """Return the event for the channel of a message."""
        channel = message.channel
        known = self._known.get(channel)
        if known is not None:
            return known
        ended = self._known[channel] = asyncio.Event()
        channel.closing.add_done_callback(lambda _closed: ended.set())
        return ended


class AioPikaPlans(PlannedQueues):
    """Failure plans for queues consumed with aio-pika.

    Use this as an async context manager. Messages are published on a separate connection with the
    same settings as `connection`.
    """

    def __init__(self, connection: AbstractConnection, **options: Unpack[PlanOptions]) -> None:
        super().__init__(**options)
        self._connection = connection
        self._endings = ChannelEndings()

    async def start(self) -> None:
        """Connect and declare the queues of the plans."""
        await self.begin(self._publish_to or connection_url(self._connection))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def consume(
        self,
        queue: AbstractQueue,
        callback: Callable[[Any], Awaitable[object] | object],
        no_ack: bool = False,
        **options: Any,
    ) -> str:
        """Start consuming a queue with a failure plan, and return the consumer tag."""
        if no_ack:
            raise UnsafeOperation(
                f"queue {queue.name!r} cannot be consumed with no_ack=True. The broker deletes a message "
                "when it sends it, so a failed message could not be retried or parked. Remove no_ack."
            )
        return await queue.consume(self.callback(queue.name, callback), **options)

    def callback(
        self, queue: str, callback: Callable[[Any], Awaitable[object] | object]
    ) -> Callable[[AbstractIncomingMessage], Awaitable[None]]:
        """Wrap a callback so that it can be passed to `queue.consume`."""

        async def planned(message: AbstractIncomingMessage) -> None:
            wrapped = await self.message(queue, message)
            if wrapped is None:
                return
            try:
                returned = callback(wrapped)
                if isawaitable(returned):
                    returned = await returned
                answer = answer_of_outcome(returned)
            except FAILURES as error:
                # If the callback settled the message before it raised the exception, keep that
                # settlement.
                answer = answer_for(error, wrapped.rules)
                if wrapped.processed and wrapped.error is not error:
                    _LOG.warning("a callback failed after it had settled its message: %r", error)
            if answer is not None and not wrapped.processed:
                await wrapped.conclude(answer)

        return planned

    async def message(self, queue: str, message: AbstractIncomingMessage) -> PlannedMessage | None:
        """Wrap a message returned by `queue.get` or a queue iterator.

        Returns None if the message is a duplicate of one that was already handled. It has been
        settled in this case.
        """
        if message.processed:
            raise UnsafeOperation(
                f"a message of queue {queue!r} was received with no_ack=True or is already settled. "
                "It cannot be retried or parked."
            )
        taken = self.take(convert_delivery(queue, message), self._endings.of(message))
        if taken is None:
            raise UnsafeOperation(
                f"queue {queue!r} has no plan: expected one of {', '.join(self.queue_names)}"
            )
        copy = taken.copy_settlement()
        if copy is not None:
            await settle(message, copy)
            return None
        return PlannedMessage(self, taken, message)


class PlannedMessage:
    """A wrapper for an incoming message. It is settled according to the plan of its queue."""

    def __init__(
        self, plans: AioPikaPlans, taken: ForeignDelivery, message: AbstractIncomingMessage
    ) -> None:
        self._plans = plans
        self._taken = taken
        self._message = message
        self.rules: tuple[Rule, ...] = taken.rules
        self.error: BaseException | None = None
        """The exception that caused the message to be retried or dead-lettered."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)

    @property
    def processed(self) -> bool:
        """True if the message has been settled."""
        return self._taken.answered

    async def ack(self, multiple: bool = False) -> None:
        """Acknowledge the message."""
        self._refuse_multiple(multiple)
        await self.conclude(DONE)

    async def nack(self, multiple: bool = False, requeue: bool = True) -> None:
        """Retry the message, or dead-letter it if `requeue` is False."""
        self._refuse_multiple(multiple)
        await self.reject(requeue=requeue)

    async def reject(self, requeue: bool = False) -> None:
        """Dead-letter the message, or retry it if `requeue` is True.

        The exception currently being handled is recorded as the reason.
        """
        error = sys.exception()
        await self.conclude(
            answer_to_requeue(error, self.rules) if requeue else answer_to_reject(error)
        )

    def process(
        self,
        requeue: bool = False,
        reject_on_redelivered: bool = False,
        ignore_processed: bool = False,
    ) -> AbstractAsyncContextManager[PlannedMessage]:
        """Return a context manager that acknowledges the message at the end of the block.

        If the block raises an exception, the failure plan is applied. `requeue` and
        `reject_on_redelivered` are ignored.
        """
        return _Processing(self, ignore_processed)

    async def conclude(self, answer: Answer) -> None:
        """Apply the plan and settle the message."""
        if self.processed:
            raise MessageProcessError("Message already processed", self._message)
        self.error = answer.error
        how = await self._plans.conclude(self._taken, answer)
        if how is not None:
            await settle(self._message, how)

    def _refuse_multiple(self, multiple: bool) -> None:
        if multiple:
            raise UnsafeOperation(
                "multiple=True would settle messages without their plans. Settle each one instead."
            )


class _Processing:
    """The context manager that `PlannedMessage.process` returns."""

    def __init__(self, message: PlannedMessage, ignore_processed: bool) -> None:
        self._message = message
        self._ignores_processed = ignore_processed

    async def __aenter__(self) -> PlannedMessage:
        return self._message

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        message = self._message
        if message.processed and self._ignores_processed:
            return False
        if error is None:
            await message.ack()
        # if the task was cancelled, the broker redelivers the message
        elif isinstance(error, FAILURES):
            await message.conclude(answer_for(error, message.rules))
        return isinstance(error, OUTCOMES)  # outcomes have been handled and must not propagate


def convert_delivery(queue: str, message: AbstractIncomingMessage) -> Received:
    """Convert an aio-pika message to a delivery."""
    moment = message.timestamp
    if isinstance(moment, datetime):
        moment = moment.timestamp()  # type: ignore[assignment]
    expiration: Any = message.expiration  # aio-pika uses seconds, AMQP uses milliseconds
    properties = Properties(
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        headers=header_values(message.headers, text_type=LongStr),
        delivery_mode=int(message.delivery_mode),
        priority=message.priority or None,
        correlation_id=message.correlation_id,
        reply_to=message.reply_to,
        expiration=None if expiration is None else str(round(float(expiration) * 1000)),
        message_id=message.message_id,
        timestamp=None if moment is None else int(moment),  # type: ignore[call-overload]
        type=message.type,
        user_id=message.user_id,
        app_id=message.app_id,
        cluster_id=message.cluster_id,
    )
    return Received(
        queue,
        message.exchange or "",
        message.routing_key or "",
        message.body,
        properties,
        bool(message.redelivered),
        message.delivery_tag or 0,
    )


async def settle(message: AbstractIncomingMessage, how: Settlement) -> None:
    """Settle a message on its channel.

    If the channel is closed, the broker redelivers the message.
    """
    try:
        if how is Settlement.ACK:
            await message.ack()
        else:
            await message.nack(requeue=how is Settlement.RELEASE)
    except Exception as error:
        _LOG.warning(
            "a message could not be settled, so the broker will redeliver it: %s: %s",
            type(error).__name__,
            error,
        )


def connection_url(connection: AbstractConnection) -> str:
    """Return the URL of an aio-pika connection. Unsupported options are omitted."""
    url = cast("Connection", connection).url
    known = dict(url.query)
    options: dict[str, object] = {
        ours: known[theirs] for theirs, ours in _TLS_OPTIONS.items() if theirs in known
    }
    context = getattr(connection, "kwargs", {}).get("context")
    if context is not None or "capath" in known or "cadata" in known:
        raise UnsafeOperation(
            'the settings of a TLS context cannot be read. Pass `publish_to="amqps://…?cacertfile=…"` '
            "with the same address and the files from which the context was created."
        )
    if known.get("no_verify_ssl", "0") != "0":
        options["verify"] = "verify_none"
    if known.get("heartbeat", "").isdecimal():
        options["heartbeat"] = known["heartbeat"]
    if known.get("auth", "plain").lower() == "external":
        options["auth_mechanism"] = "external"
    tls = url.scheme == "amqps"
    path = url.path.removeprefix("/").replace("%2F", "/")
    return broker_url(
        url.host or "localhost",
        url.port or (5671 if tls else 5672),
        user=url.user,
        password=url.password,
        virtual_host=path or "/",
        tls=tls,
        options=options,
    )
