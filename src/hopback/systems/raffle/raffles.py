"""The raffle's database: users, dropped messages, and raffles that users join and that are drawn once."""

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
"""`uuid` on PostgreSQL, as Ecto's binary ids. SQLite stores text."""

users: sa.Table = sa.Table(
    "users",
    METADATA,
    sa.Column("id", _ID, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("email", sa.Text, nullable=False, unique=True),
    sa.Column("inserted_at", sa.DateTime(timezone=True)),
    sa.Column("updated_at", sa.DateTime(timezone=True)),
)
"""The table may already exist. `inserted_at` and `updated_at` are Ecto's names."""

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
"""The audit of the dead-letter consumer: invalid messages with their content."""


_EMAIL = re.compile(r"[^@\s]{1,64}@[^@\s]{1,189}\Z")


class InvalidUser(ValueError):
    """A message that is not a user. A retry cannot help."""

    def __init__(self, english: str, portuguese: str = "") -> None:
        super().__init__(in_language(english, portuguese or english))


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
    """Return the id in its usual form, or None for other text."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        return None


async def insert_users(database: Database, batch: Sequence[User]) -> None:
    """Insert users in a single transaction, with a statement for every 1000 users. Existing users are not
    changed.

    Raises `data_error` if a row is refused (its e-mail belongs to another user), otherwise `db_error`.
    """
    # One row for each id, because a batch may contain a message twice.
    now = datetime.now(UTC)
    times = {"inserted_at": now, "updated_at": now}
    rows = {user.id: {**asdict(user), **times} for user in batch}
    try:
        async with database.transaction() as tx:
            # With RETURNING, SQLAlchemy sends 1000 rows in one statement, which it compiles once.
            new = tx.insert(users).on_conflict_do_nothing(index_elements=["id"])
            await tx.execute(new.returning(users.c.id), list(rows.values()))
    except (IntegrityError, DataError) as error:
        raise data_error(_first_line(error)) from None
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        raise db_error(_first_line(error)) from None


def _first_line(error: Exception) -> str:
    """Return the text of the driver, without the statement and the values of rows."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return str(cause).strip().partition("\n")[0] or type(error).__name__


async def show_user(tx: Transaction, user_id: str) -> dict[str, Any]:
    """Return a user. Raises RequestRefused if the consumer has not inserted it yet."""
    row = await _find_user(tx, user_id)
    shown = {name: row[name] for name in ("id", "name", "email")}
    return {**shown, "insertedAt": _format_time(row["inserted_at"])}


async def create_raffle(tx: Transaction, name: str) -> dict[str, Any]:
    """Create a raffle and return its id."""
    raffle_id = str(uuid.uuid4())
    await tx.execute(sa.insert(raffles).values(id=raffle_id, name=name))
    return {"id": raffle_id}


async def show_raffle(tx: Transaction, raffle_id: str) -> dict[str, Any]:
    """Return the raffle with its number of entries, the time of the draw and the winners."""
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
    """Enter a user once. Raises RequestRefused with the reason if that is impossible."""
    raffle = await _lock_open_raffle(tx, raffle_id)
    user = await _find_user(tx, user_id)
    entry = tx.insert(entries).values(raffle_id=raffle["id"], user_id=user["id"])
    await tx.execute(entry.on_conflict_do_nothing())


async def draw_raffle(tx: Transaction, raffle_id: str, winners: int) -> None:
    """Draw the winners once. Raises RequestRefused with the reason if that is impossible."""
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
    """Lock the row of a raffle that is not drawn yet. SQLite has a single writer at a time."""
    raffle = await _find_raffle(tx, raffle_id, lock=True)
    if raffle["drawn_at"] is not None:
        raise RequestRefused(
            "the raffle is already drawn", "o sorteio já foi realizado", status=409
        )
    return raffle


def _format_time(stored: datetime | None) -> str | None:
    """Return a time with its zone. SQLite stores none, and all stored times are UTC."""
    if stored is None:
        return None
    return (stored if stored.tzinfo else stored.replace(tzinfo=UTC)).isoformat()
