"""Which messages at the head of a queue belong to a job's frozen selection, also after a crash.

Before messages are sent their marks are written down. A crash leaves at the head what was skipped,
then those of the marks that were not done, then the untouched rest; counting from there, the job
ends exactly where its selection ends, whatever arrived behind it.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING
from zlib import crc32

from hopback.deadletters.jobs import Checkpoint
from hopback.deadletters.letters import content_digest

if TYPE_CHECKING:
    from hopback.deadletters.jobs import Frozen
    from hopback.deadletters.taking import Source
    from hopback.message import Delivery

__all__ = ["Selecting", "mark_of"]

_MARKED_BYTES = 64 * 1024


def mark_of(delivery: Delivery) -> str:
    """A short checksum by which a message is known again; cheap, and the same after a redelivery."""
    body = delivery.body
    about = f"{len(body)} {delivery.properties.message_id} {delivery.routing_key}"
    return f"{crc32(body[:_MARKED_BYTES]):08x}{crc32(about.encode()):08x}"


class Selecting:
    """Takes the messages of a selection from a source, and knows how to go on after a crash."""

    def __init__(
        self, source: Source, selection: Frozen, checkpoint: Checkpoint, remembered: int
    ) -> None:
        self._source = source
        self._wanted = None if selection.digests is None else Counter(selection.digests)
        self._unfound = Counter(checkpoint.window)
        self._gone = 0
        self._strangers = checkpoint.kept
        self._budget = checkpoint.kept + checkpoint.rest
        self._taken = 0
        self._kept = 0
        self._open: dict[int, str] = {}
        self._acked: deque[str] = deque(maxlen=remembered)

    @property
    def missing(self) -> int:
        """How many marks, or digests, were not found: somebody has taken them, mostly we."""
        return self._gone + (self._unfound if self._wanted is None else self._wanted).total()

    def at_hand(self) -> Delivery | None:
        """The next message if it is here already."""
        delivery = self._source.at_hand()
        if delivery is not None:
            self._note(delivery)
        return delivery

    async def next(self) -> Delivery | None:
        """The next message of the first ones, or None when there are no more."""
        delivery = await self._source.next()
        if delivery is not None:
            self._note(delivery)
            return delivery
        return await self._probe()

    async def _probe(self) -> Delivery | None:
        """One more, if a message that was being sent may still stand there."""
        if self._wanted is not None or not self._unfound:
            return None
        self._source.more(1)
        delivery = await self._source.next()
        if delivery is None:
            return None
        mark = mark_of(delivery)
        if self._unfound[mark]:
            self._found(delivery, mark)
            return delivery
        self._source.keep(delivery.tag)
        self._give_up_finding()
        return None

    def _note(self, delivery: Delivery) -> None:
        if self._wanted is not None:
            return
        mark = mark_of(delivery)
        if self._unfound and self._unfound[mark]:
            self._found(delivery, mark)
            self._source.more(1)
            return
        if self._unfound:
            self._stranger(delivery)
        self._taken += 1
        self._open[delivery.tag] = mark

    def _stranger(self, delivery: Delivery) -> None:
        """Only what came back before stands among those that were being sent; then the rest begins.

        There a message may be the twin of one that is done: it must not be taken for it.
        """
        if self._strangers:
            self._strangers -= 1
        elif not delivery.redelivered:
            self._give_up_finding()

    def _give_up_finding(self) -> None:
        self._gone += self._unfound.total()
        self._unfound.clear()

    def _found(self, delivery: Delivery, mark: str) -> None:
        self._unfound[mark] -= 1
        self._unfound += Counter()
        self._open[delivery.tag] = mark

    def belongs(self, delivery: Delivery) -> bool:
        """Whether it is one of the selection; without digests every one of the first is."""
        if self._wanted is None:
            return True
        digest = content_digest(delivery)
        if not self._wanted[digest]:
            return False
        self._wanted[digest] -= 1
        return True

    def keep(self, tag: int) -> None:
        """This message stays in the queue."""
        self._source.keep(tag)
        self._kept += 1
        self._open.pop(tag, None)

    def ack(self, tag: int) -> None:
        """This message is done with for good."""
        self._source.ack(tag)
        mark = self._open.pop(tag, None)
        if mark is not None:
            self._acked.append(mark)

    def checkpoint(self) -> Checkpoint:
        """How to go on if the process dies from here on.

        The last acks may not have been read yet: their marks stay written down.
        """
        if self._wanted is not None:
            return Checkpoint()
        window = (*self._acked, *self._open.values(), *self._unfound.elements())
        waiting = self._strangers if self._unfound else 0
        rest = max(self._budget - self._taken - waiting, 0)
        return Checkpoint(self._kept + waiting, window, rest)
