"""What the admin service keeps in SQL: keys, sessions that ended early or came from a provider, alerts.

What is in a document is the service's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from hopback.errors import LeaseLost
from hopback.store.database import (
    alert_notices,
    alerts,
    api_keys,
    ended_sessions,
    leases,
    oidc_sessions,
    reading,
    writing,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine


class KeyTable:
    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def all(self) -> dict[str, str]:
        """Every document, by the id of its key."""
        async with reading(self._engine) as connection:
            rows = await connection.execute(select(api_keys).order_by(api_keys.c.id))
            return {row.id: row.document for row in rows}

    async def add(self, key_id: str, document: str) -> None:
        async with writing(self._engine) as connection:
            await connection.execute(insert(api_keys).values(id=key_id, document=document))

    async def remove(self, key_id: str) -> None:
        """Forget a document; none there is no error."""
        async with writing(self._engine) as connection:
            await connection.execute(delete(api_keys).where(api_keys.c.id == key_id))


class EndedSessionTable:
    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def all(self) -> dict[str, float]:
        """The ids, each with the moment at which it would have ended by itself."""
        async with reading(self._engine) as connection:
            rows = await connection.execute(select(ended_sessions))
            return {row.id: row.expires_at for row in rows}

    async def add(self, session: str, until: float, now: float) -> None:
        """Keep an id, once; those whose time is over now are forgotten."""
        async with writing(self._engine) as connection:
            over = (ended_sessions.c.expires_at <= now) | (ended_sessions.c.id == session)
            await connection.execute(delete(ended_sessions).where(over))
            await connection.execute(insert(ended_sessions).values(id=session, expires_at=until))


class OidcSessionTable:
    """Sessions by a provider; what is in a document only the service can read."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def get(self, session: str) -> str | None:
        query = select(oidc_sessions.c.document).where(oidc_sessions.c.id == session)
        async with reading(self._engine) as connection:
            found: str | None = (await connection.execute(query)).scalar()
        return found

    async def put(self, session: str, document: str, until: float, now: float) -> None:
        """Keep a document until then; those whose time is over are forgotten."""
        old = (oidc_sessions.c.expires_at <= now) | (oidc_sessions.c.id == session)
        row = {"id": session, "document": document, "expires_at": until, "renewing_until": 0.0}
        async with writing(self._engine) as connection:
            await connection.execute(delete(oidc_sessions).where(old))
            await connection.execute(insert(oidc_sessions).values(row))

    async def claim(self, session: str, now: float, seconds: float) -> bool:
        """Be the only one to renew it for so long; False if somebody else is."""
        free = (oidc_sessions.c.id == session, oidc_sessions.c.renewing_until <= now)
        taken = update(oidc_sessions).where(*free).values(renewing_until=now + seconds)
        async with writing(self._engine) as connection:
            found = await connection.execute(taken.returning(oidc_sessions.c.id))
            return found.first() is not None

    async def remove(self, session: str) -> None:
        """Forget it; none there is no error."""
        async with writing(self._engine) as connection:
            await connection.execute(delete(oidc_sessions).where(oidc_sessions.c.id == session))


_LEASE = "alerts"
_CHUNK = 500  # ids in one statement: SQLite takes some thousand parameters


class AlertTable:
    """The alerts, the messages about them that are to be sent, and who may send.

    Everything that changes something asks first for the lease of its caller, in the same transaction: two
    services on one database never send the same by turns.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def lead(self, owner: str, now: float, seconds: float) -> bool:
        """Take the lease, or renew it; False if somebody else has it."""
        free = (leases.c.leased_by == owner) | (leases.c.leased_until <= now)
        values = {"leased_by": owner, "leased_until": now + seconds}
        statement = (
            update(leases)
            .where(leases.c.name == _LEASE, free)
            .values(values)
            .returning(leases.c.name)
        )
        try:
            async with self._engine.begin() as connection:
                if (await connection.execute(statement)).first() is not None:
                    return True
                there = select(leases.c.name).where(leases.c.name == _LEASE)
                if (await connection.execute(there)).first() is None:
                    await connection.execute(insert(leases).values(name=_LEASE, **values))
                    return True
        except IntegrityError:  # somebody made the row at the same moment
            pass
        return False

    async def step_down(self, owner: str) -> None:
        """Give the lease back, so that another need not wait for its end."""
        async with writing(self._engine) as connection:
            await connection.execute(
                delete(leases).where(leases.c.name == _LEASE, leases.c.leased_by == owner)
            )

    async def _still_leads(self, connection: AsyncConnection, owner: str, now: float) -> None:
        """Raise LeaseLost unless the lease is this owner's; it cannot change until the commit."""
        mine = (leases.c.name == _LEASE, leases.c.leased_by == owner, leases.c.leased_until > now)
        kept = update(leases).where(*mine).values(leased_by=owner).returning(leases.c.name)
        if (await connection.execute(kept)).first() is None:
            raise LeaseLost("another service looks after the alerts now")

    async def all(self) -> dict[str, str]:
        """Every document, by the id of its alert."""
        async with reading(self._engine) as connection:
            rows = await connection.execute(select(alerts).order_by(alerts.c.id))
            return {row.id: row.document for row in rows}

    async def save(
        self,
        owner: str,
        now: float,
        *,
        documents: Mapping[str, str],
        forgotten: Sequence[str] = (),
        notices: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Write everything or nothing; LeaseLost if somebody else leads now."""
        old = [*documents, *forgotten]
        async with writing(self._engine) as connection:
            await self._still_leads(connection, owner, now)
            for start in range(0, len(old), _CHUNK):
                await connection.execute(
                    delete(alerts).where(alerts.c.id.in_(old[start : start + _CHUNK]))
                )
            if documents:
                rows = [{"id": each, "document": text} for each, text in documents.items()]
                await connection.execute(insert(alerts), rows)
            if notices:
                waiting = [
                    {"target": target, "document": text, "created_at": now, "due_at": now}
                    for target, text in notices
                ]
                await connection.execute(insert(alert_notices), waiting)

    async def next_notices(self, now: float) -> tuple[tuple[int, str, str, float, int], ...]:
        """The first that waits of each target, if its time has come."""
        waits = alert_notices.c.ended_at.is_(None)
        first = select(func.min(alert_notices.c.number)).where(waits)
        query = select(alert_notices).where(
            alert_notices.c.number.in_(first.group_by(alert_notices.c.target)),
            alert_notices.c.due_at <= now,
        )
        async with reading(self._engine) as connection:
            return tuple(
                (row.number, row.target, row.document, row.created_at, row.attempts)
                for row in await connection.execute(query)
            )

    async def ended(self, owner: str, number: int, now: float, error: str = "") -> None:
        """It was taken, or is given up with this error; LeaseLost if somebody else leads now."""
        async with writing(self._engine) as connection:
            await self._still_leads(connection, owner, now)
            await connection.execute(
                update(alert_notices)
                .where(alert_notices.c.number == number)
                .values(ended_at=now, error=error or None)
            )

    async def failed(self, owner: str, number: int, now: float, due_at: float, error: str) -> None:
        """It was not taken; to be tried again then. LeaseLost if somebody else leads now."""
        async with writing(self._engine) as connection:
            await self._still_leads(connection, owner, now)
            await connection.execute(
                update(alert_notices)
                .where(alert_notices.c.number == number)
                .values(attempts=alert_notices.c.attempts + 1, due_at=due_at, error=error)
            )

    async def outboxes(self) -> dict[str, tuple[int, float | None, str]]:
        """What waits and what was last sent, by target."""
        table = alert_notices.c
        waiting = func.count().filter(table.ended_at.is_(None))
        sent = func.max(table.ended_at).filter(table.error.is_(None))
        last = func.max(table.number).filter(table.error.is_not(None))
        query = select(table.target, waiting, sent, last).group_by(table.target)
        async with reading(self._engine) as connection:
            rows = (await connection.execute(query)).all()
            wanted = [row[3] for row in rows if row[3] is not None]
            said = await connection.execute(
                select(table.number, table.error, table.ended_at).where(table.number.in_(wanted))
            )
            errors = {row.number: (row.error, row.ended_at) for row in said}
        found = {}
        for target, count, sent_at, number in rows:
            error, ended_at = errors.get(number, ("", None))
            is_over = sent_at is not None and ended_at is not None and ended_at < sent_at
            found[target] = (count, sent_at, "" if is_over else error)
        return found

    async def forget(self, before: float) -> None:
        """Delete notices that ended before then."""
        async with writing(self._engine) as connection:
            await connection.execute(delete(alert_notices).where(alert_notices.c.ended_at < before))
