"""Queues that may contain dead letters, and what operators have answered about them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct


class QueueCandidate(Struct, frozen=True, rename="camel"):
    """A queue that has messages but no consumer, and is not known as a dead-letter queue.

    `is_likely` is True if its name suggests failures, for example `orders.errors`.
    """

    queue: str
    messages: int
    is_likely: bool = False


class CandidateList(Struct, frozen=True, rename="camel"):
    """The candidates and all earlier answers. Likely candidates come first, then those with the
    most messages.
    """

    items: tuple[QueueCandidate, ...]
    total: int
    messages: int
    answers: tuple[QueueAnswer, ...] = ()


class CandidateAnswer(StrEnum):
    """An operator's answer about a queue."""

    ADD = "add"
    """The queue contains dead letters."""
    IGNORE = "ignore"
    """The queue does not contain dead letters. It is neither listed nor proposed again."""
    FORGET = "forget"
    """Delete the answer, so that the queue is classified by the topology of the broker."""


class QueueAnswer(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """An answer about a queue. `main_queue` is the queue in which its messages failed, or empty if
    unknown.
    """

    queue: Annotated[str, Meta(min_length=1, max_length=255)]
    answer: CandidateAnswer
    main_queue: Annotated[str, Meta(max_length=255)] = ""
    by: str = ""
    reason: Annotated[str, Meta(max_length=1000)] = ""
