"""The browse sessions that are open, and what is shown of them."""

from __future__ import annotations

from secrets import token_hex
from typing import TYPE_CHECKING

from hopback.deadletters.contract import Moment, Price, SessionView
from hopback.deadletters.sessions import BrowseSession
from hopback.errors import BadRequest, NoSuch, SessionOver, UnsafeOperation
from hopback.renamed import old_names

if TYPE_CHECKING:
    from hopback.broker.port import Broker
    from hopback.clock import Clock
    from hopback.deadletters.contract import Cost
    from hopback.deadletters.discovery import DeadLetterQueue
    from hopback.deadletters.requests import Who, Window
    from hopback.deadletters.settings import Settings

__all__ = ["Browsing", "check_cost", "view_of"]

_REMEMBERED = 1000


class Browsing:
    """Opens, keeps and closes browse sessions."""

    def __init__(self, broker: Broker, settings: Settings, clock: Clock) -> None:
        self._broker = broker
        self._settings = settings
        self._clock = clock
        self._sessions: dict[str, BrowseSession] = {}

    async def open(
        self, source: DeadLetterQueue, window: Window, cost: Cost, *, by: Who, forced: bool
    ) -> BrowseSession:
        """Hold messages of a queue; what was held is given back if anything goes wrong."""
        check_cost(cost, forced=forced)
        self._check(window)
        connection = await self._broker.connect(f"hopback browse {source.name}")
        try:
            session = BrowseSession(
                f"s-{token_hex(8)}",
                source,
                connection,
                await connection.open_channel(),
                window,
                self._clock,
                cost,
                by=by,
                forced=forced,
            )
            await session.fill()
        except BaseException:
            await connection.close()
            raise
        self._sessions[session.id] = session
        self._forget()
        return session

    def _check(self, window: Window) -> None:
        limits = self._settings
        if not 1 <= window.limit <= limits.session_messages:
            raise BadRequest("limit", f"1 to {limits.session_messages}, got {window.limit}")
        if not 1 <= window.max_bytes <= limits.session_bytes:
            raise BadRequest("maxBytes", f"1 to {limits.session_bytes}, got {window.max_bytes}")
        if not 0 < window.seconds <= limits.session_s:
            raise BadRequest("ttlSeconds", f"up to {limits.session_s:g}, got {window.seconds:g}")
        if len(self.opened()) >= limits.sessions:
            raise BadRequest("session", f"at most {limits.sessions} at once; release one first")

    def _forget(self) -> None:
        """Drop the oldest of those that are over; why the others ended can still be told."""
        over = [ident for ident, session in self._sessions.items() if not session.is_open]
        for ident in over[: max(len(self._sessions) - _REMEMBERED, 0)]:
            del self._sessions[ident]

    def opened(self) -> tuple[BrowseSession, ...]:
        """Every session that holds something now."""
        return tuple(session for session in self._sessions.values() if session.is_open)

    def one(self, ident: str) -> BrowseSession:
        """The session of that id; NoSuch, or SessionOver if it was there."""
        session = self._sessions.get(ident)
        if session is None:
            raise NoSuch("session", ident)
        if not session.is_open:
            raise SessionOver(ident, session.why_closed)
        return session

    def renewed(self, ident: str, seconds: float | None) -> BrowseSession:
        """The session, held on for longer."""
        session = self.one(ident)
        wanted = session.window.seconds if seconds is None else seconds
        if not 0 < wanted <= self._settings.session_s:
            raise BadRequest("seconds", f"up to {self._settings.session_s:g}, got {wanted:g}")
        if self._clock.now() + wanted - session.opened_at > self._settings.session_s:
            raise BadRequest(
                "seconds", f"at most {self._settings.session_s:g} since it was opened; open another"
            )
        session.renew(wanted)
        return session

    async def release(self, ident: str) -> None:
        """Give everything back; a session that has ended already is no error."""
        session = self._sessions.get(ident)
        if session is None:
            raise NoSuch("session", ident)
        await session.release()

    async def close(self) -> None:
        """Give everything of every session back."""
        for session in self.opened():
            await session.release("the operations were closed")


def check_cost(cost: Cost, *, forced: bool) -> None:
    """UnsafeOperation if looking could lose something and nobody has accepted that."""
    if cost.price is Price.REFUSED and not forced:
        raise UnsafeOperation(f"{cost.text}. {cost.remedy}")


def view_of(session: BrowseSession) -> SessionView:
    """A session as it is now."""
    return SessionView(
        id=session.id,
        queue=session.source.name,
        held=session.held,
        held_bytes=session.held_bytes,
        opened_at=Moment(session.opened_at),
        expires_at=Moment(session.expires_at),
        complete=session.complete,
        cost=session.cost,
        by=session.by.name,
        by_id=session.by.id,
        order_kept=session.order_kept,
    )


__getattr__ = old_names(
    __name__,
    {"MessageView": "hopback.deadletters.MessageView", "Survey": "hopback.deadletters.Survey"},
)
