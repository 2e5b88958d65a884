"""Ask operators which queues contain dead letters, and store their answers in the journal.

If a queue has messages but no consumer, it may contain dead letters, even if the topology does not
show this. Only an operator knows. The question is asked once for each queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.errors import BadRequest, NoSuch
from hopback.ops.brokers.discovery import Override
from hopback.ops.contract.candidates import (
    CandidateAnswer,
    CandidateList,
    QueueAnswer,
    QueueCandidate,
)
from hopback.topology.effective import effective_topology
from hopback.topology.model import QueueType
from hopback.topology.roles import QueueRole, names_failure, queue_roles

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hopback.broker.management.readings import QueueReading
    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.brokers.snapshot import BrokerSnapshot
    from hopback.ops.documents import Documents


def override_of(answer: QueueAnswer) -> Override:
    if answer.answer is CandidateAnswer.IGNORE:
        return Override(answer.queue, hidden=True)
    return Override(answer.queue, main_queue=answer.main_queue or None)


def candidates_of(
    snapshot: BrokerSnapshot,
    readings: Mapping[str, QueueReading],
    answers: Iterable[QueueAnswer],
) -> tuple[QueueCandidate, ...]:
    """Return the queues that operators have not been asked about. Likely queues come first, then
    those with the most messages.
    """
    known = {each.name for each in snapshot.dead_letter_queues} | {one.queue for one in answers}
    roles = queue_roles(effective_topology(snapshot.topology, snapshot.version))
    # A queue whose messages are dead-lettered normally has a consumer, which is only offline now.
    origins = {name for each in snapshot.dead_letter_queues for name in each.origins}
    found = [
        QueueCandidate(name, counts.messages, is_likely)
        for name, reading in readings.items()
        if (counts := reading.counts).messages
        and not counts.consumers
        and name not in known
        and ((is_likely := names_failure(name)) or name not in origins)
        and not name.startswith("amq.")
        and reading.queue.type is not QueueType.STREAM
        and roles.get(name) not in (QueueRole.RETRY, QueueRole.MAIN)
    ]
    return tuple(sorted(found, key=lambda one: (not one.is_likely, -one.messages, one.queue)))


_KIND = "queue-answer"
# seconds until answers are read again, because other processes may have stored new ones
_FRESH_S = 5.0


class Recognition:
    """Store and read the operators' answers about candidates."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._answers: tuple[QueueAnswer, ...] = ()
        self._read_at = float("-inf")

    async def answers(self) -> tuple[QueueAnswer, ...]:
        """Return all answers, sorted by queue."""
        now = self._documents.clock.now()
        if now - self._read_at >= _FRESH_S:
            found = await self._documents.read(_KIND, QueueAnswer)
            self._answers = tuple(found[queue] for queue in sorted(found))
            self._read_at = now
        return self._answers

    async def overrides(self) -> tuple[Override, ...]:
        return tuple(map(override_of, await self.answers()))

    async def candidates(self, broker: ManagedBroker) -> CandidateList:
        """Return the candidates without an answer. Raises BadRequest if there is no management API."""
        snapshot = await broker.snapshot()
        if snapshot.readings is None:
            raise BadRequest("management", "the address of the management API, which lists queues")
        answers = await self.answers()
        found = candidates_of(snapshot, snapshot.readings, answers)
        return CandidateList(found, len(found), sum(one.messages for one in found), answers)

    async def answer(self, answer: QueueAnswer, broker: ManagedBroker) -> None:
        """Store an answer. Raises NoSuch if one of its queues is not on the broker."""
        queue = answer.queue
        if answer.answer is CandidateAnswer.FORGET:
            await self._documents.delete(_KIND, queue)
        else:
            topology = (await broker.snapshot()).topology
            for name in filter(None, (queue, answer.main_queue)):
                if topology.queue(name) is None:
                    raise NoSuch("queue", name)
            await self._documents.write(_KIND, {queue: answer})
        self._read_at = float("-inf")
