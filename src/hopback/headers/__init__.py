"""Read and write `x-death` and Hopback's headers.

Reading never raises an exception. Invalid values are treated as missing. The added headers are
limited in size, so they always fit into a frame. `docs/reference/headers.md` describes the headers.
"""

from __future__ import annotations

from hopback.fields import canonical, canonical_text
from hopback.headers.failure import (
    FAILURE_BYTES,
    Failure,
    add_http_status,
    failure_from_exception,
    failure_from_reason,
    failure_from_status,
    failure_from_traceback,
    failure_in,
    failure_json,
    type_and_message,
)
from hopback.headers.history import (
    Death,
    History,
    broker_failures,
    counter_in,
    deaths,
    entry_route,
    last_death_queue,
    queue_of_count,
    read_history,
    read_deaths,
    well_formed_deaths,
)
from hopback.headers.identity import identity
from hopback.headers.rewrite import (
    ADDED_BYTES,
    FRAME_BYTES,
    Mark,
    bare_properties,
    can_park,
    can_retry,
    frame_size,
    properties_for_move,
    park_properties,
    redrive_properties,
    retry_properties,
    unread_headers,
    without_unread,
)
from hopback.text import clip, text_in, timestamp

__all__ = [
    "ADDED_BYTES",
    "FAILURE_BYTES",
    "FRAME_BYTES",
    "Death",
    "Failure",
    "History",
    "Mark",
    "add_http_status",
    "bare_properties",
    "broker_failures",
    "can_park",
    "can_retry",
    "canonical",
    "canonical_text",
    "clip",
    "counter_in",
    "deaths",
    "entry_route",
    "failure_from_exception",
    "failure_from_reason",
    "failure_from_status",
    "failure_from_traceback",
    "failure_in",
    "failure_json",
    "frame_size",
    "identity",
    "last_death_queue",
    "park_properties",
    "properties_for_move",
    "queue_of_count",
    "read_deaths",
    "read_history",
    "redrive_properties",
    "retry_properties",
    "text_in",
    "timestamp",
    "type_and_message",
    "unread_headers",
    "well_formed_deaths",
    "without_unread",
]
