"""Count how many messages a job would move, and how many it would leave in the queue."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hopback.headers import unread_headers
from hopback.ops.brokers.targets import Aim, aim_at, known_ways, target_flaw
from hopback.ops.browse.memory import measure_memory
from hopback.ops.browse.turns import Turns
from hopback.ops.browse.walk import walk
from hopback.ops.contract.requests import GroupBy, RedriveRequest, Selection
from hopback.ops.contract.values import (
    ChangeSample,
    DeadLetter,
    LookProgress,
    OnProgress,
    WayCheck,
)
from hopback.ops.jobs.watch_time import WatchTimer
from hopback.ops.messages.dead_letter import read_dead_letter
from hopback.ops.messages.filters import Judgement, parse_filter
from hopback.ops.messages.grouping import Grouping
from hopback.ops.messages.patch import change_sample, patch_problem
from hopback.policy.redrive import redrive_refusal

if TYPE_CHECKING:
    from hopback.broker.port import Connection
    from hopback.message import Delivery
    from hopback.ops.brokers.discovery import DeadLetterQueue
    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.brokers.snapshot import BrokerSnapshot
    from hopback.ops.browse.session import ChosenMessages
    from hopback.topology.plan import Redrive
    from hopback.topology.routing import RoutingTable

_TELL_EVERY = 256
"""Messages between progress reports, which take some tens of milliseconds."""
_SAMPLES = 5
"""Changed messages shown by a dry run, so that operators can check the change."""


class DryRun:
    """Count what a job would do with messages, without doing it."""

    def __init__(
        self,
        selection: Selection,
        source: DeadLetterQueue,
        now: float,
        redrive: RedriveRequest | None = None,
        known_routes: RoutingTable | None = None,
        *,
        sought: str = "",
    ) -> None:
        """`sought` is the digest of a message whose position in the queue is recorded."""
        self._redrive = redrive
        self._source = source
        self._wanted = parse_filter(selection.filter)
        self._now = now
        self._sought = sought
        self.sought_place: int = 0
        """The last position of this message, or 0 if it was not found."""
        self.sought_matching: int = 0
        """The number of matching messages up to and including this message."""
        self._known_routes = known_routes
        self.reasons: Grouping = Grouping(GroupBy.REASON)
        self.errors: Grouping = Grouping(GroupBy.ERROR)
        self.timer: WatchTimer = WatchTimer(
            source, None if redrive is None else redrive.pace.watch_s
        )
        self._ways: Counter[Redrive] = Counter()
        self.left_out: Counter[str] = Counter()
        """The number of matching messages that would stay in the queue, by reason."""
        self.changes: list[ChangeSample] = []
        self.seen: int = 0
        self.matching: int = 0
        self.body_bytes: int = 0
        """The size of the bodies of the matching messages that were read."""
        self.not_looked_into: int = 0
        self.last: str = ""
        """The digest of the last message."""
        self.unread: int = 0
        """The number of messages that would be sent without headers that cannot be decoded."""

    async def read(
        self,
        broker: ManagedBroker,
        snapshot: BrokerSnapshot,
        count: int,
        on_progress: OnProgress | None,
    ) -> None:
        """Read the first `count` messages of the queue, and requeue all of them in order.

        At the end, this waits until the number of ready messages is the same as in the snapshot.
        """
        queue = self._source.name
        cost = snapshot.cost(queue)
        async with walk(broker.query, queue, count, cost) as messages:
            async for delivery in messages:
                self.see(delivery)
                if on_progress is not None and self.seen % _TELL_EVERY == 0:
                    on_progress(LookProgress(queue, self.seen, count))
        if not cost.is_stream:
            await broker.wait_until_ready(queue, snapshot.ready)

    async def read_chosen(self, chosen: ChosenMessages) -> None:
        turns = Turns()
        for dead_letter in chosen.dead_letters:
            delivery = chosen.session.delivery(dead_letter.id)
            self.see(delivery)
            await turns.after(measure_memory(delivery))

    def see(self, delivery: Delivery) -> None:
        """Count a message."""
        self.seen += 1
        dead_letter = read_dead_letter(delivery, self.seen, self._source)
        self.last = dead_letter.digest
        judged = self._wanted.judge(dead_letter, delivery, self._now)
        self.not_looked_into += judged is Judgement.NOT_LOOKED_INTO
        self.matching += judged is Judgement.MATCHES
        if self.last == self._sought:
            self.sought_place, self.sought_matching = self.seen, self.matching
        if judged is not Judgement.MATCHES:
            return
        self.body_bytes += len(delivery.body)
        self.reasons.add(dead_letter)
        self.errors.add(dead_letter)
        if self._redrive is not None:
            self._see_redrive(self._redrive, delivery, dead_letter)

    def _see_redrive(
        self, request: RedriveRequest, delivery: Delivery, dead_letter: DeadLetter
    ) -> None:
        aim = aim_at(request.target, delivery, dead_letter.origin, self._source, self._known_routes)
        if not isinstance(aim, Aim):
            self.left_out[aim] += 1
            return
        refusal = redrive_refusal(delivery, aim.plan, max_redrives=request.max_redrives or None)
        if refusal is not None:
            self.left_out[refusal] += 1
            return
        if request.change:
            if len(self.changes) < _SAMPLES:
                sample = change_sample(dead_letter.id, delivery.body, request.change)
                self.changes.append(sample)
                problem = sample.problem
            else:
                problem = patch_problem(delivery.body, request.change)
            if problem:
                self.left_out[problem] += 1
                return
        self._ways[aim.redrive] += 1
        self.timer.see(delivery)
        self.unread += bool(unread_headers(delivery.properties))

    async def ways(
        self, connection: Connection, live_routes: RoutingTable | None
    ) -> tuple[WayCheck, ...]:
        """Check whether all targets exist and lead to a queue. This includes targets of the
        messages seen.
        """
        if self._redrive is None:
            return ()
        known = dict.fromkeys((*self._ways, *known_ways(self._redrive.target, self._source)))
        return tuple(
            [
                WayCheck(
                    way.exchange,
                    way.routing_key,
                    self._ways[way],
                    await target_flaw(connection, way, live_routes),
                )
                for way in known
            ]
        )
