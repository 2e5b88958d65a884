"""Composing a message to publish: payload, identity, and what it inherits from its cause."""

from __future__ import annotations

import asyncio
import uuid
from contextvars import ContextVar
from typing import TYPE_CHECKING

from hopback.message import Message, Properties
from hopback.runtime.context import Context, current_context
from hopback.runtime.payload import encode_payload

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator

    from hopback.fields import Headers

__all__ = ["TRACE_HEADERS", "Outlet", "compose", "trace_source"]

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
