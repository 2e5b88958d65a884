"""Open, find and release browse sessions."""

from __future__ import annotations

from secrets import token_hex
from typing import TYPE_CHECKING

from hopback.errors import BadRequest, NoSuch, SessionOver
from hopback.ops.browse.cost import check_cost
from hopback.ops.browse.session import BrowseSession

if TYPE_CHECKING:
    from hopback.broker.port import Broker
    from hopback.clock import Clock
    from hopback.ops.brokers.discovery import DeadLetterQueue
    from hopback.ops.contract.requests import Settings, Who, Window
    from hopback.ops.contract.values import Cost, OnProgress


_REMEMBERED = 1000  # sessions of which it can still be told why they ended


class Sessions:
    """Opens, keeps and closes browse sessions."""

    def __init__(self, broker: Broker, settings: Settings, clock: Clock) -> None:
        self._broker = broker
        self._settings = settings
        self._clock = clock
        self._sessions: dict[str, BrowseSession] = {}

    async def open(
        self,
        source: DeadLetterQueue,
        window: Window,
        cost: Cost,
        *,
        by: Who,
        forced: bool,
        on_progress: OnProgress | None = None,
    ) -> BrowseSession:
        """Hold messages of a queue; what was held is given back if anything goes wrong."""
        check_cost(cost, forced=forced)
        self._check(window)
        connection = await self._broker.connect(f"hopback browse {source.name}")
        session: BrowseSession | None = None
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
            others = [each for each in self.opened() if each.source.name == source.name]
            session.held_by_others = sum(each.taken for each in others)
            await session.fill(self._settings.session_s, on_progress)
        except BaseException:
            await (connection.close() if session is None else session.release("it was not filled"))
            raise
        self._sessions[session.id] = session
        # The oldest of those that are over go; why the others ended can still be told.
        over = [known for known, each in self._sessions.items() if not each.is_open]
        for known in over[: max(len(self._sessions) - _REMEMBERED, 0)]:
            del self._sessions[known]
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

    def opened(self) -> tuple[BrowseSession, ...]:
        """Every session that holds something now."""
        return tuple(session for session in self._sessions.values() if session.is_open)

    def one(self, session_id: str) -> BrowseSession:
        """The session of that id; NoSuch, or SessionOver if it was there."""
        session = self._sessions.get(session_id)
        if session is None:
            raise NoSuch("session", session_id)
        if not session.is_open:
            raise SessionOver(session_id, session.why_closed)
        return session

    def renewed(self, session_id: str, seconds: float | None) -> BrowseSession:
        """The session, held on for longer."""
        session = self.one(session_id)
        wanted = session.window.seconds if seconds is None else seconds
        if not 0 < wanted <= self._settings.session_s:
            raise BadRequest("seconds", f"up to {self._settings.session_s:g}, got {wanted:g}")
        if self._clock.now() + wanted - session.opened_at > self._settings.session_s:
            raise BadRequest(
                "seconds", f"at most {self._settings.session_s:g} since it was opened; open another"
            )
        session.renew(wanted)
        return session

    async def release(self, session_id: str) -> None:
        """Give everything back; a session that has ended already is no error."""
        session = self._sessions.get(session_id)
        if session is None:
            raise NoSuch("session", session_id)
        await session.release()

    async def close(self) -> None:
        """Give everything of every session back."""
        for session in self.opened():
            await session.release("the operations were closed")
