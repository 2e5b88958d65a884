"""Names of the headers of Hopback and of the broker."""

from __future__ import annotations

ATTEMPTS = "hopback-attempts"
QUEUE = "hopback-queue"
SNOOZES = "hopback-snoozes"
FAILURE = "hopback-failure"
ORIGIN_EXCHANGE = "hopback-origin-exchange"
ORIGIN_ROUTING_KEY = "hopback-origin-routing-key"
ORIGIN_USER = "hopback-origin-user-id"
DEATHS = "hopback-deaths"
DELAY = "hopback-delay"
"""A message that waits to become due, in one table. It is not in OURS: a retry or re-drive in the
queue of due messages rewrites its marks and must keep this header.
"""
REDRIVES = "hopback-redrives"
REDRIVE_JOB = "hopback-redrive-job"
COPY_ID = "hopback-lineage"
UNREAD = "hopback-unread-headers"
UNREAD_BYTES = "hopback-unread-bytes"

OURS = frozenset(
    {
        ATTEMPTS,
        QUEUE,
        SNOOZES,
        FAILURE,
        ORIGIN_EXCHANGE,
        ORIGIN_ROUTING_KEY,
        ORIGIN_USER,
        DEATHS,
        REDRIVES,
        REDRIVE_JOB,
        COPY_ID,
        UNREAD,
        UNREAD_BYTES,
    }
)
"""All headers of Hopback. Another `hopback-…` header comes from a newer version and is kept
unchanged.
"""

X_DEATH = "x-death"


def is_death(name: str) -> bool:
    """Whether the broker writes this header when it dead-letters a message."""
    return name == X_DEATH or name.startswith(("x-first-death-", "x-last-death-"))


def is_broker_count(name: str) -> bool:
    """Whether a quorum queue counts deliveries in this header. The count is wrong after a publish."""
    return name in {"x-delivery-count", "x-acquired-count"}


def is_routing(name: str) -> bool:
    """Whether this header makes the broker route a publish to further queues."""
    return name in {"CC", "BCC"}


def is_protected(name: str) -> bool:
    """Whether no design may write this header as its own."""
    return (
        name in OURS or name == DELAY or is_death(name) or is_broker_count(name) or is_routing(name)
    )


def may_stand_twice(name: bytes) -> bool:
    """Whether a duplicate header of this name may be kept, because neither Hopback nor the broker
    reads it.
    """
    text = name.decode("utf-8", "replace")
    return not (is_protected(text) or text.startswith("hopback-"))
