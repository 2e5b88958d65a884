"""The database of the raffle. It contains users, dropped messages, and raffles that users can join."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from random import SystemRandom
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError

from hopback.store import Database, Transaction
from hopback.systems.language import in_language
from hopback.systems.web import RequestRefused

METADATA = sa.MetaData()
_ID = sa.Uuid(as_uuid=False)
"""The type `uuid` on PostgreSQL, like the binary ids of Ecto, and text on SQLite."""

users: sa.Table = sa.Table(
    "users",
    METADATA,
    sa.Column("id", _ID, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("email", sa.Text, nullable=False, unique=True),
    sa.Column("inserted_at", sa.DateTime(timezone=True)),
    sa.Column("updated_at", sa.DateTime(timezone=True)),
)
"""This table may have been created by Ecto, which is why the columns are named `inserted_at` and
`updated_at`.
"""

raffles: sa.Table = sa.Table(
    "raffles",
    METADATA,
    sa.Column("id", _ID, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("drawn_at", sa.DateTime(timezone=True)),
)

entries: sa.Table = sa.Table(
    "raffle_entries",
    METADATA,
    sa.Column("raffle_id", _ID, sa.ForeignKey("raffles.id"), primary_key=True),
    sa.Column("user_id", _ID, sa.ForeignKey("users.id"), primary_key=True),
    sa.Column("won_at", sa.DateTime(timezone=True)),
)

dropped: sa.Table = sa.Table(
    "raffle_dropped",
    METADATA,
    sa.Column("message_id", sa.Text, primary_key=True),
    sa.Column("dropped_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)
"""Invalid messages with their content, recorded by the dead-letter consumer."""


_EMAIL = re.compile(r"[^@\s]{1,64}@[^@\s]{1,189}\Z")


class InvalidUser(ValueError):
    """A message does not contain a valid user. A retry would fail as well."""

    def __init__(self, english: str, portuguese: str = "") -> None:
        super().__init__(in_language(english, portuguese or english))


# The names are in lower case because the document writes them to `x-retry-reason`.
class db_error(Exception):  # noqa: N801
    """The database is not available. The rows are not the cause."""


class data_error(Exception):  # noqa: N801
    """The database has refused a row of the batch."""


@dataclass(frozen=True, slots=True)
class User:
    """The content of a message."""

    id: str
    name: str
    email: str

    def validate(self) -> None:
        """Raise InvalidUser if a field is invalid."""
        found = read_id(self.id)
        if found != self.id or uuid.UUID(found).version != 4:
            raise InvalidUser(
                "id: expected a UUID of version 4", "id: esperado um UUID da versão 4"
            )
        if not (1 <= len(self.name.strip()) <= 200 and self.name.isprintable()):
            raise InvalidUser(
                "name: expected 1 to 200 characters", "name: esperados de 1 a 200 caracteres"
            )
        if not (_EMAIL.match(self.email) and self.email.isprintable()):
            raise InvalidUser(
                "email: expected an address like joao@email.com",
                "email: esperado um endereço como joao@email.com",
            )


def read_id(text: str) -> str | None:
    """Return a UUID in its usual form, or None if the text is not a UUID."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        return None


async def insert_users(database: Database, batch: Sequence[User]) -> None:
    """Insert users in one transaction with up to 1000 rows per statement. Users that already exist
    are not changed.

    Raises `data_error` if a row is refused because its e-mail address belongs to another user.
    Raises `db_error` for all other errors.
    """
    # A batch may contain the same message twice, so use one row per id.
    now = datetime.now(UTC)
    times = {"inserted_at": now, "updated_at": now}
    rows = {user.id: {**asdict(user), **times} for user in batch}
    try:
        async with database.transaction() as tx:
            # With RETURNING, SQLAlchemy compiles the statement once and inserts 1000 rows with it.
            new = tx.insert(users).on_conflict_do_nothing(index_elements=["id"])
            await tx.execute(new.returning(users.c.id), list(rows.values()))
    except (IntegrityError, DataError) as error:
        raise data_error(_first_line(error)) from None
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        raise db_error(_first_line(error)) from None


def _first_line(error: Exception) -> str:
    """Return the error message of the driver. The statement and the values are omitted."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return str(cause).strip().partition("\n")[0] or type(error).__name__


async def show_user(tx: Transaction, user_id: str) -> dict[str, Any]:
    """Return a user. Raises RequestRefused if it has not been inserted yet."""
    row = await _find_user(tx, user_id)
    shown = {name: row[name] for name in ("id", "name", "email")}
    return {**shown, "insertedAt": _format_time(row["inserted_at"])}


async def create_raffle(tx: Transaction, name: str) -> dict[str, Any]:
    raffle_id = str(uuid.uuid4())
    await tx.execute(sa.insert(raffles).values(id=raffle_id, name=name))
    return {"id": raffle_id}


async def show_raffle(tx: Transaction, raffle_id: str) -> dict[str, Any]:
    """Return a raffle with the number of its entries, the time of the draw and the winners."""
    raffle = await _find_raffle(tx, raffle_id)
    mine = entries.c.raffle_id == raffle["id"]
    won = (
        sa.select(users.c.id, users.c.name).join(entries).where(mine, entries.c.won_at.is_not(None))
    )
    return {
        "id": raffle["id"],
        "name": raffle["name"],
        "entries": (await tx.execute(sa.select(sa.func.count()).where(mine))).scalar(),
        "drawnAt": _format_time(raffle["drawn_at"]),
        "winners": [dict(row) for row in (await tx.execute(won.order_by(users.c.id))).mappings()],
    }


async def join_raffle(tx: Transaction, raffle_id: str, user_id: str) -> None:
    """Add a user to a raffle. This has no effect if the user has already joined. Raises
    RequestRefused if there is no such user or raffle, or if it has already been drawn.
    """
    raffle = await _lock_open_raffle(tx, raffle_id)
    user = await _find_user(tx, user_id)
    entry = tx.insert(entries).values(raffle_id=raffle["id"], user_id=user["id"])
    await tx.execute(entry.on_conflict_do_nothing())


async def draw_raffle(tx: Transaction, raffle_id: str, winners: int) -> None:
    """Draw the winners. Raises RequestRefused if the raffle has already been drawn or has too few
    entries.
    """
    raffle = await _lock_open_raffle(tx, raffle_id)
    mine = entries.c.raffle_id == raffle["id"]
    joined = sa.select(entries.c.user_id).where(mine).order_by(entries.c.user_id)
    found = list((await tx.execute(joined)).scalars())
    if len(found) < winners:
        raise RequestRefused(
            f"winners: expected at most {len(found)}, the number of users who joined",
            f"winners: esperado no máximo {len(found)}, o número de participantes",
            status=409,
        )
    now, chosen = datetime.now(UTC), entries.c.user_id.in_(SystemRandom().sample(found, winners))
    await tx.execute(sa.update(entries).where(mine, chosen).values(won_at=now))
    await tx.execute(sa.update(raffles).where(raffles.c.id == raffle["id"]).values(drawn_at=now))


async def _find_user(tx: Transaction, user_id: str) -> sa.RowMapping:
    known = sa.select(users).where(users.c.id == read_id(user_id))
    if read_id(user_id) and (row := (await tx.execute(known)).mappings().first()):
        return row
    raise RequestRefused(
        "no such user yet: users are inserted within a second or two",
        "usuário ainda inexistente: usuários são inseridos em um ou dois segundos",
        status=404,
    )


async def _find_raffle(tx: Transaction, raffle_id: str, *, lock: bool = False) -> sa.RowMapping:
    known = sa.select(raffles).where(raffles.c.id == read_id(raffle_id))
    query = known.with_for_update() if lock else known
    if read_id(raffle_id) and (row := (await tx.execute(query)).mappings().first()):
        return row
    raise RequestRefused("no such raffle", "sorteio inexistente", status=404)


async def _lock_open_raffle(tx: Transaction, raffle_id: str) -> sa.RowMapping:
    """Return a raffle that has not been drawn and lock its row. SQLite needs no lock, because it
    only allows one writer at a time.
    """
    raffle = await _find_raffle(tx, raffle_id, lock=True)
    if raffle["drawn_at"] is not None:
        raise RequestRefused(
            "the raffle is already drawn", "o sorteio já foi realizado", status=409
        )
    return raffle


def _format_time(stored: datetime | None) -> str | None:
    """Format a time with its zone. SQLite does not store zones, but all times are in UTC."""
    if stored is None:
        return None
    return (stored if stored.tzinfo else stored.replace(tzinfo=UTC)).isoformat()
