"""Creates the messages of events. The fanout exchange of the bus copies each one to all services."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime

from hopback import Message, compose
from hopback.runtime import SystemClock


def event_message(
    prefix: str,
    event_type: str,
    payload: object,
    *,
    now: float | None = None,
    event_id: str | None = None,
    process_after_delay_ms: int | None = None,
) -> Message:
    """Return the message of an event. The bus of the exchange `wms.main-exchange` has the prefix
    `wms`.

    Services receive the event immediately. They answer 425 until `process_after_delay_ms` have
    passed.
    """
    event_id, now = event_id or str(uuid.uuid4()), now or SystemClock().now()
    event = {
        "id": event_id,
        "type": event_type,
        "occurredAt": datetime.fromtimestamp(now, UTC).isoformat(),
        "payload": payload,
    }
    if process_after_delay_ms is not None:
        event["processAfterDelayMs"] = process_after_delay_ms
    exchange = f"{prefix}.main-exchange"
    message = compose("", event, exchange=exchange, message_id=event_id, message_type=event_type)
    # The delay starts at the timestamp of the message.
    return replace(message, properties=replace(message.properties, timestamp=int(now)))
