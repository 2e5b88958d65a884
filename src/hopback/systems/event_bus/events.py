"""Publishing events from Python: an event goes once to the fanout of its bus, and to every service."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from hopback import SystemClock, compose

if TYPE_CHECKING:
    from hopback import Clock, Publisher

__all__ = ["EventBus"]


class EventBus:
    """Publishes events; `prefix` names the bus, as in `wms.main-exchange`."""

    def __init__(self, publisher: Publisher, prefix: str, clock: Clock | None = None) -> None:
        self._publisher = publisher
        self._exchange = f"{prefix}.main-exchange"
        self._clock = clock or SystemClock()

    async def publish(
        self, event_type: str, payload: object, *, process_after_delay_ms: int | None = None
    ) -> str:
        """Publish an event and have it confirmed; its id.

        A service gets it at once, and answers 425 as long as `process_after_delay_ms` is not over.
        """
        now, event_id = self._clock.now(), str(uuid.uuid4())
        event = {
            "id": event_id,
            "type": event_type,
            "occurredAt": datetime.fromtimestamp(now, UTC).isoformat(),
            "payload": payload,
        }
        if process_after_delay_ms is not None:
            event["processAfterDelayMs"] = process_after_delay_ms
        message = compose(self._exchange, "", event, message_id=event_id, message_type=event_type)
        # The delay counts from here: the bus itself reads it off the message's own time.
        timed = replace(message.properties, timestamp=int(now))
        await self._publisher.publish(replace(message, properties=timed))
        return event_id
