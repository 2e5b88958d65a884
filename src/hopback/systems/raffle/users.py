"""Users: what makes one, and how many of them are inserted by one statement."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError

from hopback.systems.raffle.tables import users as users_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hopback.systems.database import Database

__all__ = ["InvalidUser", "User", "data_error", "db_error", "find_user", "insert_users", "moment"]

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
        if not _is_uuid4(self.id):
            raise InvalidUser("id: expected a UUID of version 4")
        if not (1 <= len(self.name.strip()) <= 200 and self.name.isprintable()):
            raise InvalidUser("name: expected 1 to 200 characters")
        if not (_EMAIL.match(self.email) and self.email.isprintable()):
            raise InvalidUser("email: expected something like joao@email.com")
        return self


def _is_uuid4(text: str) -> bool:
    try:
        found = uuid.UUID(text)
    except ValueError:
        return False
    return found.version == 4 and str(found) == text


async def insert_users(database: Database, users: Sequence[User]) -> None:
    """Insert all of them by one statement, once each: who is there already stays as it is.

    Raises `data_error` if a row is to blame (its e-mail is another user's), else `db_error`.
    """
    dialect = postgresql if database.engine.dialect.name == "postgresql" else sqlite
    # One row for each id: a redelivery may share a batch with the message it repeats.
    now = datetime.now(UTC)
    times = {"inserted_at": now, "updated_at": now}
    rows = {
        user.id: {"id": user.id, "name": user.name, "email": user.email, **times} for user in users
    }
    statement = dialect.insert(users_table).values(list(rows.values()))
    try:
        async with database.transaction() as tx:
            await tx.execute(statement.on_conflict_do_nothing(index_elements=["id"]))
    except (IntegrityError, DataError) as error:
        raise data_error(_first_line(error)) from None
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        raise db_error(_first_line(error)) from None


async def find_user(database: Database, user_id: str) -> Mapping[str, Any] | None:
    """The user, or None if the consumer has not inserted it (yet)."""
    row = await database.row(select(users_table).where(users_table.c.id == user_id))
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
