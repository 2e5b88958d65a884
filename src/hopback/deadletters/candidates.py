"""Queues that may hold dead letters though nothing says so, and what people answered.

A queue that has messages and no consumer is a place where messages rest. Whether they are dead letters
only people know: they are asked once, and the answer is kept. Pure, but for `Recognition`, which keeps it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from hopback.deadletters.codec import encode, from_json
from hopback.deadletters.discovery import Override
from hopback.errors import BadRequest, NoSuch
from hopback.topology.effective import effective_topology
from hopback.topology.model import QueueType
from hopback.topology.roles import QueueRole, queue_roles

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hopback.broker.management.readings import QueueReading
    from hopback.clock import Clock
    from hopback.deadletters.journal import Journal
    from hopback.deadletters.live import BrokerSnapshot, LiveQueues

__all__ = [
    "CandidateAnswer",
    "CandidateList",
    "QueueAnswer",
    "QueueCandidate",
    "Recognition",
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


# --- recognition ----------------------------------------------------------------------------------
#
# What people said of queues, kept in the journal, and the queues they are still to be asked about.

_KIND = "queue-answer"
_FRESH_S = 5.0  # what another process was told is heard of within seconds


class Recognition:
    """Asks about queues, and remembers what was answered."""

    def __init__(self, journal: Journal, broker: str, clock: Clock) -> None:
        self._journal = journal
        self._broker = broker
        self._clock = clock
        self._answers: tuple[QueueAnswer, ...] = ()
        self._read_at = float("-inf")

    async def answers(self) -> tuple[QueueAnswer, ...]:
        """What people said, by queue."""
        now = self._clock.now()
        if now - self._read_at >= _FRESH_S:
            found = await self._journal.remembered(self._broker, _KIND)
            self._answers = tuple(from_json(QueueAnswer, found[queue]) for queue in sorted(found))
            self._read_at = now
        return self._answers

    async def overrides(self) -> tuple[Override, ...]:
        """The same as discovery takes it."""
        return tuple(map(override_of, await self.answers()))

    async def candidates(self, live: LiveQueues) -> CandidateList:
        """The queues that are to be asked about; BadRequest without a management API, which tells."""
        readings = await live.readings()
        if readings is None:
            raise BadRequest(
                "management", "an address of it: without one nobody tells which queues there are"
            )
        answers = await self.answers()
        found = candidates_of(await live.snapshot(), readings, answers)
        return CandidateList(found, len(found), sum(one.messages for one in found), answers)

    async def answer(self, said: QueueAnswer, live: LiveQueues) -> None:
        """Keep an answer; NoSuch for a queue that is not on the broker."""
        if said.answer is CandidateAnswer.FORGET:
            await self._journal.unlearn(self._broker, _KIND, said.queue)
        else:
            topology = (await live.snapshot()).topology
            for name in filter(None, (said.queue, said.main_queue)):
                if topology.queue(name) is None:
                    raise NoSuch("queue", name)
            text = encode(said).decode()
            await self._journal.remember(self._broker, _KIND, {said.queue: text}, self._clock.now())
        self._read_at = float("-inf")
