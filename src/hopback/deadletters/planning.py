"""The dry run: what a job would do with the messages that it sees."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hopback.deadletters.contract import LeftOutCount, WayCheck
from hopback.deadletters.filters import Judgement
from hopback.deadletters.message import read_dead_letter
from hopback.deadletters.requests import GroupBy, JobKind, TargetKind
from hopback.deadletters.session import Grouping
from hopback.deadletters.targets import Aim, aim_at, known_ways, target_flaw
from hopback.headers import unread_headers
from hopback.policy.redrive import redrive_refusal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.broker.port import Connection
    from hopback.deadletters.contract import Group
    from hopback.deadletters.discovery import DeadLetterQueue
    from hopback.deadletters.filters import Filter
    from hopback.deadletters.journal import JobSpec
    from hopback.message import Delivery
    from hopback.topology.plan import Plan, Redrive
    from hopback.topology.routing import RoutingTable

__all__ = ["Rehearsal", "order_kept", "watch_seconds"]

_SHORTEST_WATCH_S = 5.0
_LONGEST_WATCH_S = 120.0


class Rehearsal:
    """Sees one message after the other and counts what would become of it."""

    def __init__(
        self,
        spec: JobSpec,
        source: DeadLetterQueue,
        wanted: Filter,
        now: float,
        routes: RoutingTable | None = None,
    ) -> None:
        self._spec = spec
        self._source = source
        self._wanted = wanted
        self._now = now
        self._routes = routes
        self._reasons = Grouping(GroupBy.REASON)
        self._errors = Grouping(GroupBy.ERROR)
        self._ways: Counter[Redrive] = Counter()
        self._left_out: Counter[str] = Counter()
        self.seen = 0
        self.matching = 0
        self.not_looked_into = 0
        self.unread = 0
        """How many would go back without headers that nobody could read."""

    def see(self, delivery: Delivery) -> None:
        """Count one message."""
        self.seen += 1
        letter = read_dead_letter(delivery, self.seen, self._source)
        judged = self._wanted.judge(letter, delivery, self._now)
        self.not_looked_into += judged is Judgement.NOT_LOOKED_INTO
        if judged is not Judgement.MATCHES:
            return
        self.matching += 1
        self._reasons.add(letter)
        self._errors.add(letter)
        if self._spec.kind is JobKind.REDRIVE:
            self._aim(delivery, letter.origin)

    def _aim(self, delivery: Delivery, origin: str) -> None:
        aim = aim_at(self._spec.target, delivery, origin, self._source, self._routes)
        if not isinstance(aim, Aim):
            self._left_out[aim] += 1
            return
        refusal = redrive_refusal(delivery, aim.plan, max_redrives=self._spec.max_redrives)
        if refusal is not None:
            self._left_out[refusal] += 1
            return
        self._ways[aim.redrive] += 1
        self.unread += bool(unread_headers(delivery.properties))

    @property
    def reasons(self) -> tuple[Group, ...]:
        """Why the messages are here."""
        return self._reasons.groups()

    @property
    def errors(self) -> tuple[Group, ...]:
        """What went wrong with them."""
        return self._errors.groups()

    @property
    def left_out(self) -> tuple[LeftOutCount, ...]:
        """What would not be touched."""
        return tuple(LeftOutCount(reason, count) for reason, count in self._left_out.most_common())

    async def ways(
        self, connection: Connection, table: RoutingTable | None
    ) -> tuple[WayCheck, ...]:
        """Every way that is known or was found, checked to exist and to route."""
        if self._spec.kind is not JobKind.REDRIVE:
            return ()
        known = dict.fromkeys((*self._ways, *known_ways(self._spec.target, self._source)))
        return tuple(
            [
                WayCheck(
                    way.exchange,
                    way.routing_key,
                    self._ways[way],
                    await target_flaw(connection, way, table),
                )
                for way in known
            ]
        )


def order_kept(spec: JobSpec, ways: int) -> str:
    """Whether messages arrive in the order in which they rest."""
    if spec.kind is JobKind.DISCARD:
        return "what stays keeps its order"
    if ways > 1 or spec.target.kind is TargetKind.ORIGIN_EXCHANGE:
        return "kept for each target queue; between several of them there is no order"
    return "kept, but for messages that are refused and sent again: they come after the others"


def watch_seconds(plans: Iterable[Plan]) -> float:
    """How long a message takes to fail for good again: then it shows whether the cause is mended."""
    waits = [
        sum(tier.delay_ms for tier in plan.tiers) / 1000 * _laps(plan)
        for plan in plans
        if plan.redrive.reset
    ]
    return min(
        max([_SHORTEST_WATCH_S, *(wait + _SHORTEST_WATCH_S for wait in waits)]), _LONGEST_WATCH_S
    )


def _laps(plan: Plan) -> float:
    """How often the tiers are waited for, roughly, until the attempts are used up."""
    return max((plan.attempts - 1) / len(plan.tiers), 1.0) if plan.tiers else 0.0
