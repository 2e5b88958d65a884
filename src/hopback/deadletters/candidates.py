"""Queues that may hold dead letters though nothing says so, and what people answered. Pure.

A queue that has messages and no consumer is a place where messages rest. Whether they are dead letters
only people know: they are asked once, and the answer is kept.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from hopback.deadletters.discovery import Override
from hopback.topology.effective import effective_topology
from hopback.topology.model import QueueType
from hopback.topology.roles import QueueRole, queue_roles

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hopback.broker.management.readings import QueueReading
    from hopback.deadletters.live import BrokerSnapshot

__all__ = [
    "CandidateAnswer",
    "CandidateList",
    "QueueAnswer",
    "QueueCandidate",
    "candidates_of",
    "override_of",
]

_SIGNS = ("dead", "dlq", "dlx", "err", "fail", "fault", "park", "poison", "reject", "skip")


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


def override_of(said: QueueAnswer) -> Override:
    """The answer as discovery takes it."""
    if said.answer is CandidateAnswer.IGNORE:
        return Override(said.queue, hidden=True)
    return Override(said.queue, main_queue=said.main_queue or None)


def candidates_of(
    snapshot: BrokerSnapshot,
    readings: Mapping[str, QueueReading],
    answers: Iterable[QueueAnswer],
) -> tuple[QueueCandidate, ...]:
    """The queues that are to be asked about, the likeliest and the fullest first."""
    known = {each.name for each in snapshot.dead_letter_queues} | {one.queue for one in answers}
    roles = queue_roles(effective_topology(snapshot.topology, snapshot.version))
    found = [
        QueueCandidate(name, counts.messages, any(sign in name.lower() for sign in _SIGNS))
        for name, reading in readings.items()
        if (counts := reading.counts).messages
        and not counts.consumers
        and name not in known
        and not name.startswith("amq.")
        and reading.queue.type is not QueueType.STREAM
        and roles.get(name) not in (QueueRole.RETRY, QueueRole.MAIN)
    ]
    return tuple(sorted(found, key=lambda one: (not one.is_likely, -one.messages, one.queue)))
