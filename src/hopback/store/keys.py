"""What the admin service keeps in SQL: its keys, and sessions of the page that ended early or by a provider.

Keys are documents by id; what is in them is the service's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import delete, insert, select, update

from hopback.store.database import api_keys, ended_sessions, oidc_sessions, reading, writing

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


__all__ = ["EndedSessionTable", "KeyTable", "OidcSessionTable"]


class KeyTable:
    """The keys."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def all(self) -> dict[str, str]:
        """Every document, by the id of its key."""
        async with reading(self._engine) as connection:
            rows = await connection.execute(select(api_keys).order_by(api_keys.c.id))
            return {row.id: row.document for row in rows}

    async def add(self, key_id: str, document: str) -> None:
        """Keep a document."""
        async with writing(self._engine) as connection:
            await connection.execute(insert(api_keys).values(id=key_id, document=document))

    async def remove(self, key_id: str) -> None:
        """Forget a document; none there is no error."""
        async with writing(self._engine) as connection:
            await connection.execute(delete(api_keys).where(api_keys.c.id == key_id))


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


class OidcSessionTable:
    """Sessions by a provider; what is in a document only the service can read."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def get(self, session: str) -> str | None:
        """The document, or None."""
        query = select(oidc_sessions.c.document).where(oidc_sessions.c.id == session)
        async with reading(self._engine) as connection:
            found: str | None = (await connection.execute(query)).scalar()
        return found

    async def put(self, session: str, document: str, until: float, now: float) -> None:
        """Keep a document until then; those whose time is over are forgotten."""
        old = (oidc_sessions.c.until <= now) | (oidc_sessions.c.id == session)
        row = {"id": session, "document": document, "until": until}
        async with writing(self._engine) as connection:
            await connection.execute(delete(oidc_sessions).where(old))
            await connection.execute(insert(oidc_sessions).values(row))

    async def claim(self, session: str, now: float, seconds: float) -> bool:
        """Be the only one to renew it for so long; False if somebody else is."""
        free = (oidc_sessions.c.id == session, oidc_sessions.c.busy_until <= now)
        taken = update(oidc_sessions).where(*free).values(busy_until=now + seconds)
        async with writing(self._engine) as connection:
            found = await connection.execute(taken.returning(oidc_sessions.c.id))
            return found.first() is not None

    async def remove(self, session: str) -> None:
        """Forget it; none there is no error."""
        async with writing(self._engine) as connection:
            await connection.execute(delete(oidc_sessions).where(oidc_sessions.c.id == session))
