"""What a handler may know of the delivery it works on, and publish from it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from hopback.headers import identity
from hopback.policy.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hopback.fields import Headers
    from hopback.message import Delivery, Message
    from hopback.topology.plan import Plan

__all__ = ["Context", "current_context"]

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
        from hopback.runtime.outgoing import compose

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
