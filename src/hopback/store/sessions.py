"""Sessions of the page that were ended before their time, in SQL: what all processes must know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import delete, insert, select

from hopback.store.database import reading, writing
from hopback.store.schema import ended_sessions

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["EndedSessionTable"]


class EndedSessionTable:
    """The ended sessions."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def all(self) -> dict[str, float]:
        """The ids, each with the moment at which it would have ended by itself."""
        async with reading(self._engine) as connection:
            rows = await connection.execute(select(ended_sessions))
            return {row.id: row.until for row in rows}

    async def add(self, session: str, until: float, now: float) -> None:
        """Keep an id, once; those whose time is over now are forgotten."""
        async with writing(self._engine) as connection:
            over = (ended_sessions.c.until <= now) | (ended_sessions.c.id == session)
            await connection.execute(delete(ended_sessions).where(over))
            await connection.execute(insert(ended_sessions).values(id=session, until=until))
