"""What people said of queues, kept in the journal, and the queues they are still to be asked about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.deadletters.candidates import (
    CandidateAnswer,
    CandidateList,
    QueueAnswer,
    candidates_of,
    override_of,
)
from hopback.deadletters.codec import encode, from_json
from hopback.errors import BadRequest, NoSuch

if TYPE_CHECKING:
    from hopback.clock import Clock
    from hopback.deadletters.discovery import Override
    from hopback.deadletters.journal import Journal
    from hopback.deadletters.live import LiveQueues

__all__ = ["Recognition"]

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
