"""What every answer is made from: the operations, the live broker, the gate."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hopback.admin.denials import Denial
from hopback.admin.insights import Insights
from hopback.admin.limiting import address_of
from hopback.admin.problems import Refused
from hopback.admin.roles import Principal
from hopback.deadletters.requests import Who

if TYPE_CHECKING:
    from starlette.requests import Request

    from hopback.admin.denials import Denials
    from hopback.admin.gate import Gate
    from hopback.admin.livebroker import LiveBroker
    from hopback.admin.settings import AdminSettings
    from hopback.admin.streams import EventStreams
    from hopback.admin.sweep import Sweep
    from hopback.clock import Clock
    from hopback.deadletters.browsing import SessionView
    from hopback.deadletters.operations import Operations

__all__ = ["NOBODY", "Services", "who", "write_denial"]

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

    def check_room(self, principal: Principal) -> None:
        """Refuse a browse session beyond what one caller, or all together, may hold."""
        limits, open_now = self.settings.limits, self.operations.sessions()
        own = [view for view in open_now if view.by.id == principal.id]
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

    async def renew(
        self, view: SessionView, principal: Principal, seconds: float | None = None
    ) -> SessionView:
        """Hold on for longer, and write down who wanted it."""
        renewed = self.operations.renew(view.id, seconds)
        details = {"session": view.id}
        await self.operations.note(
            "session.renew", by=who(principal), queue=view.queue, details=details
        )
        return renewed

    async def release(self, view: SessionView, principal: Principal) -> None:
        """Give everything back, and write down who wanted it."""
        await self.operations.release(view.id)
        details = {"session": view.id}
        await self.operations.note(
            "session.release", by=who(principal), queue=view.queue, details=details
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
