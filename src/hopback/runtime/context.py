"""What a handler may know of the delivery it works on, and publish from it."""

from __future__ import annotations

import asyncio
import uuid
from contextvars import ContextVar
from typing import TYPE_CHECKING

from hopback.headers import identity
from hopback.message import Message, Properties
from hopback.policy.reading import Reading
from hopback.runtime.payload import encode_payload

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator

    from hopback.fields import Headers
    from hopback.message import Delivery
    from hopback.topology.plan import Plan

__all__ = ["TRACE_HEADERS", "Context", "Outlet", "compose", "current_context", "trace_source"]

current_context: ContextVar[Context] = ContextVar("hopback_current_context")
"""The context of the delivery that is being handled; what is published meanwhile belongs to it."""


class Context:
    """One delivery as its handler sees it. Read on demand: what nobody asks for costs nothing."""

    __slots__ = ("_publish", "_reading", "delivery", "plan")

    def __init__(
        self,
        delivery: Delivery,
        plan: Plan,
        publish: Callable[[Message], Awaitable[None]],
    ) -> None:
        self.delivery = delivery
        self.plan = plan
        self._publish = publish
        self._reading: Reading | None = None

    @property
    def attempt(self) -> int:
        """The number of this run, from 1."""
        return self._read().attempt

    @property
    def is_last_attempt(self) -> bool:
        """Whether a failure of this run parks the message."""
        return self.attempt >= self.plan.attempts

    @property
    def queue(self) -> str:
        """The queue the message came from."""
        return self.delivery.queue

    @property
    def headers(self) -> Headers:
        """The headers as they came."""
        return self.delivery.properties.headers

    @property
    def message_id(self) -> str:
        """The message id; a message without one has a stable hash of body and properties."""
        return self.delivery.properties.message_id or identity(self.delivery)

    @property
    def correlation_id(self) -> str:
        """The correlation id, or the message id where there is none."""
        return self.delivery.properties.correlation_id or self.message_id

    @property
    def routing_key(self) -> str:
        """The routing key the message was first published with, also on a retry."""
        return self._read().origin[1]

    def _read(self) -> Reading:
        if self._reading is None:
            self._reading = Reading(self.delivery, self.plan)
        return self._reading

    def publish(
        self,
        exchange: str,
        routing_key: str,
        payload: object,
        *,
        message_id: str | None = None,
        message_type: str | None = None,
        headers: Headers | None = None,
    ) -> Awaitable[None]:
        """Publish a message that this one caused: confirmed, with its correlation id and trace.

        To be awaited; a sync handler just calls it, and it returns when the broker has confirmed.
        """
        return self._publish(
            compose(
                exchange,
                routing_key,
                payload,
                message_id=message_id,
                message_type=message_type,
                headers=headers,
                cause=self,
            )
        )


TRACE_HEADERS = ("traceparent", "tracestate", "baggage")
"""W3C trace context: passed on from the message that is being handled."""

trace_source: ContextVar[Callable[[], Headers]] = ContextVar("hopback_trace_source")
"""Gives the trace headers of the present moment where runs are traced: the current span, not the
one that the message came with."""


def compose(
    exchange: str,
    routing_key: str,
    payload: object,
    *,
    message_id: str | None = None,
    message_type: str | None = None,
    correlation_id: str | None = None,
    headers: Headers | None = None,
    cause: Context | None = None,
) -> Message:
    """A persistent message with an id, and the correlation and trace of its cause.

    Without `cause` it is the delivery that is being handled right now, if there is one.
    """
    body, content_type = encode_payload(payload)
    cause = cause if cause is not None else current_context.get(None)
    own_id = message_id or str(uuid.uuid4())
    return Message(
        exchange,
        routing_key,
        body,
        Properties(
            content_type=content_type,
            headers={**_inherited(cause), **(headers or {})},
            delivery_mode=2,
            correlation_id=correlation_id or (cause.correlation_id if cause else own_id),
            message_id=own_id,
            type=message_type,
        ),
    )


def _inherited(cause: Context | None) -> Headers:
    """The trace: of the current span where runs are traced, else of the message that is the cause."""
    current = trace_source.get(None)
    if current is not None:
        return current()
    if cause is None:
        return {}
    return {name: cause.headers[name] for name in TRACE_HEADERS if name in cause.headers}


class Outlet:
    """The way to the broker for coroutines and for threads.

    On the loop `send` returns what has to be awaited. In a thread nothing can be awaited, and a
    publish that nobody awaits would be lost without a word: there `send` returns when it is done.
    """

    def __init__(self, publish: Callable[[Message], Coroutine[None, None, None]]) -> None:
        self._publish = publish
        self._loop = asyncio.get_running_loop()

    def send(self, message: Message) -> Awaitable[None]:
        """Publish and have it confirmed; raises what the publisher raises."""
        if _on_a_loop():
            return self._publish(message)
        asyncio.run_coroutine_threadsafe(self._publish(message), self._loop).result()
        return _Sent()


class _Sent:
    """Nothing is left to be awaited."""

    def __await__(self) -> Generator[None]:
        return
        yield


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
