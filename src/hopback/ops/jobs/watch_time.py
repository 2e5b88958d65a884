"""Determine how long a job watches for returned messages.

A re-driven message that fails again returns to the dead-letter queue after some time. The time
depends on the plan of its consumer. If there is no plan, it is derived from the time to live of the
retry queues, and from how often messages have passed them according to their `x-death` header.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.headers import deaths
from hopback.headers.names import X_DEATH
from hopback.ops.contract.requests import LONGEST_FOUND_WATCH_S, LONGEST_WATCH_S
from hopback.ops.messages.attempts import attempts_in
from hopback.text import span_text

if TYPE_CHECKING:
    from hopback.fields import Headers
    from hopback.message import Delivery
    from hopback.ops.brokers.discovery import DeadLetterQueue
    from hopback.topology.plan import Plan

_CONSUMER_S = 5.0
"""Seconds that a consumer needs to receive a message and fail."""
_SLACK = 1.5
"""Factor that allows for brokers that expire messages late, and consumers that are busy with other
messages.
"""
_USUAL_LAPS = 3
"""How often messages pass a retry queue if neither a plan nor the messages show it. This is a
common value.
"""
_MOST_SEEN = 1000
"""Messages whose headers are read. More messages from the same queue rarely change the result."""


@dataclass(frozen=True, slots=True)
class WatchTime:
    """How long a job watches after each stage in seconds, with the reason."""

    seconds: float
    text: str


class WatchTimer:
    """Learn from messages how long they take to return."""

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
        """Use the headers of a message."""
        if self._seen >= _MOST_SEEN:
            return
        self._seen += 1
        headers = delivery.properties.headers
        # each retry is preceded by a wait
        self._counted = max(self._counted, attempts_in(headers) - 1)
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
        # Each time belongs to the first such death, so the message needed at least the time between
        # them.
        spread = float(max(times) - min(times)) if laps and times else 0.0
        tried = min(max(waited, spread), LONGEST_WATCH_S)
        if laps and (tried > self._longest or not self._laps):
            self._longest, self._laps = tried, laps
            self._took = spread if spread > waited else 0.0

    @property
    def time(self) -> WatchTime:
        """The watch time, based on all messages so far."""
        if self._asked is not None:
            return WatchTime(self._asked, f"{span_text(self._asked)}, as asked for")
        ways = (self._by_plan(), self._by_messages(), self._by_retry_queues())
        planned, words = max(ways, key=lambda way: way[0])
        needed = planned * _SLACK + _CONSUMER_S
        if needed <= LONGEST_FOUND_WATCH_S:
            return WatchTime(needed, f"{span_text(needed)}: {words}")
        return WatchTime(
            LONGEST_FOUND_WATCH_S,
            f"{span_text(LONGEST_FOUND_WATCH_S)}, though {words}: a message may need"
            f" {span_text(needed)} until it is dead-lettered again; request a longer watch to see this",
        )

    def _by_plan(self) -> tuple[float, str]:
        """Return the longest wait in a plan, which is the sum of its tiers until all attempts are used."""
        found, whose = 0.0, ""
        for plan in self._source.plans:
            wait = plan_seconds(plan)
            if wait > found:
                found, whose = wait, plan.queue
        if not whose:
            return 0.0, (
                "the duration of retries is unknown, so request a longer watch if the consumers wait"
                " between attempts"
            )
        return found, f"the plan of {whose} lets a message wait {span_text(found)} in all"

    def _by_messages(self) -> tuple[float, str]:
        waits = ", ".join(
            f"{count} x {span_text(self._ttl[queue])} in {queue}"
            if queue in self._ttl
            else f"{count} waits in {queue}"
            for queue, count in sorted(self._laps.items())
        )
        if self._took:  # longer than the waits alone, because consumers were busy or slow
            took = span_text(self._took)
            return (
                self._longest,
                f"a message took {took} from its first failure to its last, with {waits}",
            )
        return self._longest, f"the messages record {waits}"

    def _by_retry_queues(self) -> tuple[float, str]:
        """Return the longest wait in the retry queues. If there are several, a message waits once
        in each of them. If there is only one, it waits there several times.

        RabbitMQ 4.0 and later do not record how often a message has waited if its consumer
        publishes it again.
        """
        by_origin: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for wait in self._source.waits:
            by_origin[wait.origin][wait.queue] = wait.seconds
        ways = [(0.0, "")]
        for ttl in by_origin.values():
            total, laps = sum(ttl.values()), self._counted
            names = ", ".join(f"{span_text(s)} in {queue}" for queue, s in sorted(ttl.items()))
            if len(ttl) > 1:
                shown = names if len(ttl) < 6 else f"in {len(ttl)} retry queues"
                ways.append((total, f"a message waits {shown}"))
            else:
                ways.append(
                    (laps * total, f"a message waits {names}, and {laps} rounds are assumed")
                )
        return max(ways)


def plan_seconds(plan: Plan) -> float:
    """Return the total time that a re-driven message waits if it always fails."""
    if not plan.redrive.reset or not plan.tiers:
        return 0.0
    once = sum(tier.delay_ms for tier in plan.tiers) / 1000
    return once * max((plan.attempts - 1) / len(plan.tiers), 1.0)


def _expiration(headers: Headers, queue: str) -> float:
    """Return the time to live that a message had in a queue in seconds, or 0 if it is unknown."""
    entries = headers.get(X_DEATH)
    for entry in entries if isinstance(entries, list | tuple) else ():
        if isinstance(entry, dict) and entry.get("queue") == queue:
            said = entry.get("original-expiration")
            if isinstance(said, str) and said.isdecimal() and len(said) <= 10:
                return int(said) / 1000
    return 0.0
