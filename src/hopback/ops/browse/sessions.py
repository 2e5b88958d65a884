"""Open, find and release the browse sessions of this process."""

from __future__ import annotations

import asyncio
from secrets import token_hex
from typing import TYPE_CHECKING

from hopback.errors import BadRequest, NoSuch, SessionOver
from hopback.ops.brokers.browse_cost import check_cost
from hopback.ops.brokers.consumers import browse_connection_name
from hopback.ops.browse.session import BrowseSession
from hopback.ops.browse.session_reader import SessionReader
from hopback.ops.contract.codec import check
from hopback.ops.contract.requests import LONGEST_SESSION_S, Renewal, SessionRequest
from hopback.ops.contract.values import Cost, Moment, OnProgress, SessionView

if TYPE_CHECKING:
    from hopback.ops.brokers.discovery import DeadLetterQueue
    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.contract.requests import Who

_REMEMBERED = 1000
"""Number of sessions whose end can be explained to callers. If there are more, the oldest are forgotten."""


class Sessions:
    def __init__(self, broker: ManagedBroker) -> None:
        self._broker = broker.broker
        self._clock = broker.clock
        self._sessions: dict[str, BrowseSession] = {}

    async def open(
        self,
        source: DeadLetterQueue,
        request: SessionRequest,
        cost: Cost,
        by: Who,
        on_progress: OnProgress | None = None,
    ) -> BrowseSession:
        """Open a session that holds messages of a queue. If this fails, the messages are requeued.

        The session ends after at most `LONGEST_SESSION_S`, because the broker's timeout starts with
        the first message.
        """
        check(SessionRequest, request)
        check_cost(cost, force=request.force)
        connection = await self._broker.connect(browse_connection_name(source.name))
        opened_at, reader = self._clock.now(), None
        try:
            reader = await SessionReader.open(connection, source, cost, request)
            held_by_others = self.count_held(source.name)
            await reader.read(on_progress)
        except BaseException:
            await (connection.close() if reader is None else asyncio.shield(reader.release()))
            raise
        expires_at = min(self._clock.now() + request.seconds, opened_at + LONGEST_SESSION_S)
        view = SessionView(
            id=f"s-{token_hex(8)}",
            queue=source.name,
            held=len(reader.dead_letters),
            held_bytes=reader.held_bytes,
            opened_at=Moment(opened_at),
            expires_at=Moment(expires_at),
            complete=reader.seen >= reader.ready,
            cost=cost,
            by=by.name,
            by_id=by.id,
            order_kept=reader.order_kept,
            skipped=reader.seen - len(reader.dead_letters),
            ready=reader.ready,
            held_by_others=held_by_others,
        )
        session = BrowseSession(view, reader, self._clock)
        self._sessions[session.id] = session
        self._forget_oldest()
        return session

    def _forget_oldest(self) -> None:
        ended = [known for known, each in self._sessions.items() if not each.is_open]
        for known in ended[: max(len(self._sessions) - _REMEMBERED, 0)]:
            del self._sessions[known]

    def active(self, queue: str = "") -> tuple[BrowseSession, ...]:
        """Return the open sessions of one queue, or of all queues."""
        return tuple(
            session
            for session in self._sessions.values()
            if session.is_open and queue in ("", session.source.name)
        )

    def count_held(self, queue: str) -> int:
        """Return the number of messages of a queue that other consumers cannot receive."""
        return sum(session.taken for session in self.active(queue))

    def get(self, session_id: str, queue: str = "") -> BrowseSession:
        """Return an open session. Raises NoSuch if it is unknown, and SessionOver if it has ended.

        If `queue` is set, a session of another queue is treated as unknown. A caller without access
        to the other queue does not learn that the session exists.
        """
        session = self._sessions.get(session_id)
        if session is None or queue not in ("", session.source.name):
            raise NoSuch("session", session_id)
        if not session.is_open:
            raise SessionOver(session_id, session.why_closed)
        return session

    def renew(self, session_id: str, seconds: float | None) -> BrowseSession:
        """Extend a session, starting now. By default, the original duration is used."""
        check(Renewal, Renewal(seconds))
        session = self.get(session_id)
        wanted = session.usual_s if seconds is None else seconds
        if self._clock.now() + wanted - session.view.opened_at > LONGEST_SESSION_S:
            expected = f"at most {LONGEST_SESSION_S:g} since it was opened; open another"
            raise BadRequest("ttlSeconds", expected)
        session.renew(wanted)
        return session

    async def release(self, session_id: str) -> BrowseSession | None:
        """Release and return a session. Returns None if it has already ended."""
        session = self._sessions.get(session_id)
        if session is None:
            raise NoSuch("session", session_id)
        was_open = session.is_open
        await session.release()
        return session if was_open else None

    async def close(self) -> None:
        for session in self.active():
            await session.release("the operations were closed")
