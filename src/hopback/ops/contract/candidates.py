"""Queues that may contain dead letters, and the operators' answers about them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct


class QueueCandidate(Struct, frozen=True, rename="camel"):
    """A queue with messages and without a consumer that is not known as a dead-letter queue.

    `is_likely` is True if its name suggests failures, for example `orders.errors`.
    """

    queue: str
    messages: int
    is_likely: bool = False


class CandidateList(Struct, frozen=True, rename="camel"):
    """The candidates, likely ones and those with most messages first, and the previous answers."""

    items: tuple[QueueCandidate, ...]
    total: int
    messages: int
    answers: tuple[QueueAnswer, ...] = ()


class CandidateAnswer(StrEnum):
    """An operator's answer about a queue."""

    ADD = "add"
    """The queue contains dead letters."""
    IGNORE = "ignore"
    """The queue does not contain dead letters. It is not listed and not proposed again."""
    FORGET = "forget"
    """Delete the answer. The queue is classified by the topology of the broker."""


class QueueAnswer(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """An answer about one queue. Its messages failed in `main_queue`, which is empty if unknown."""

    queue: Annotated[str, Meta(min_length=1, max_length=255)]
    answer: CandidateAnswer
    main_queue: Annotated[str, Meta(max_length=255)] = ""
    by: str = ""
    reason: Annotated[str, Meta(max_length=1000)] = ""
