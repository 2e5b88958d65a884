"""Raffles: create one, join it, draw it once, read the result."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from random import SystemRandom
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from hopback.systems.raffle.tables import entries, raffles, users
from hopback.systems.raffle.users import moment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hopback.store import Transaction
    from hopback.systems.database import Database

__all__ = ["Raffles"]

_FAIR = SystemRandom()


class Raffles:
    """The raffles of a database; `choose` draws so many of the users who joined."""

    def __init__(
        self,
        database: Database,
        choose: Callable[[Sequence[str], int], list[str]] = _FAIR.sample,
    ) -> None:
        self._database = database
        self._choose = choose

    async def create(self, name: str) -> str:
        """A new raffle; its id."""
        raffle_id = str(uuid.uuid4())
        async with self._database.transaction() as tx:
            await tx.execute(insert(raffles).values(id=raffle_id, name=name))
        return raffle_id

    async def join(self, raffle_id: str, user_id: str) -> str | None:
        """Enter a user, once; what keeps it from joining, or None."""
        dialect = postgresql if self._database.engine.dialect.name == "postgresql" else sqlite
        async with self._database.transaction() as tx:
            raffle = await _locked(tx, raffle_id)
            if raffle is None:
                return "no such raffle"
            if raffle["drawn_at"] is not None:
                return "the raffle is drawn already"
            if (await tx.execute(select(users.c.id).where(users.c.id == user_id))).first() is None:
                return "no such user (yet): users are inserted within a second or two"
            entry = dialect.insert(entries).values(raffle_id=raffle_id, user_id=user_id)
            await tx.execute(entry.on_conflict_do_nothing())
        return None

    async def draw(self, raffle_id: str, winners: int) -> str | None:
        """Draw the winners, once and for all; what keeps it from being drawn, or None."""
        async with self._database.transaction() as tx:
            raffle = await _locked(tx, raffle_id)
            if raffle is None:
                return "no such raffle"
            if raffle["drawn_at"] is not None:
                return "the raffle is drawn already"
            joined = select(entries.c.user_id).where(entries.c.raffle_id == raffle_id)
            found = list((await tx.execute(joined.order_by(entries.c.user_id))).scalars())
            if len(found) < winners:
                return f"{winners} winners were asked for, {len(found)} users have joined"
            now = datetime.now(UTC)
            mine = (
                entries.c.raffle_id == raffle_id,
                entries.c.user_id.in_(self._choose(found, winners)),
            )
            await tx.execute(update(entries).where(*mine).values(won_at=now))
            await tx.execute(update(raffles).where(raffles.c.id == raffle_id).values(drawn_at=now))
        return None

    async def result(self, raffle_id: str) -> Mapping[str, Any] | None:
        """The raffle: how many joined, when it was drawn and who won; None if there is none."""
        mine = entries.c.raffle_id == raffle_id
        raffle = await self._database.row(select(raffles).where(raffles.c.id == raffle_id))
        if raffle is None:
            return None
        count = await self._database.row(select(func.count().label("all")).where(mine))
        won = (
            select(users.c.id, users.c.name)
            .join(entries)
            .where(mine, entries.c.won_at.is_not(None))
        )
        return {
            "id": raffle_id,
            "name": raffle["name"],
            "entries": count["all"] if count else 0,
            "drawnAt": moment(raffle["drawn_at"]),
            "winners": [dict(row) for row in await self._database.rows(won.order_by(users.c.id))],
        }


async def _locked(tx: Transaction, raffle_id: str) -> Mapping[str, Any] | None:
    """The raffle's row, for nobody else to change meanwhile; SQLite has one writer anyway."""
    found = await tx.execute(select(raffles).where(raffles.c.id == raffle_id).with_for_update())
    row = found.mappings().first()
    return None if row is None else dict(row)
