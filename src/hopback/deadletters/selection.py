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

What comes into the queue while a job empties it is told apart from the selection, and whether the job itself
had sent it.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

from hopback.deadletters.head import walk
from hopback.deadletters.journal import Checkpoint
from hopback.deadletters.message import content_digest
from hopback.deadletters.requests import LONGEST_FOUND_WATCH_S, LONGEST_WATCH_S
from hopback.headers import deaths
from hopback.headers.names import REDRIVE_JOB, X_DEATH
from hopback.headers.raw import message_id_in
from hopback.renamed import OldNameLookup, old_names
from hopback.topology.durations import format_duration
from hopback.topology.model import Queue

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from hopback.broker.port import Broker
    from hopback.deadletters.contract import Cost
    from hopback.deadletters.discovery import DeadLetterQueue
    from hopback.deadletters.head import Source
    from hopback.deadletters.journal import SelectionSnapshot
    from hopback.fields import Headers
    from hopback.message import Delivery
    from hopback.topology.plan import Plan

__all__ = [
    "Arrivals",
    "SelectedMessage",
    "SelectedMessages",
    "Watch",
    "WatchTime",
    "WatchTimer",
    "arrived_text",
    "came_back_text",
    "counted_messages",
    "mark_of",
    "planned_seconds",
]

_LOOKED_AT = 1000  # of those that arrived: each look costs them a delivery count


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What arrived since this run began; `came_back` None where it could not be looked at.

    `looked_at` is among how many of them that was counted; `ready` is how many messages the queue has.
    """

    count: int
    came_back: int | None
    ready: int
    looked_at: int = 0


class Watch:
    """Compares a queue with what should be left in it.

    New messages stand behind old ones: they can be told apart only when nothing old is ready. Then
    they are looked at and given back, unless that could lose some: then `cost` is None. A
    quorum queue hands out first what came back first: while a job holds some of it (`in_order` is
    then False), a look would put the new before the old.
    """

    def __init__(
        self,
        broker: Broker,
        queue: str,
        job: str,
        *,
        ready: int,
        timer: WatchTimer,
        cost: Cost | None,
        in_order: bool = False,
    ) -> None:
        self.timer = timer
        """Knows how long it takes to see whether what was sent comes back."""
        self._broker = broker
        self._in_order = in_order
        self._queue = queue
        self._job = job
        self._ready = ready
        self._cost = cost

    async def look(self, taken: int, *, holding: bool) -> Arrivals:
        """What arrived; `taken` is how many the job has taken, `holding` whether it has some still."""
        connection = await self._broker.connect("hopback watch")
        try:
            channel = await connection.open_channel()
            state = await channel.declare_queue(Queue(self._queue), passive=True)
            expected = max(self._ready - taken, 0)
        finally:
            await connection.close()
        arrived = max(state.messages - expected, 0)
        if not arrived:
            return Arrivals(0, 0, state.messages)
        if expected or self._cost is None or (holding and not self._in_order):
            return Arrivals(arrived, None, state.messages)
        seen = found = 0
        count = min(arrived, _LOOKED_AT)
        async with aclosing(walk(self._broker, self._queue, count, self._cost)) as messages:
            async for delivery in messages:
                seen += 1
                found += delivery.properties.headers.get(REDRIVE_JOB) == self._job
        return Arrivals(arrived, found, state.messages, seen)


def came_back_text(came_back: int, sent: int) -> str:
    """Why a job stops that has seen its own messages again."""
    return f"{came_back:,} of {counted_messages(sent)} came back; the cause is not repaired"


def arrived_text(sent: int, arrived: int) -> str:
    """Why a job stops that could not look at what arrived."""
    return (
        f"while {counted_messages(sent)} went back, {counted_messages(arrived)} arrived: probably the same;"
        " the cause is not repaired"
    )


def counted_messages(count: int) -> str:
    """So many messages, in words."""
    return "1 message" if count == 1 else f"{count:,} messages"


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


# --- watch time -----------------------------------------------------------------------------------
#
# How long a message takes until it is dead again, by all that the broker shows. Pure.
#
# A careful job waits that long after each of its stages: only then does it show whether the cause
# is repaired. A plan says how often and how long a message waits. Without one the retry queues tell
# how long, and the `x-death` of the messages themselves how often.

_CONSUMER_S = 5.0  # a consumer takes a message and fails within seconds
_SLACK = 1.5  # a broker expires messages late under load, and consumers have others to handle
_USUAL_LAPS = 3  # what most consumers are told; used where neither plan nor messages tell
_MOST_LAPS = 100  # a larger number in a header counts something else
_COUNTERS = (
    "x-retry-count", "x-retries", "x-retry", "retry-count", "retries", "x-attempts", "x-attempt",
    "attempts", "x-delivery-attempts",
)  # fmt: skip
_MOST_SEEN = 1000  # messages that are asked: more of one queue say nothing new


@dataclass(frozen=True, slots=True)
class WatchTime:
    """How long a job watches after each stage, in seconds, and in words how that was found.

    `needed_s` is what the messages may need by what is known; more than `seconds` if nobody waits so long.
    """

    seconds: float
    needed_s: float
    text: str


class WatchTimer:
    """Learns from one message after the other how long such a message tries before it is dead."""

    def __init__(self, source: DeadLetterQueue, asked: float | None = None) -> None:
        self._asked = asked
        self._source = source
        self._ttl = {wait.queue: wait.seconds for wait in source.waits}
        self._seen = 0
        self._longest = 0.0
        self._laps: dict[str, int] = {}
        self._took = 0.0
        self._counted = _USUAL_LAPS

    def see(self, delivery: Delivery) -> None:
        """Take into account what the `x-death` of one message tells."""
        if self._seen >= _MOST_SEEN:
            return
        self._seen += 1
        headers = delivery.properties.headers
        for count in map(headers.get, _COUNTERS):
            if isinstance(count, int) and not isinstance(count, bool) and count <= _MOST_LAPS:
                self._counted = max(self._counted, int(count))
        if X_DEATH not in headers:
            return
        found = deaths(headers)
        waited, laps = 0.0, dict[str, int]()
        for death in found:
            if death.reason == "expired":
                laps[death.queue] = laps.get(death.queue, 0) + death.count
                waited += death.count * (
                    self._ttl.get(death.queue) or _expiration(headers, death.queue)
                )
        times = [death.time for death in found if death.time is not None and death.time > 0]
        # Each time is that of the first such death: what lies between them was certainly needed.
        spread = float(max(times) - min(times)) if laps and times else 0.0
        tried = min(max(waited, spread), LONGEST_WATCH_S)
        if laps and (tried > self._longest or not self._laps):
            self._longest, self._laps = tried, laps
            self._took = spread if spread > waited else 0.0

    @property
    def time(self) -> WatchTime:
        """How long to watch, by what is known so far."""
        if self._asked is not None:
            return WatchTime(self._asked, self._asked, f"{_in_words(self._asked)}, as asked for")
        ways = (self._by_plan(), self._by_messages(), self._by_retry_queues())
        planned, words = max(ways, key=lambda way: way[0])
        needed = planned * _SLACK + _CONSUMER_S
        if needed <= LONGEST_FOUND_WATCH_S:
            return WatchTime(needed, needed, f"{_in_words(needed)}: {words}")
        return WatchTime(
            LONGEST_FOUND_WATCH_S,
            needed,
            f"{_in_words(LONGEST_FOUND_WATCH_S)}, though {words}: a message may need {_in_words(needed)}"
            " until it is dead again; ask for a longer watch to see all of that",
        )

    def _by_plan(self) -> tuple[float, str]:
        """What the plans tell: the tiers, as often as they are waited for, until attempts are used up."""
        found, whose = 0.0, ""
        for plan in self._source.plans:
            wait = planned_seconds(plan)
            if wait > found:
                found, whose = wait, plan.queue
        if not whose:
            return 0.0, (
                "nothing tells how long a message tries before it is dead again; ask for a longer"
                " watch if its consumers wait between attempts"
            )
        return found, f"the plan of {whose} lets a message wait {_in_words(found)} in all"

    def _by_messages(self) -> tuple[float, str]:
        waits = ", ".join(
            f"{count} x {_in_words(self._ttl[queue])} in {queue}"
            if queue in self._ttl
            else f"{count} waits in {queue}"
            for queue, count in sorted(self._laps.items())
        )
        if self._took:  # more than the waits alone: its consumers had others, or took their time
            took = _in_words(self._took)
            return (
                self._longest,
                f"a message took {took} from its first failure to its last, with {waits}",
            )
        return self._longest, f"the messages tell of {waits}"

    def _by_retry_queues(self) -> tuple[float, str]:
        """What the retry queues tell: several are waited in one after the other, one several times.

        A broker of 4.0 or later forgets the laps of a message that its consumer publishes anew.
        """
        by_origin: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for wait in self._source.waits:
            by_origin[wait.origin][wait.queue] = wait.seconds
        ways = [(0.0, "")]
        for ttl in by_origin.values():
            total, laps = sum(ttl.values()), self._counted
            names = ", ".join(f"{_in_words(s)} in {queue}" for queue, s in sorted(ttl.items()))
            if len(ttl) > 1:
                shown = names if len(ttl) < 6 else f"in {len(ttl)} retry queues"
                ways.append((total, f"a message waits {shown}"))
            else:
                ways.append(
                    (laps * total, f"a message waits {names}, and {laps} rounds are assumed")
                )
        return max(ways)


def planned_seconds(plan: Plan) -> float:
    """How long a message of this plan waits in all, when it is re-driven and fails every time."""
    if not plan.redrive.reset or not plan.tiers:
        return 0.0
    once = sum(tier.delay_ms for tier in plan.tiers) / 1000
    return once * max((plan.attempts - 1) / len(plan.tiers), 1.0)


def _expiration(headers: Headers, queue: str) -> float:
    """The time to live that the message itself had in that queue, in seconds; 0 where nobody says."""
    entries = headers.get(X_DEATH)
    for entry in entries if isinstance(entries, list | tuple) else ():
        if isinstance(entry, dict) and entry.get("queue") == queue:
            said = entry.get("original-expiration")
            if isinstance(said, str) and said.isdecimal() and len(said) <= 10:
                return int(said) / 1000
    return 0.0


_EXACT_BELOW_S = 10  # 1.5 s is not 2 s; of a minute nobody misses the half second


def _in_words(seconds: float) -> str:
    if seconds < _EXACT_BELOW_S:
        return f"{round(max(seconds, 0.0), 1 if seconds >= 1 else 3):g}s"
    return format_duration(round(seconds) * 1000)


__getattr__: OldNameLookup = old_names(__name__, {"Selecting": "SelectedMessages"})
