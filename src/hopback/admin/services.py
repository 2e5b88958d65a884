"""What every answer is made from: the operations, the live broker, who may do what, refusals."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hopback.admin.auth import address_of, forbidden
from hopback.admin.overview import Insights
from hopback.admin.problems import Refused
from hopback.admin.roles import Principal, Role
from hopback.deadletters.requests import TargetKind, Who

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request

    from hopback.admin.auth import Gate
    from hopback.admin.events import EventStreams
    from hopback.admin.livebroker import LiveBroker
    from hopback.admin.overview import Sweep
    from hopback.admin.settings import AdminSettings
    from hopback.clock import Clock
    from hopback.deadletters.requests import Target
    from hopback.deadletters.service import Operations

__all__ = ["NOBODY", "Denial", "Denials", "Services", "need_target", "who", "write_denial"]

_LOG = logging.getLogger("hopback.admin")

NOBODY = Principal("", "nobody", "nobody", ())
"""Someone of whom nothing is known."""


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that an answer may need."""

    operations: Operations
    live: LiveBroker
    gate: Gate
    sweep: Sweep
    settings: AdminSettings
    clock: Clock
    denials: Denials
    streams: EventStreams
    insights: Insights = field(default_factory=Insights)
    nobody: Principal = NOBODY

    def acting_as(self, principal: Principal) -> Operations:
        """The operations, with everything done in the name of this caller."""
        return self.operations.acting_as(who(principal))

    def check_room(self, principal: Principal) -> None:
        """Refuse a browse session beyond what one caller, or all together, may hold."""
        limits, open_now = self.settings.limits, self.operations.sessions()
        own = [view for view in open_now if view.by_id == principal.id]
        if len(own) >= limits.sessions_per_caller:
            raise Refused(
                429,
                "too-many-sessions",
                f"{len(own)} browse sessions of yours are open; release one first.",
                more={"sessions": [f"/admin/dlq/sessions/{view.id}" for view in own]},
            )
        held = sum(view.held_bytes for view in open_now)
        if len(open_now) >= limits.sessions or held >= limits.held_bytes:
            raise Refused(
                429,
                "too-much-held",
                f"{len(open_now)} browse sessions hold {held} bytes; wait until one ends.",
            )

    async def denied(
        self, principal: Principal, request: Request, refused: Refused, queue: str
    ) -> None:
        """Write a refused change down, or count it; what is refused for its number is neither."""
        if refused.status == 429:
            return
        details = {
            "method": request.method,
            "path": request.url.path[:500],
            "code": refused.code,
            "correlationId": request.state.correlation,
        }
        address = address_of(request)
        await self.denials.add(Denial(principal.id, principal.name, address, queue[:255], details))


async def write_denial(operations: Operations, denial: Denial) -> None:
    """A refused change as a row of the audit; what cannot be written is not worth failing for."""
    try:
        await operations.note(
            "access.denied",
            by=Who(denial.caller, denial.name),
            queue=denial.queue,
            result="refused",
            details={"address": denial.address, **denial.details},
        )
    except Exception as error:  # whatever keeps the audit from being written
        _LOG.warning("a refusal could not be written to the audit", exc_info=error)


def who(principal: Principal) -> Who:
    """The principal as the operations know people."""
    return Who(principal.id, principal.name)


_WINDOW_S = 60.0  # short enough that an attack is seen while it goes on
_ROWS_OF_A_STRANGER = 1  # anybody can be a stranger, as often as they like
_ROWS_OF_A_CALLER = 20  # somebody known who tries several things is worth reading in full
_MOST_WINDOWS = 100  # at most 200 rows a minute, from however many addresses
_ELSEWHERE = ""


@dataclass(frozen=True, slots=True)
class Denial:
    """One refused change: who was refused from which address, of which queue, and the rest."""

    caller: str
    """The id of somebody known; empty for a stranger."""
    name: str
    address: str
    queue: str
    details: Mapping[str, object]


@dataclass(slots=True)
class _Window:
    """What one caller, or one address of strangers, was refused since it began."""

    begun: float
    first: Denial
    rows: int = 0
    counted: int = 0


class Denials:
    """Decides which refusals are rows; `write` puts one into the audit."""

    def __init__(self, clock: Clock, write: Callable[[Denial], Awaitable[None]]) -> None:
        self._clock = clock
        self._write = write
        self._windows: dict[str, _Window] = {}

    async def add(self, denial: Denial) -> None:
        """Write it down, or count it."""
        await self.flush()
        known = bool(denial.caller)
        key = denial.caller or f"address {denial.address}"
        if key not in self._windows and len(self._windows) >= _MOST_WINDOWS:
            key = _ELSEWHERE
        window = self._windows.setdefault(key, _Window(self._clock.now(), denial))
        if window.rows < (_ROWS_OF_A_CALLER if known and key else _ROWS_OF_A_STRANGER):
            window.rows += 1
            await self._write(denial)
        else:
            window.counted += 1

    async def flush(self, *, everything: bool = False) -> None:
        """Write the counts of the windows that are over, or of all when the service ends."""
        now = self._clock.now()
        over = [
            key
            for key, window in self._windows.items()
            if everything or not 0 <= now - window.begun < _WINDOW_S
        ]
        for key in over:
            window = self._windows.pop(key)
            if window.counted:
                first = window.first
                details = {"times": window.counted, "seconds": round(now - window.begun)}
                several = key == _ELSEWHERE
                await self._write(
                    Denial(
                        first.caller if not several else "",
                        first.name if not several else "nobody",
                        first.address if not several else "several addresses",
                        "",
                        {**details, "code": "repeated"},
                    )
                )


_FREE = frozenset({TargetKind.QUEUE, TargetKind.EXCHANGE, TargetKind.ORIGIN_EXCHANGE})
"""Targets that can lead beyond the queues whose dead letters are re-driven."""


async def need_target(
    operations: Operations, principal: Principal, queue: str, target: Target
) -> None:
    """Refuse a re-drive of `queue` that would reach a queue for which they are no operator."""
    if target.kind not in _FREE or principal.allows_everywhere(Role.OPERATOR):
        return
    reached = await operations.queues_beyond(queue, target)
    if reached is None:
        raise forbidden(
            f"Nothing tells which queues the target reaches ({target}): expected the role"
            f" {Role.OPERATOR} for all queues, or a target queue."
        )
    missing = sorted(name for name in reached if not principal.allows(Role.OPERATOR, name))
    if missing:
        raise forbidden(
            f"The target ({target}) reaches queue {missing[0]!r}: expected the role"
            f" {Role.OPERATOR} for it."
        )
