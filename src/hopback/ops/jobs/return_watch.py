"""Watch the dead-letter queue of a running job for returned messages, for as long as a return may take.

A re-driven message that fails again returns to its dead-letter queue after some time. That time follows from
the plan of its consumer. Without a plan it follows from the time to live of the retry queues and from the
number of laps in the `x-death` header of the messages.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.headers import deaths
from hopback.headers.names import REDRIVE_JOB, X_DEATH
from hopback.ops.browse.walk import walk
from hopback.ops.contract.requests import LONGEST_FOUND_WATCH_S, LONGEST_WATCH_S
from hopback.topology.durations import format_duration
from hopback.topology.model import Queue

if TYPE_CHECKING:
    from hopback.broker.port import Broker
    from hopback.fields import Headers
    from hopback.message import Delivery
    from hopback.ops.brokers.discovery import DeadLetterQueue
    from hopback.ops.contract.requests import Pace
    from hopback.ops.contract.values import Cost
    from hopback.topology.plan import Plan

_LOOKED_AT = 10_000
"""Arrived messages that one look reads. If more arrived, the number of returned messages is a minimum."""
MEASURE_S = 10.0
"""Longest time, in seconds, for which a job counts arrivals before it sends its first message.

A longer time would find slower rates. Operators wait for this time before anything happens.
"""


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


@dataclass(frozen=True, slots=True)
class StopRule:
    """When a job with a ramp stops.

    It stops when more than `max_returned` messages with its mark returned. Arrivals without a readable mark
    are only counted: it stops when there are more than at the rate before its start, `arrived` messages
    within `seconds`, and `max_returned` besides.
    """

    max_returned: int = 0
    arrived: int = 0
    seconds: float = 0.0

    def reason_to_stop(self, found: Arrivals, sent: int, elapsed_s: float) -> str:
        """Why the job stops after these arrivals; empty if it continues.

        `found.count` and `elapsed_s` begin with the first message that the job sent.
        """
        if (found.came_back or 0) > self.max_returned:
            return f"{returned_text(found, sent)}; the cause is not repaired"
        if found.count <= self.max_returned + self._usual(elapsed_s):
            return ""
        before = f"{counted_messages(self.arrived)} within" if self.arrived else "none within"
        return (
            f"{counted_messages(found.count)} arrived after {sent:,} were sent, and {before}"
            f" {_in_words(self.seconds)} before: probably the same messages; the cause is not repaired"
        )

    def _usual(self, elapsed_s: float) -> int:
        """Arrivals that the rate before the start explains, with three standard deviations of chance."""
        if not self.arrived:
            return 0
        expected = self.arrived / self.seconds * elapsed_s
        return int(expected + 3 * expected**0.5)


def returned_text(found: Arrivals, sent: int) -> str:
    """Number of returned messages of those sent."""
    least = "at least " if found.looked_at < found.count else ""
    return f"{least}{found.came_back or 0:,} of {counted_messages(sent)} came back"


def stop_rule_text(pace: Pace, watch: WatchTime) -> str:
    """The stop rule of a job in numbers, for the review."""
    if not pace.ramp:
        return "Returned messages do not stop a job without a ramp."
    stages = ", ".join(f"{size:,}" for size in pace.ramp)
    returned = "a message returns"
    if pace.max_returned:
        returned = f"more than {counted_messages(pace.max_returned)} return"
    return (
        f"The job first counts arrivals for {_in_words(min(watch.seconds, MEASURE_S))}. It sends {stages}"
        f" messages, then the rest, and watches {_in_words(watch.seconds)} after each stage and at the end."
        f" It stops when {returned}. While older messages are ready, or if the consumer drops headers, it"
        " cannot recognise its own messages: then it stops when more messages arrive than before its start."
    )


def counted_messages(count: int) -> str:
    """The number with its noun."""
    return "1 message" if count == 1 else f"{count:,} messages"


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
