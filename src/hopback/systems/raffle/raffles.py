"""The raffle's database: users, dropped messages, and raffles that users join and that are drawn once."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from random import SystemRandom
from typing import Any

from sqlalchemy import (
    Column,
    DateTime,
    ForeignKey,
    LargeBinary,
    MetaData,
    Table,
    Text,
    Uuid,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError

from hopback.store import Database, Transaction
from hopback.systems.database import find_row, find_rows
from hopback.systems.language import in_language
from hopback.systems.web import RequestRefused

METADATA = MetaData()
_ID = Uuid(as_uuid=False)
"""`uuid` on PostgreSQL, as Ecto's binary ids. SQLite stores text."""

users: Table = Table(
    "users",
    METADATA,
    Column("id", _ID, primary_key=True),
    Column("name", Text, nullable=False),
    Column("email", Text, nullable=False, unique=True),
    Column("inserted_at", DateTime(timezone=True)),
    Column("updated_at", DateTime(timezone=True)),
)
"""The table may exist already. `inserted_at` and `updated_at` are Ecto's names."""

raffles: Table = Table(
    "raffles",
    METADATA,
    Column("id", _ID, primary_key=True),
    Column("name", Text, nullable=False),
    Column("drawn_at", DateTime(timezone=True)),
)

entries: Table = Table(
    "raffle_entries",
    METADATA,
    Column("raffle_id", _ID, ForeignKey("raffles.id"), primary_key=True),
    Column("user_id", _ID, ForeignKey("users.id"), primary_key=True),
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
"""The audit of the dead-letter consumer: invalid messages with their content."""


_EMAIL = re.compile(r"[^@\s]{1,64}@[^@\s]{1,189}\Z")


class InvalidUser(ValueError):
    """A message that is not a user. A retry cannot help."""


# Lower case, because the document writes these names into `x-retry-reason`.
class db_error(Exception):  # noqa: N801
    """The database failed. The rows are not the cause."""


class data_error(Exception):  # noqa: N801
    """The database refused a row of the batch."""


@dataclass(frozen=True, slots=True)
class User:
    """The user in a message."""

    id: str
    name: str
    email: str

    def validate(self) -> None:
        """Raise InvalidUser with the wrong field, if any."""
        found = read_id(self.id)
        if found != self.id or uuid.UUID(found).version != 4:
            raise InvalidUser(
                in_language("id: expected a UUID of version 4", "id: esperado um UUID da versão 4")
            )
        if not (1 <= len(self.name.strip()) <= 200 and self.name.isprintable()):
            raise InvalidUser(
                in_language(
                    "name: expected 1 to 200 characters", "name: esperados de 1 a 200 caracteres"
                )
            )
        if not (_EMAIL.match(self.email) and self.email.isprintable()):
            raise InvalidUser(
                in_language(
                    "email: expected an address like joao@email.com",
                    "email: esperado um endereço como joao@email.com",
                )
            )


def read_id(text: str) -> str | None:
    """Return the id in its usual form, or None for other text."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        return None


async def insert_users(database: Database, batch: Sequence[User]) -> None:
    """Insert users by one statement. Existing users are not changed.

    Raises `data_error` if a row is refused (its e-mail belongs to another user), otherwise `db_error`.
    """
    # One row for each id, because a batch may contain a message twice.
    now = datetime.now(UTC)
    times = {"inserted_at": now, "updated_at": now}
    rows = {
        user.id: {"id": user.id, "name": user.name, "email": user.email, **times} for user in batch
    }
    try:
        async with database.transaction() as tx:
            new = tx.insert(users).values(list(rows.values()))
            await tx.execute(new.on_conflict_do_nothing(index_elements=["id"]))
    except (IntegrityError, DataError) as error:
        raise data_error(_first_line(error)) from None
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        raise db_error(_first_line(error)) from None


async def find_user(database: Database, user_id: str) -> dict[str, Any]:
    """Return a user. Raises RequestRefused if the consumer has not inserted it yet."""
    known = read_id(user_id)
    row = known and await find_row(database, select(users).where(users.c.id == known))
    if not row:
        raise _no_such_user()
    shown = {name: row[name] for name in ("id", "name", "email")}
    return {**shown, "insertedAt": format_time(row["inserted_at"])}


def format_time(stored: datetime | None) -> str | None:
    """Return a time with its zone. SQLite stores none, and all stored times are UTC."""
    if stored is None:
        return None
    return (stored if stored.tzinfo else stored.replace(tzinfo=UTC)).isoformat()


def _first_line(error: Exception) -> str:
    """Return the text of the driver, without the statement and the values of rows."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return str(cause).strip().partition("\n")[0] or type(error).__name__


_FAIR = SystemRandom()


class Raffles:
    """The raffles of a database. `choose` selects the winners."""

    def __init__(
        self,
        database: Database,
        choose: Callable[[Sequence[str], int], list[str]] = _FAIR.sample,
    ) -> None:
        self._database = database
        self._choose = choose

    async def create(self, name: str) -> str:
        """Create a raffle and return its id."""
        raffle_id = str(uuid.uuid4())
        async with self._database.transaction() as tx:
            await tx.execute(insert(raffles).values(id=raffle_id, name=name))
        return raffle_id

    async def join(self, raffle_id: str, user_id: str) -> None:
        """Enter a user once. Raises RequestRefused with the reason if that is impossible."""
        async with self._database.transaction() as tx:
            await _lock_open_raffle(tx, raffle_id)
            known = read_id(user_id)
            if (
                known is None
                or (await tx.execute(select(users.c.id).where(users.c.id == known))).first() is None
            ):
                raise _no_such_user()
            entry = tx.insert(entries).values(raffle_id=raffle_id, user_id=known)
            await tx.execute(entry.on_conflict_do_nothing())

    async def draw(self, raffle_id: str, winners: int) -> None:
        """Draw the winners once. Raises RequestRefused with the reason if that is impossible."""
        async with self._database.transaction() as tx:
            await _lock_open_raffle(tx, raffle_id)
            joined = select(entries.c.user_id).where(entries.c.raffle_id == raffle_id)
            found = list((await tx.execute(joined.order_by(entries.c.user_id))).scalars())
            if len(found) < winners:
                raise RequestRefused(
                    f"winners: expected at most {len(found)}, the number of users who joined",
                    f"winners: esperado no máximo {len(found)}, o número de participantes",
                    status=409,
                )
            now = datetime.now(UTC)
            mine = (
                entries.c.raffle_id == raffle_id,
                entries.c.user_id.in_(self._choose(found, winners)),
            )
            await tx.execute(update(entries).where(*mine).values(won_at=now))
            await tx.execute(update(raffles).where(raffles.c.id == raffle_id).values(drawn_at=now))

    async def result(self, raffle_id: str) -> Mapping[str, Any]:
        """Return the raffle with its number of entries, the time of the draw and the winners."""
        mine = entries.c.raffle_id == raffle_id
        known = read_id(raffle_id)
        raffle = known and await find_row(
            self._database, select(raffles).where(raffles.c.id == known)
        )
        if not raffle:
            raise _no_such_raffle()
        count = await find_row(self._database, select(func.count().label("all")).where(mine))
        won = (
            select(users.c.id, users.c.name)
            .join(entries)
            .where(mine, entries.c.won_at.is_not(None))
        )
        return {
            "id": raffle_id,
            "name": raffle["name"],
            "entries": count["all"] if count else 0,
            "drawnAt": format_time(raffle["drawn_at"]),
            "winners": await find_rows(self._database, won.order_by(users.c.id)),
        }


async def _lock_open_raffle(tx: Transaction, raffle_id: str) -> None:
    """Lock the row of a raffle that is not drawn yet. SQLite has a single writer at a time."""
    if read_id(raffle_id) is None:
        raise _no_such_raffle()
    query = select(raffles.c.drawn_at).where(raffles.c.id == raffle_id).with_for_update()
    row = (await tx.execute(query)).first()
    if row is None:
        raise _no_such_raffle()
    if row.drawn_at is not None:
        raise RequestRefused(
            "the raffle is already drawn", "o sorteio já foi realizado", status=409
        )


def _no_such_raffle() -> RequestRefused:
    return RequestRefused("no such raffle", "sorteio inexistente", status=404)


def _no_such_user() -> RequestRefused:
    return RequestRefused(
        "no such user yet: users are inserted within a second or two",
        "usuário ainda inexistente: usuários são inseridos em um ou dois segundos",
        status=404,
    )
