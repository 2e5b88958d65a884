"""The raffle's database: users, what was dropped, and raffles, each created, joined, drawn once, read."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from random import SystemRandom
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    Column,
    DateTime,
    ForeignKey,
    LargeBinary,
    MetaData,
    Table,
    Text,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hopback.store import Transaction
    from hopback.systems.database import Database

METADATA = MetaData()

users: Table = Table(
    "users",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("email", Text, nullable=False, unique=True),
    Column("inserted_at", DateTime(timezone=True)),
    Column("updated_at", DateTime(timezone=True)),
)
"""As Ecto names the times of a row. They may be empty: tables of earlier versions did not have them."""

raffles: Table = Table(
    "raffles",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("drawn_at", DateTime(timezone=True)),
)

entries: Table = Table(
    "raffle_entries",
    METADATA,
    Column("raffle_id", Text, ForeignKey("raffles.id"), primary_key=True),
    Column("user_id", Text, ForeignKey("users.id"), primary_key=True),
    Column("won_at", DateTime(timezone=True)),
)

dropped: Table = Table(
    "raffle_dropped",
    METADATA,
    Column("message_id", Text, primary_key=True),
    Column("dropped_at", DateTime(timezone=True), nullable=False),
    Column("reason", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
"""The audit of the dead-letter consumer: messages that are no users, with their content."""


_EMAIL = re.compile(r"[^@\s]{1,64}@[^@\s]{1,189}\Z")


class InvalidUser(ValueError):
    """It is no user, and never will be."""


# Lower case, because the name is what the document writes into `x-retry-reason`.
class db_error(Exception):  # noqa: N801
    """The database failed: nobody's row is to blame."""


class data_error(Exception):  # noqa: N801
    """The database refused a row of the batch."""


@dataclass(frozen=True, slots=True)
class User:
    """A user as the message carries it."""

    id: str
    name: str
    email: str

    def validated(self) -> User:
        """Itself; InvalidUser says what is wrong."""
        try:
            is_ours = uuid.UUID(self.id).version == 4 and str(uuid.UUID(self.id)) == self.id
        except ValueError:
            is_ours = False
        if not is_ours:
            raise InvalidUser("id: expected a UUID of version 4")
        if not (1 <= len(self.name.strip()) <= 200 and self.name.isprintable()):
            raise InvalidUser("name: expected 1 to 200 characters")
        if not (_EMAIL.match(self.email) and self.email.isprintable()):
            raise InvalidUser("email: expected something like joao@email.com")
        return self


async def insert_users(database: Database, batch: Sequence[User]) -> None:
    """Insert all of them by one statement, once each: who is there already stays as it is.

    Raises `data_error` if a row is to blame (its e-mail is another user's), else `db_error`.
    """
    dialect = postgresql if database.engine.dialect.name == "postgresql" else sqlite
    # One row for each id: a redelivery may share a batch with the message it repeats.
    now = datetime.now(UTC)
    times = {"inserted_at": now, "updated_at": now}
    rows = {
        user.id: {"id": user.id, "name": user.name, "email": user.email, **times} for user in batch
    }
    statement = dialect.insert(users).values(list(rows.values()))
    try:
        async with database.transaction() as tx:
            await tx.execute(statement.on_conflict_do_nothing(index_elements=["id"]))
    except (IntegrityError, DataError) as error:
        raise data_error(_first_line(error)) from None
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        raise db_error(_first_line(error)) from None


async def find_user(database: Database, user_id: str) -> Mapping[str, Any] | None:
    """The user, or None if the consumer has not inserted it (yet)."""
    row = await database.row(select(users).where(users.c.id == user_id))
    if row is None:
        return None
    shown = {name: row[name] for name in ("id", "name", "email")}
    return {**shown, "insertedAt": moment(row["inserted_at"])}


def moment(stored: datetime | None) -> str | None:
    """A time as clients get it, always with its zone; SQLite keeps none, and what we store is UTC."""
    if stored is None:
        return None
    return (stored if stored.tzinfo else stored.replace(tzinfo=UTC)).isoformat()


def _first_line(error: Exception) -> str:
    """What the driver said: without the statement, and without the values of rows."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return str(cause).strip().partition("\n")[0] or type(error).__name__


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
