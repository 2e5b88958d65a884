"""Which messages at the head of a queue belong to a job's frozen selection, also after a crash.

Before messages are sent, the marks of all that are in our hands are written down. A crash leaves in
the queue what was skipped, those of the marks that were not done, and the untouched rest.

A classic queue puts back what was held to where it was: `resume_point` says how many stand before the
rest, and the job goes on by that number.

A quorum queue has an ack on its disk before it hands out another message for it: what it forgets is among
the marks. It hands out what came back before what was never handed out, in the order in which it came
back: if messages behind the selection had come back once, ours stand behind them after a crash. So the
untouched rest is taken by counting only while it is sure that nothing behind the selection had been handed
out: the queue has handed out a message for the first time, so nothing else had come back. Marks are looked
for among everything that came back.

Twins have the same mark. What was handed over after the marks were written down could be taken for its
twin that is done: where there are twins, nothing is handed over while others are being sent.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING
from zlib import crc32

from hopback.deadletters.journal import Checkpoint
from hopback.deadletters.message import content_digest
from hopback.headers.raw import message_id_in
from hopback.renamed import OldNameLookup, old_names

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from hopback.deadletters.head import Source
    from hopback.deadletters.journal import SelectionSnapshot
    from hopback.message import Delivery

__all__ = [
    "SelectedMessage",
    "SelectedMessages",
    "mark_of",
]

_MARKED_BYTES = (
    64 * 1024
)  # of a body: its length is in the mark, too, and marks are made by thousands
_SOUGHT = 10_000
"""So many messages behind the selection are looked at for marks: each costs them a delivery count."""


def mark_of(delivery: Delivery) -> str:
    """A short checksum by which a message is known again; cheap, and the same after a redelivery."""
    body = delivery.body
    raw: bytes | None = getattr(delivery, "raw_properties", None)
    message_id = delivery.properties.message_id if raw is None else message_id_in(raw)
    about = f"{len(body)} {message_id} {delivery.routing_key}".encode("utf-8", "surrogateescape")
    return f"{crc32(body[:_MARKED_BYTES]):08x}{crc32(about):08x}"


class SelectedMessage:
    """A message on its way, and its place in the queue. Called with its fate.

    What was sent for it is not kept: thousands may be in flight, and few are ever sent again.
    """

    __slots__ = ("delivery", "landed", "place", "size")

    def __init__(
        self,
        delivery: Delivery,
        place: int,
        size: int,
        landed: Callable[[SelectedMessage, asyncio.Future[None]], None],
    ) -> None:
        self.delivery = delivery
        self.place = place
        self.size = size
        self.landed = landed

    def __call__(self, fate: asyncio.Future[None]) -> None:
        self.landed(self, fate)


class SelectedMessages:
    """Takes the messages of a selection from a source, and knows how to go on after a crash.

    `returned_first` says that the queue hands out what came back before all else, and marks it. Of any other
    `head` says how many messages stand before the rest, and None that nobody can tell.
    """

    def __init__(
        self,
        source: Source,
        selection: SelectionSnapshot,
        checkpoint: Checkpoint,
        remembered: int,
        *,
        returned_first: bool,
        head: int | None = 0,
    ) -> None:
        self._source = source
        self._returned_first = returned_first
        self._head = head
        self._began_at = checkpoint
        self._wanted = None if selection.digests is None else Counter(selection.digests)
        self._unfound = Counter(checkpoint.window if returned_first else ())
        self._gone = 0
        self._strangers = checkpoint.kept
        self._last = checkpoint.last
        self._last_tag = 0
        self._last_is_done = False
        self._budget = (checkpoint.kept if returned_first else head or 0) + checkpoint.rest
        self._end_is_sure = checkpoint.end_is_sure
        self._saw_fresh = checkpoint.saw_fresh
        self._taken = 0
        self._kept = 0
        self._noted: deque[Delivery] = deque()
        self._open: dict[int, str] = {}
        self._acked: deque[tuple[int, str]] = deque(maxlen=remembered)
        self._beyond: set[int] = set()
        self._sought = 0
        self._seen = 0
        self._seen_before = -1
        self.has_twins: bool = checkpoint.has_twins
        """Whether messages with the same mark were ever in our hands at the same time."""
        self.is_taking = True
        """Whether the queue may hand over more at any time; said by the caller that pauses the source."""
        self.sends_last = False
        """Whether the last message that is in our hands is being sent; said by the caller that sends it."""
        self._is_through = False
        self._went_beyond = False
        self._is_over = False

    @property
    def missing(self) -> int:
        """How many marks, or digests, were not found: somebody has taken them, mostly we."""
        return self._gone + (self._unfound if self._wanted is None else self._wanted).total()

    @property
    def unsought(self) -> int:
        """How many of the missing may still be in the queue, too far behind to look for them."""
        return 0 if self._is_over or self._sought < _SOUGHT else self.missing - self._gone

    @property
    def can_go_on(self) -> bool:
        """Whether what is not known by its mark can still be told from what was never selected."""
        if self._wanted is not None or not self._returned_first:
            return self._wanted is not None or self._head is not None
        by_marks = not self._budget and not (self.has_twins and self._unfound)
        return self._end_is_sure or by_marks

    def at_hand(self) -> Delivery | None:
        """The next message if it is here already."""
        if self._noted:
            return self._noted.popleft()
        delivery = self._source.at_hand()
        if delivery is not None:
            self._note(delivery)
        return delivery

    async def next(self) -> Delivery | None:
        """The next message of the first ones, or None when there are no more."""
        if self._noted:
            return self._noted.popleft()
        delivery = await self._source.next()
        if delivery is not None:
            self._note(delivery)
        else:
            self._budget, self._strangers, self._is_through = self._taken, 0, True
        return delivery

    def seek(self) -> bool:
        """When there are no more: whether to take some from behind, as ours may stand among them.

        From then on the others may come first after a crash: that has to be written down before.
        """
        lacking = (self._unfound if self._wanted is None else self._wanted).total()
        if not lacking or self._is_over or not self._returned_first:
            return False
        if self._seen == self._seen_before:
            self._is_over = True  # the queue has no more
            return False
        if self._sought >= _SOUGHT:
            return False
        self._seen_before = self._seen
        # One is enough to see that nothing else has come back, as it mostly is.
        step = min(max(self._sought, 1), _SOUGHT - self._sought)
        self._sought += step
        self._went_beyond = True
        self._source.more(step)
        return True

    async def hold_rest(self) -> None:
        """Hold what came back before and is selected, so that all of it comes back in order."""
        while self._returned_first and not self._source.fresh and len(self._open) < _SOUGHT:
            delivery = await self._source.next()
            if delivery is None:
                return
            self._note(delivery)
            self._source.keep(delivery.tag)

    def _note(self, delivery: Delivery) -> None:
        self._seen += 1
        is_new = self._returned_first and not delivery.redelivered
        if self._sought:
            self._note_behind(delivery, is_new=is_new)
            return
        if self._wanted is not None:
            return
        mark = mark_of(delivery)
        if self._unfound and is_new:
            # What we held has come back, and all that came back was before this one.
            self._gone += self._unfound.total()
            self._unfound.clear()
        if self._unfound:
            if self._unfound[mark]:
                self._take_found(delivery, mark)
                self._source.more(1)
                return
            # Only what was skipped stands among those that were being sent; then the rest begins.
            if self._strangers:
                self._strangers -= 1
        if self._taken >= self._budget:
            self._beyond.add(delivery.tag)
            return
        self._taken += 1
        self._open[delivery.tag] = mark
        self._last, self._last_tag, self._last_is_done = mark, delivery.tag, False

    def _note_behind(self, delivery: Delivery, *, is_new: bool) -> None:
        """One from behind the selection: ours only if we had it in our hands."""
        if not self._is_over and not is_new:
            if self._wanted is not None:
                return
            mark = mark_of(delivery)
            if self._unfound[mark]:
                self._take_found(delivery, mark)
                return
        # Where nothing from behind can have come before ours, the first stranger ends it.
        self._is_over = self._is_over or is_new or self._end_is_sure
        self._beyond.add(delivery.tag)

    def _take_found(self, delivery: Delivery, mark: str) -> None:
        self._unfound[mark] -= 1
        self._unfound += Counter()
        self._open[delivery.tag] = mark

    def belongs(self, delivery: Delivery) -> bool:
        """Whether it is one of the selection; without digests every one of the first is."""
        if delivery.tag in self._beyond:
            return False
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
        if tag in self._beyond:
            self._beyond.remove(tag)
            return
        self._kept += 1
        self._open.pop(tag, None)

    def ack(self, tag: int) -> None:
        """This message is done with for good."""
        self._source.ack(tag)
        mark = self._open.pop(tag, None)
        self._last_is_done = self._last_is_done or tag == self._last_tag
        if mark is not None:
            self._acked.append((tag, mark))

    def acks_were_read(self) -> None:
        """All of them have reached the queue: what is acked does not come back, unless the broker is killed.

        What a classic queue then hands out again is recognised by the marks of the last ones.
        """
        if self._returned_first or self.has_twins:
            self._acked.clear()

    def checkpoint(self) -> Checkpoint:
        """How to go on if the process dies from here on.

        The last acks may not have been read yet: their marks stay written down. So are the marks of
        all that has arrived: it comes back as what was being sent does, and may be its twin.
        """
        if self._wanted is not None:
            return Checkpoint()
        while (delivery := self._source.at_hand()) is not None:
            self._note(delivery)
            self._noted.append(delivery)
        if not self._seen and not self._returned_first:
            return self._began_at
        if self._returned_first:
            marks = [mark for _, mark in self._acked]
            marks += self._open.values()
        else:  # as they stand in the queue
            marks = [mark for _, mark in sorted((*self._acked, *self._open.items()))]
        window = (*marks, *self._unfound.elements())
        self.has_twins = self.has_twins or len(set(window)) < len(window)
        waiting = self._strangers if self._unfound else 0
        rest = max(self._budget - self._taken - waiting, 0)
        went_beyond = self._went_beyond and self._returned_first
        if went_beyond and self._is_through:
            # What stays was decided on, and could not be told from what lies behind any more.
            return Checkpoint(window=window, has_twins=self.has_twins)
        fresh = self._saw_fresh or self._source.fresh
        sure = self._end_is_sure or fresh
        if self.has_twins and self._returned_first:
            # Where all had come back before, those in our hands end up behind the twins of the rest;
            # what is handed over from now on may be a twin of one that is done.
            sure = fresh and not (self.is_taking and window)
        elif self.has_twins:
            # Nothing of the rest was handed out: by that it is told from its twins.
            sure = self._source.fresh and not self.is_taking
        sure = sure and not went_beyond
        is_sent = self._last_is_done or (self.sends_last and self._last_tag in self._open)
        stays = None if self._returned_first else not is_sent
        return Checkpoint(
            self._kept + waiting, window, rest, sure, fresh, self.has_twins, self._last, stays
        )

    def go_beyond(self) -> None:
        """Messages behind the selection will be held; that has to be written down before."""
        self._went_beyond = True


__getattr__: OldNameLookup = old_names(__name__, {"Selecting": "SelectedMessages"})
