"""Inbox and outbox: a handler's changes, the processed mark and its events commit in one transaction.

The inbox identifies a message by its id, by a header, or by a function of the delivery.

`Outbox` is the side of the relay: it leases slots, reads pending messages and deletes confirmed ones. The
properties of a message are stored as JSON and are equal in value and type when they are read back.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import zlib
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from sqlalchemy import Executable, bindparam, delete, exists, func, select, text, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError

from hopback.clock import Clock, SystemClock
from hopback.durations import Duration, read_seconds
from hopback.errors import HopbackError
from hopback.headers import identity, without_unread
from hopback.headers.names import DELAY
from hopback.headers.typed_json import properties_from_json, properties_to_json
from hopback.message import Delivery, Message, Properties, require_message
from hopback.observe.events import reporter
from hopback.policy.delays import delay, delay_until_due
from hopback.policy.reading import origin_of
from hopback.sql.versions import SLOTS
from hopback.store.database import inbox, outbox, outbox_slots
from hopback.text import one_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from sqlalchemy import Table, TextClause
    from sqlalchemy.engine import CursorResult
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine


_LOG = logging.getLogger("hopback.store")
_written = 0
_LONGEST = 255  # characters of a key, as of a message id. A longer key is replaced by its hash.
_ENDED = "hopback.delay"
"""Marks a delayed message that was sent or cancelled, whichever was first."""
_SENT = "hopback.delay.sent"
"""Marks a delayed message that was sent or is being sent."""
_PLACEHOLDER = re.compile(r"%\(\w+\)s")
_TAKEN = (
    "sha256-",
    "int ",
    "bytes ",
)  # prefixes of derived keys. A text with one of them is hashed.


class NoInboxKey(HopbackError):
    """A message lacks the key that identifies it in the inbox."""

    remedy: ClassVar[str] = "Let producers send the key, or specify another one for the inbox."


def inbox_key(delivery: Delivery, key: str | Callable[[Delivery], str] | None) -> str:
    """Return the inbox key of a delivery: by default its message id, or a hash without one.

    The hash covers the body, the properties, the producer's headers, and the exchange and routing key of the
    original publish. A text as `key` is the name of a header whose value is a text, bytes or a whole number.
    Raises NoInboxKey without such a header. A key that is long or not printable is replaced by its hash.
    """
    if key is None:
        return identity(delivery, origin=origin_of(delivery))
    found = _header(delivery, key) if isinstance(key, str) else key(delivery)
    if not isinstance(found, str):
        # A number and its text are different values for a producer.
        return f"int {found:d}" if isinstance(found, int) else f"bytes {_hash(found)}"
    if not found:
        raise NoInboxKey("expected a key of the delivery, got an empty one")
    if len(found) > _LONGEST or not found.isprintable() or found.startswith(_TAKEN):
        return f"sha256-{_hash(found.encode('utf-8', 'surrogatepass'))}"
    return found


def _header(delivery: Delivery, name: str) -> str | bytes | int:
    value = delivery.properties.headers.get(name)
    if isinstance(value, bool) or not isinstance(value, str | bytes | int) or value in ("", b""):
        raise NoInboxKey(
            f"expected header {name!r} with text, bytes or a whole number, got {type(value).__name__}"
        )
    return value


def _hash(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


@dataclass(frozen=True, slots=True)
class _Statement:
    """An SQL statement with named placeholders, for SQLAlchemy and for psycopg."""

    text: TextClause
    pyformat: str


def _statement(sql: str) -> _Statement:
    return _Statement(text(sql), re.sub(r":(\w+)", r"%(\1)s", sql))


def _insert(table: Table, columns: Iterable[str], then: str = "") -> str:
    # The names are quoted because "key" is a word of SQL.
    names = list(columns)
    quoted = ", ".join(f'"{name}"' for name in names)
    values = ", ".join(f":{name}" for name in names)
    return f"INSERT INTO {table.name} ({quoted}) VALUES ({values}){then}"  # noqa: S608 - constants


# RETURNING reports an inserted row. Not every driver reports a row count.
_MARK = _statement(
    _insert(inbox, inbox.columns.keys(), " ON CONFLICT DO NOTHING RETURNING message_id")
)
_IS_MARKED = _statement(
    f"SELECT message_id FROM {inbox.name}"  # noqa: S608 - constants
    " WHERE consumer = :consumer AND message_id = :message_id"
)
_WRITTEN = (
    "slot",
    "key",
    "message_id",
    "exchange",
    "routing_key",
    "body",
    "properties",
    "created_at",
)
"""The columns of a new outbox row. The others have defaults."""
_SEND = _statement(_insert(outbox, _WRITTEN))


def mark_row(consumer: str, known: str, now: float) -> dict[str, Any]:
    """Return the inbox row of a processed message."""
    return {"consumer": consumer, "message_id": known, "processed_at": now}


class Transaction:
    """An open transaction. The handler uses `connection`, which is SQLAlchemy's, for its own statements.

    `Transaction(await session.connection())` joins the transaction of an ORM session.
    """

    def __init__(self, connection: AsyncConnection, clock: Clock | None = None) -> None:
        self.connection = connection
        self._raw: Any = None
        self.has_sent = False
        """Whether a message was written into the outbox."""
        self._clock = clock or SystemClock()

    async def first_time(
        self,
        consumer: str,
        message: str | Delivery,
        *,
        key: str | Callable[[Delivery], str] | None = None,
    ) -> bool:
        """Mark the message as processed by this consumer. Return False if it already was.

        `message` is a delivery, or the text that identifies the message. A delivery is identified by its
        message id, which the producer chose, or by `key`: the name of a header or a function of the
        delivery. Raises NoInboxKey if the delivery lacks that key.

        The mark commits with the other changes of this transaction. After a crash before the commit there is
        no mark, so the redelivery does the work. After a crash behind it, the redelivery finds the mark. A
        message that was processed before is reported as the event `inbox.duplicate`, outside a handler in
        the log.
        """
        known = inbox_identifier(message, key)
        is_first = await self._mark(consumer, known)
        if not is_first:
            _report_duplicate(consumer, known)
        return is_first

    async def _mark(self, consumer: str, known: str) -> bool:
        return await self._execute(_MARK, mark_row(consumer, known, self._clock.now())) is not None

    async def send(self, message: Message, *, key: str | None = None) -> None:
        """Publish after the commit, by a relay. Messages of one key keep their order."""
        await self._execute(_SEND, outbox_row(message, key, self._clock.now()))
        self.has_sent = True

    async def cancel(self, message_id: str) -> bool:
        """Cancel a delayed message when this transaction commits. Return False if it was sent already.

        The applications need `app.delays(cancellations=DelayedMessages(engine))` on this database.
        """
        if await self._mark(_ENDED, message_id):
            return True
        return not await self._is_marked(_SENT, message_id)

    async def begin_delayed(self, message_id: str) -> bool:
        """Mark a due delayed message as sent. Return False if it was cancelled."""
        if await self._mark(_ENDED, message_id):
            return await self._mark(_SENT, message_id)
        return await self._is_marked(_SENT, message_id)

    async def _is_marked(self, consumer: str, message_id: str) -> bool:
        values = {"consumer": consumer, "message_id": message_id}
        return await self._execute(_IS_MARKED, values) is not None

    async def _execute(self, statement: _Statement, values: Mapping[str, Any]) -> Any:
        """Execute a statement of this module and return its first row, or None.

        With psycopg the driver executes it, in the same transaction. That takes half of the CPU time
        that SQLAlchemy needs for a statement.
        """
        connection = self.connection
        if connection.dialect.driver != "psycopg":
            found = await connection.execute(statement.text, values)
            return found.first() if found.returns_rows else None
        if not connection.in_transaction():
            await connection.begin()
        if self._raw is None:
            self._raw = (await connection.get_raw_connection()).driver_connection
        raw = self._raw
        try:
            cursor = await raw.execute(statement.pyformat, values)
            return await cursor.fetchone() if cursor.description else None
        except Exception as error:
            dialect: Any = connection.dialect
            if not isinstance(error, dialect.dbapi.Error):
                raise
            if raw.closed:
                await connection.invalidate(error)
            raise DBAPIError.instance(
                statement.pyformat,
                None,  # values may be confidential
                error,
                dialect.dbapi.Error,
                connection_invalidated=raw.closed,
                dialect=dialect,
            ) from error

    def insert(self, table: Table) -> postgresql.Insert:
        """Return an INSERT that has `on_conflict_do_nothing` and `on_conflict_do_update`.

        SQLAlchemy has these for each database apart. The form of this database is returned.
        """
        dialect: Any = postgresql if self.connection.dialect.name == "postgresql" else sqlite
        made: postgresql.Insert = dialect.insert(table)
        return made

    async def execute(self, statement: Executable, parameters: Any = None) -> CursorResult[Any]:
        """Execute a statement in this transaction."""
        return await self.connection.execute(statement, parameters)


class DelayedMessages:
    """Cancels delayed messages, for `app.delays(cancellations=…)`.

    It marks their message ids in the inbox. Keep these marks for longer than the longest delay.
    """

    def __init__(self, engine: AsyncEngine, clock: Clock | None = None) -> None:
        self._engine = engine
        self._clock = clock

    async def cancel(self, message_id: str) -> bool:
        """Cancel a delayed message. Return False if it was sent already."""
        async with transaction(self._engine, self._clock) as tx:
            return await tx.cancel(message_id)

    async def begin(self, message_id: str) -> bool:
        """Mark a due message as sent. Return False if it was cancelled."""
        async with transaction(self._engine, self._clock) as tx:
            return await tx.begin_delayed(message_id)


@asynccontextmanager
async def transaction(
    engine: AsyncEngine, clock: Clock | None = None
) -> AsyncIterator[Transaction]:
    """Open a transaction that commits at the end of the block and rolls back if the block raises."""
    async with engine.begin() as connection:
        yield Transaction(connection, clock)


async def forget_processed(engine: AsyncEngine, before: float) -> int:
    """Delete marks older than `before` (seconds since 1970) and return their number."""
    async with engine.begin() as connection:
        result = await connection.execute(delete(inbox).where(inbox.c.processed_at < before))
    return result.rowcount


def inbox_identifier(message: str | Delivery, key: str | Callable[[Delivery], str] | None) -> str:
    """Return the identifier of a message in the inbox: the text, or the key of the delivery."""
    if not isinstance(message, str):
        return inbox_key(message, key)
    if key is not None:
        raise TypeError("expected a delivery with `key`, got a text")
    return message


def _report_duplicate(consumer: str, known: str) -> None:
    """Report a message that was already handled, as an event or in the log."""
    report = reporter.get(None)
    if report is not None:
        report("inbox.duplicate", {"consumer": consumer, "key": known})
    else:
        _LOG.warning("inbox of %s: %s was already handled", consumer, one_line(known))


def outbox_row(message: Message, key: str | None, now: float) -> dict[str, Any]:
    """Return the outbox row of a message. Raises ValueError for a message without id or `mandatory`."""
    global _written  # noqa: PLW0603 - a relay of this process compares it
    _written += 1
    message_id = require_message(message).properties.message_id
    if not message_id:
        raise ValueError("expected a message id, by which consumers recognise a repeated publish")
    if not message.mandatory:
        raise ValueError(
            "expected a mandatory message: publish one with mandatory=False, or a direct reply, "
            "with `context.publish`"
        )
    if message.delay is not None:
        # The row contains the due time. The relay computes the remaining delay.
        now_ms = math.floor(now * 1000)
        by_clock = isinstance(message.delay, datetime)
        if isinstance(message.delay, datetime):
            due_ms = math.ceil(message.delay.timestamp() * 1000)
        else:
            due_ms = now_ms + message.delay
        left_ms = max(0, due_ms - now_ms)
        message = delay(replace(message, delay=None), left_ms, due_ms, by_clock=by_clock)
    return {
        "slot": slot_of(key if key is not None else message_id),
        "key": key,
        "message_id": message_id,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "body": message.body,
        "properties": write_properties(message.properties),
        "created_at": now,
    }


def slot_of(key: str) -> int:
    """Return the slot of a key, which is the same in every process."""
    return zlib.crc32(key.encode()) % SLOTS


class Cursor(Protocol):
    """The used part of a DB-API cursor."""

    def execute(self, sql: str, params: Sequence[Any], /) -> Any:
        """Execute a statement."""

    def fetchone(self) -> Any:
        """Return the next row, or None."""


class CursorTransaction:
    """Inbox and outbox in the open transaction of a DB-API cursor, for Django, psycopg and sqlite3.

    `placeholder` is the placeholder of the driver: `%s` for psycopg and for Django, `?` for sqlite3. The
    code that opened the transaction commits it.
    """

    def __init__(
        self, cursor: Cursor, *, placeholder: Literal["%s", "?"] = "%s", clock: Clock | None = None
    ) -> None:
        self._cursor = cursor
        self._placeholder = placeholder
        self._clock = clock or SystemClock()

    def first_time(
        self,
        consumer: str,
        message: str | Delivery,
        *,
        key: str | Callable[[Delivery], str] | None = None,
    ) -> bool:
        """Mark the message as processed by this consumer, as `Transaction.first_time` does."""
        known = inbox_identifier(message, key)
        self._execute(_MARK, mark_row(consumer, known, self._clock.now()))
        is_first = self._cursor.fetchone() is not None
        if not is_first:
            _report_duplicate(consumer, known)
        return is_first

    def send(self, message: Message, *, key: str | None = None) -> None:
        """Publish after the commit, by a relay. Messages of one key keep their order."""
        self._execute(_SEND, outbox_row(message, key, self._clock.now()))

    def _execute(self, statement: _Statement, row: Mapping[str, Any]) -> None:
        # The placeholders of the statement are in the order of the row's values.
        sql = _PLACEHOLDER.sub(self._placeholder, statement.pyformat)
        self._cursor.execute(sql, tuple(row.values()))


def write_properties(properties: Properties) -> str:
    """Return the set properties as JSON. Unreadable headers are replaced."""
    return json.dumps(properties_to_json(without_unread(properties)), separators=(",", ":"))


def read_properties(text: str) -> Properties:
    """Return the properties that `write_properties` wrote."""
    return properties_from_json(json.loads(text))


@dataclass(frozen=True, slots=True)
class Pending:
    """A message that waits to be published. Messages with the same `key` keep their order."""

    id: int
    key: str | None
    message: Message
    failures: int


class Outbox:
    """The outbox for one relay. Several relays share it by leases on slots."""

    def __init__(
        self, engine: AsyncEngine, owner: str, clock: Clock | None = None, *, lease: Duration = 30.0
    ) -> None:
        self._engine = engine
        # A single statement needs no transaction, which would take two more round trips to PostgreSQL.
        is_postgres = engine.dialect.name == "postgresql"
        options = {"isolation_level": "AUTOCOMMIT"} if is_postgres else {}
        self._single = engine.execution_options(**options)
        self._owner = owner
        self._clock = clock or SystemClock()
        self.lease: float = read_seconds(lease, "lease", where="Outbox", zero=False)

    @property
    def written_count(self) -> int:
        """Number of messages that this process has written to outboxes."""
        return _written

    async def claim(self, most_slots: int = 16) -> list[int]:
        """Lease slots with messages that no other relay has leased, and return them."""
        now = self._clock.now()
        slots = outbox_slots.c
        free = (
            select(slots.slot)
            .where(slots.leased_until <= now, exists().where(outbox.c.slot == slots.slot))
            .order_by(slots.leased_until)  # longest waiting first, so that no slot starves
            .limit(most_slots)
            # PostgreSQL: skip slots that another relay is claiming
            .with_for_update(skip_locked=True)
            .cte("free")
        )
        claim = (
            update(outbox_slots)
            .where(slots.slot.in_(select(free.c.slot)))
            .values(leased_by=self._owner, leased_until=now + self.lease)
            .returning(slots.slot)
        )
        async with self._single.begin() as connection:
            return list((await connection.execute(claim)).scalars())

    async def renew(self, claimed: Sequence[int]) -> bool:
        """Renew the leases. After False, a lease was lost and the relay must stop publishing."""
        slots = outbox_slots.c
        mine = (slots.slot.in_(claimed), slots.leased_by == self._owner)
        async with self._single.begin() as connection:
            result = await connection.execute(
                update(outbox_slots)
                .where(*mine)
                .values(leased_until=self._clock.now() + self.lease)
            )
        return result.rowcount == len(claimed)

    async def release(self, claimed: Sequence[int]) -> None:
        """Release the slots before their lease ends."""
        slots = outbox_slots.c
        mine = (slots.slot.in_(claimed), slots.leased_by == self._owner)
        async with self._single.begin() as connection:
            await connection.execute(
                update(outbox_slots)
                .where(*mine)
                .values(leased_by=None, leased_until=self._clock.now())
            )

    async def pending(self, claimed: Sequence[int], most: int, *, after: int = 0) -> list[Pending]:
        """Return the oldest messages of the claimed slots, in order, after the id `after`."""
        columns = outbox.c
        wanted = (columns.slot.in_(claimed), columns.id > after)
        query = select(outbox).where(*wanted).order_by(columns.id).limit(most)
        async with self._single.connect() as connection:
            rows = (await connection.execute(query)).all()
        found = []
        for row in rows:
            properties = read_properties(row.properties)
            message = Message(row.exchange, row.routing_key, bytes(row.body), properties)
            if DELAY in properties.headers:  # only the remaining delay
                message = delay_until_due(message, self._clock.now())
            found.append(Pending(row.id, row.key, message, row.failures))
        return found

    async def settle(self, published: Sequence[int], failed: Mapping[int, str]) -> None:
        """Delete confirmed messages and record the errors of the others."""
        engine = self._engine if failed else self._single
        async with engine.begin() as connection:
            if published:
                await connection.execute(delete(outbox).where(outbox.c.id.in_(published)))
            if failed:
                await connection.execute(
                    update(outbox)
                    .where(outbox.c.id == bindparam("message"))
                    .values(failures=outbox.c.failures + 1, error=bindparam("why")),
                    [{"message": id_, "why": why[:500]} for id_, why in failed.items()],
                )

    async def depth(self) -> int:
        """Return the number of messages."""
        async with self._single.connect() as connection:
            return (await connection.execute(select(func.count()).select_from(outbox))).scalar_one()
