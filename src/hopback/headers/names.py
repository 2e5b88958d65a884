"""Names of headers."""

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
"""Stores the original properties of a delayed message. It is not part of OURS, because it has to be
kept when a due message is retried or re-driven.
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
"""All headers of Hopback. Unknown `hopback-…` headers come from a newer version and are kept."""

X_DEATH = "x-death"


def is_death(name: str) -> bool:
    """Return True if the header is added by the broker when a message is dead-lettered."""
    return name == X_DEATH or name.startswith(("x-first-death-", "x-last-death-"))


def is_broker_count(name: str) -> bool:
    """Return True if the header contains a delivery count.

    It is wrong after the message is published again.
    """
    return name in {"x-delivery-count", "x-acquired-count"}


def is_routing(name: str) -> bool:
    """Return True if the header affects routing."""
    return name in {"CC", "BCC"}


def is_protected(name: str) -> bool:
    """Return True if designs are not allowed to write this header."""
    return (
        name in OURS or name == DELAY or is_death(name) or is_broker_count(name) or is_routing(name)
    )


def may_repeat(name: bytes) -> bool:
    """Return True if a duplicate header can be kept, because Hopback and the broker do not read it."""
    text = name.decode("utf-8", "replace")
    return not (is_protected(text) or text.startswith("hopback-"))
