"""Queues that may contain dead letters, and the operators' answers about them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct


class QueueCandidate(Struct, frozen=True, rename="camel"):
    """A queue with messages and no consumer that nothing says is a dead-letter queue.

    `is_likely`: its name speaks of failures.
    """

    queue: str
    messages: int
    is_likely: bool = False


class CandidateList(Struct, frozen=True, rename="camel"):
    """The queues that are asked about, the likeliest and the fullest first; what was answered before."""

    items: tuple[QueueCandidate, ...]
    total: int
    messages: int
    answers: tuple[QueueAnswer, ...] = ()


class CandidateAnswer(StrEnum):
    """What somebody says of a queue."""

    ADD = "add"
    """It holds dead letters."""
    IGNORE = "ignore"
    """It does not: ask no more, and do not list it."""
    FORGET = "forget"
    """Nobody said anything: what the broker shows holds."""


class QueueAnswer(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """An answer about one queue; `main_queue` is where its messages failed, empty if that is not known."""

    queue: Annotated[str, Meta(min_length=1, max_length=255)]
    answer: CandidateAnswer
    main_queue: Annotated[str, Meta(max_length=255)] = ""
    by: str = ""
    reason: Annotated[str, Meta(max_length=1000)] = ""
