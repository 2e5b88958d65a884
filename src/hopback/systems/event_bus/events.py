"""Publish events from Python. The fanout of the bus distributes an event to every service."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime

from hopback import Message, Publisher, compose
from hopback.runtime import Clock, SystemClock


class EventBus:
    """Publishes events. `prefix` is the name of the bus: `wms` for `wms.main-exchange`."""

    def __init__(self, publisher: Publisher, prefix: str, clock: Clock | None = None) -> None:
        self._publisher = publisher
        self._prefix = prefix
        self._clock = clock or SystemClock()

    async def publish(
        self, event_type: str, payload: object, *, process_after_delay_ms: int | None = None
    ) -> str:
        """Publish an event, wait for the confirm and return its id.

        A service gets the event at once and answers 425 until `process_after_delay_ms` have passed.
        """
        event_id, message = event_message(
            self._prefix,
            event_type,
            payload,
            now=self._clock.now(),
            process_after_delay_ms=process_after_delay_ms,
        )
        await self._publisher.send(message)
        return event_id


def event_message(
    prefix: str,
    event_type: str,
    payload: object,
    *,
    now: float,
    event_id: str | None = None,
    process_after_delay_ms: int | None = None,
) -> tuple[str, Message]:
    """Return the id of an event and its message."""
    event_id = event_id or str(uuid.uuid4())
    event = {
        "id": event_id,
        "type": event_type,
        "occurredAt": datetime.fromtimestamp(now, UTC).isoformat(),
        "payload": payload,
    }
    if process_after_delay_ms is not None:
        event["processAfterDelayMs"] = process_after_delay_ms
    message = compose(
        "", event, exchange=f"{prefix}.main-exchange", message_id=event_id, message_type=event_type
    )
    # The delay is counted from the timestamp of the message.
    timed = replace(message.properties, timestamp=int(now))
    return event_id, replace(message, properties=timed)
