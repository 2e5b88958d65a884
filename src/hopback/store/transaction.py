"""Inbox and outbox.

The changes made by a handler, the inbox entry and the outgoing messages are committed in a single
transaction. Messages are identified by message id, by a header or by a custom function.

A relay uses `Outbox` to publish the messages. Message properties are stored as JSON and keep their
types.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import zlib
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from sqlalchemy import Executable, bindparam, delete, exists, func, select, text, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError

from hopback.clock import Clock, SystemClock
from hopback.durations import Duration, read_seconds
from hopback.errors import HopbackError
from hopback.headers import FRAME_BYTES, identity, without_unread
from hopback.headers.names import DELAY
from hopback.headers.typed_json import properties_from_json, properties_to_json
from hopback.message import Delivery, Message, Properties, require_message
from hopback.observe.events import reporter
from hopback.policy.delays import delay, delay_until_due
from hopback.policy.reading import origin_of
from hopback.sql.versions import SLOTS
from hopback.store.database import inbox, outbox, outbox_slots
from hopback.text import one_line
from hopback.wire.outgoing import encode_message

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Callable,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from sqlalchemy import Row, Table, TextClause
    from sqlalchemy.engine import CursorResult
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine


_LOG = logging.getLogger("hopback.store")
_on_write: set[Callable[[], object]] = set()
"""Called when this process adds a message to an outbox."""
_LONGEST = 255  # maximum length of a key in characters, longer keys are hashed
_ENDED = "hopback.delay"
"""Consumer name for delayed messages that were sent or cancelled."""
_SENT = "hopback.delay.sent"
"""Consumer name for delayed messages that were sent."""
_PLACEHOLDER = re.compile(r"%\(\w+\)s")
_TAKEN = (
    "sha256-",
    "int ",
    "bytes ",
)  # reserved prefixes, keys that start with one of them are hashed


class NoInboxKey(HopbackError):
    """Raised when a message does not have the key used by the inbox."""

    remedy: ClassVar[str] = "Let producers send the key, or specify another one for the inbox."


def inbox_key(delivery: Delivery, key: str | Callable[[Delivery], str] | None) -> str:
    """Return the inbox key of a delivery.

    By default this is the message id. If there is none, the key is a hash of the body, properties,
    headers, exchange and routing key of the original publish. Keys that are too long or not
    printable are hashed.

    Args:
        delivery: The delivery.
        key: The name of a header, or a function that returns the key. The header must be a string,
            bytes or an integer.

    Raises:
        NoInboxKey: If the header is missing.
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
    """An SQL statement for SQLAlchemy and psycopg."""

    text: TextClause
    pyformat: str


def _statement(sql: str) -> _Statement:
    return _Statement(text(sql), re.sub(r":(\w+)", r"%(\1)s", sql))


def _insert(table: Table, columns: Iterable[str], then: str = "") -> str:
    # Quote the names, because `key` is a reserved word.
    names = list(columns)
    quoted = ", ".join(f'"{name}"' for name in names)
    values = ", ".join(f":{name}" for name in names)
    return f"INSERT INTO {table.name} ({quoted}) VALUES ({values}){then}"  # noqa: S608 - constants


# Use RETURNING because some drivers do not report the row count.
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
"""Columns of a new row. The other columns have defaults."""
_SEND = _statement(_insert(outbox, _WRITTEN))


def mark_row(consumer: str, known: str, now: float) -> dict[str, Any]:
    """Return the inbox row of a message."""
    return {"consumer": consumer, "message_id": _storable(known), "processed_at": now}


def _storable(known: str) -> str:
    """Hash a key that cannot be stored. PostgreSQL refuses NUL, and drivers refuse invalid UTF-8."""
    raw = known.encode("utf-8", "surrogatepass")
    try:
        raw.decode()
    except UnicodeDecodeError:
        return f"sha256-{_hash(raw)}"
    return known if b"\0" not in raw else f"sha256-{_hash(raw)}"


class Transaction:
    """An open transaction.

    Use `connection` to run other SQLAlchemy statements. To join the transaction of an ORM session,
    use `Transaction(await session.connection())`.
    """

    def __init__(self, connection: AsyncConnection, clock: Clock | None = None) -> None:
        self.connection = connection
        self._raw: Any = None
        self.has_sent: bool = False
        """True if messages were added to the outbox."""
        self.reports_writes = True
        """False if a relay is woken after the commit."""
        self._clock = clock or SystemClock()

    async def first_time(
        self,
        consumer: str,
        message: str | Delivery,
        *,
        key: str | Callable[[Delivery], str] | None = None,
    ) -> bool:
        """Record that a consumer has processed a message.

        The entry is committed together with the other changes of this transaction. If the process
        crashes before the commit, the message is redelivered and processed again. If it crashes
        afterwards, the redelivered message is recognised as a duplicate. Duplicates emit the event
        `inbox.duplicate`, or are logged if there is no running service.

        Args:
            consumer: Name of the consumer.
            message: The delivery, or the id of the message.
            key: The name of a header, or a function that returns the key of a delivery. Defaults to
                the message id.

        Returns:
        False if the consumer has already processed the message.

        Raises:
            NoInboxKey: If the delivery does not have the key.
        """
        known = inbox_identifier(message, key)
        is_first = await self._mark(consumer, known)
        if not is_first:
            _report_duplicate(consumer, known)
        return is_first

    async def _mark(self, consumer: str, known: str) -> bool:
        return await self._execute(_MARK, mark_row(consumer, known, self._clock.now())) is not None

    async def send(self, message: Message, *, key: str | None = None) -> None:
        """Add a message to the outbox. It is published after the commit.

        Messages with the same `key` are published in order.
        """
        await self._execute(_SEND, outbox_row(message, key, self._clock.now()))
        self.has_sent = True
        if self.reports_writes:
            _report_write()

    async def cancel(self, message_id: str) -> bool:
        """Cancel a delayed message when the transaction is committed.

        The application must be configured with `app.delays(cancellations=DelayedMessages(engine))`.
        Returns False if the message has already been sent.
        """
        if await self._mark(_ENDED, message_id):
            return True
        return not await self._is_marked(_SENT, message_id)

    async def begin_delayed(self, message_id: str) -> bool:
        """Mark a delayed message as sent. Returns False if it was cancelled."""
        if await self._mark(_ENDED, message_id):
            return await self._mark(_SENT, message_id)
        return await self._is_marked(_SENT, message_id)

    async def _is_marked(self, consumer: str, message_id: str) -> bool:
        values = {"consumer": consumer, "message_id": _storable(message_id)}
        return await self._execute(_IS_MARKED, values) is not None

    async def _execute(self, statement: _Statement, values: Mapping[str, Any]) -> Any:
        """Run a statement and return the first row or None.

        psycopg is called directly, because this uses only half the CPU time.
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
        """Return an INSERT statement that supports `on_conflict_do_nothing` and
        `on_conflict_do_update`.
        """
        dialect: Any = postgresql if self.connection.dialect.name == "postgresql" else sqlite
        made: postgresql.Insert = dialect.insert(table)
        return made

    async def execute(self, statement: Executable, parameters: Any = None) -> CursorResult[Any]:
        """Execute a statement in this transaction."""
        return await self.connection.execute(statement, parameters)


class DelayedMessages:
    """Stores cancellations of delayed messages, for use with `app.delays(cancellations=…)`.

    Cancelled message ids are stored in the inbox. They must be kept longer than the longest delay.
    """

    def __init__(self, engine: AsyncEngine, clock: Clock | None = None) -> None:
        self._engine = engine
        self._clock = clock

    async def cancel(self, message_id: str) -> bool:
        """Cancel a delayed message. Returns False if it has already been sent."""
        async with transaction(self._engine, self._clock) as tx:
            return await tx.cancel(message_id)

    async def begin(self, message_id: str) -> bool:
        """Mark a delayed message as sent. Returns False if it was cancelled."""
        async with transaction(self._engine, self._clock) as tx:
            return await tx.begin_delayed(message_id)


@asynccontextmanager
async def transaction(
    engine: AsyncEngine, clock: Clock | None = None
) -> AsyncIterator[Transaction]:
    """Open a transaction.

    It is committed at the end of the block, or rolled back if the block raises an exception.
    """
    async with engine.begin() as connection:
        yield Transaction(connection, clock)


async def forget_processed(engine: AsyncEngine, before: float) -> int:
    """Delete inbox entries older than `before` and return their number."""
    async with engine.begin() as connection:
        result = await connection.execute(delete(inbox).where(inbox.c.processed_at < before))
    return result.rowcount


def inbox_identifier(message: str | Delivery, key: str | Callable[[Delivery], str] | None) -> str:
    """Return the inbox key of a message."""
    if not isinstance(message, str):
        if not hasattr(message, "properties"):
            raise TypeError(
                "message: expected the delivery, as in `first_time(consumer, context.delivery)`,"
                f" or a text, got {type(message).__name__}"
            )
        return inbox_key(message, key)
    if key is not None:
        raise TypeError("expected a delivery with `key`, got a text")
    return message


def _report_duplicate(consumer: str, known: str) -> None:
    """Emit an event for a duplicate message, or log it."""
    report = reporter.get(None)
    if report is not None:
        report("inbox.duplicate", {"consumer": consumer, "key": known})
    else:
        _LOG.warning("inbox of %s: %s was already handled", consumer, one_line(known))


def outbox_row(message: Message, key: str | None, now: float) -> dict[str, Any]:
    """Return the outbox row of a message.

    Raises:
        ValueError: If the message does not have an id or is not mandatory.
        InvalidMessage: If the message cannot be published. It would block its key forever.
    """
    message_id = require_message(message).properties.message_id
    if not message_id:
        raise ValueError(
            "expected a message id, which consumers need to recognise a repeated publish"
        )
    if not message.mandatory:
        raise ValueError(
            "expected a mandatory message: publish one with mandatory=False, or a direct reply, "
            "with `context.publish`"
        )
    encode_message(message, FRAME_BYTES, default_mode=2)
    if message.delay is not None:
        # Store the due time. The relay calculates the remaining delay.
        now_ms = math.floor(now * 1000)
        by_clock = isinstance(message.delay, datetime)
        if isinstance(message.delay, datetime):
            due_ms = math.ceil(message.delay.timestamp() * 1000)
        else:
            due_ms = now_ms + message.delay
        left_ms = max(0, due_ms - now_ms)
        message = delay(replace(message, delay=None), left_ms, due_ms, by_clock=by_clock)
        encode_message(message, FRAME_BYTES, default_mode=2)
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


def _report_write() -> None:
    for report in tuple(_on_write):
        report()


def slot_of(key: str) -> int:
    return zlib.crc32(key.encode()) % SLOTS


class Cursor(Protocol):
    """The part of the DB-API cursor interface used here."""

    def execute(self, sql: str, params: Sequence[Any], /) -> Any:
        """Execute a statement."""

    def fetchone(self) -> Any:
        """Return the next row or None."""


class CursorTransaction:
    """Inbox and outbox for a DB-API cursor, for example with Django, psycopg or sqlite3.

    The caller is responsible for committing the transaction.

    Args:
        cursor: The cursor of an open transaction.
        placeholder: The placeholder of the driver. Use `%s` for psycopg and Django, `?` for
            sqlite3.
        clock: The clock to use. Defaults to the system clock.
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
        """Record that a consumer has processed a message. See `Transaction.first_time`."""
        known = inbox_identifier(message, key)
        self._execute(_MARK, mark_row(consumer, known, self._clock.now()))
        is_first = self._cursor.fetchone() is not None
        if not is_first:
            _report_duplicate(consumer, known)
        return is_first

    def send(self, message: Message, *, key: str | None = None) -> None:
        """Add a message to the outbox. See `Transaction.send`."""
        self._execute(_SEND, outbox_row(message, key, self._clock.now()))
        _report_write()

    def _execute(self, statement: _Statement, row: Mapping[str, Any]) -> None:
        # The placeholders have the same order as the values.
        sql = _PLACEHOLDER.sub(self._placeholder, statement.pyformat)
        self._cursor.execute(sql, tuple(row.values()))


def write_properties(properties: Properties) -> str:
    """Serialize properties to JSON. Headers that could not be decoded are replaced."""
    return json.dumps(properties_to_json(without_unread(properties)), separators=(",", ":"))


def read_properties(text: str) -> Properties:
    """Deserialize properties from JSON."""
    return properties_from_json(json.loads(text))


@dataclass(frozen=True, slots=True)
class Pending:
    """A message in the outbox. Messages with the same `key` are published in order.

    `problem` is set if the row cannot be read. The message is empty and must not be published.
    """

    id: int
    key: str | None
    message: Message
    failures: int
    problem: str = ""


# These statements are built once, because a relay executes them for every message.
_SLOT = outbox_slots.c
_MINE = (
    _SLOT.slot.in_(bindparam("claimed", expanding=True)),
    _SLOT.leased_by == bindparam("owner"),
)
_CLAIM = (
    update(outbox_slots)
    .where(
        _SLOT.slot.in_(
            select(_SLOT.slot)
            .where(
                _SLOT.leased_until <= bindparam("now"), exists().where(outbox.c.slot == _SLOT.slot)
            )
            .order_by(_SLOT.leased_until)  # oldest lease first, so that no slot starves
            .limit(bindparam("most"))
            # On PostgreSQL, skip slots that are being claimed by another relay.
            .with_for_update(skip_locked=True)
            .cte("free")
            .select()
        )
    )
    .values(leased_by=bindparam("owner"), leased_until=bindparam("until"))
    .returning(_SLOT.slot)
)
_RENEW = update(outbox_slots).where(*_MINE).values(leased_until=bindparam("until"))
_RELEASE = update(outbox_slots).where(*_MINE).values(leased_by=None, leased_until=bindparam("now"))
_PENDING = (
    select(outbox)
    .where(
        outbox.c.slot.in_(bindparam("claimed", expanding=True)), outbox.c.id > bindparam("after")
    )
    .order_by(outbox.c.id)
    .limit(bindparam("most"))
)
_REMOVE = delete(outbox).where(outbox.c.id.in_(bindparam("published", expanding=True)))
_FAIL = (
    update(outbox)
    .where(outbox.c.id == bindparam("message"))
    .values(failures=outbox.c.failures + 1, error=bindparam("why"))
)


class Outbox:
    """The outbox from which a relay publishes messages.

    Messages are distributed over slots. Several relays can run at the same time, because each of
    them leases different slots.
    """

    def __init__(
        self, engine: AsyncEngine, owner: str, clock: Clock | None = None, *, lease: Duration = 30.0
    ) -> None:
        self._engine = engine
        # Use autocommit for single statements, which saves two round trips to PostgreSQL.
        is_postgres = engine.dialect.name == "postgresql"
        options = {"isolation_level": "AUTOCOMMIT"} if is_postgres else {}
        self._single = engine.execution_options(**options)
        self._owner = owner
        self._clock = clock or SystemClock()
        self.lease: float = read_seconds(lease, "lease", where="Outbox", zero=False)

    @contextmanager
    def watch_writes(self, on_write: Callable[[], object]) -> Iterator[None]:
        """Call `on_write` when this process adds a message to an outbox. Any thread may call it.

        The message may be part of an open transaction. Messages of `Database.transaction` are not
        reported, because it wakes its own relay after the commit.
        """
        _on_write.add(on_write)
        try:
            yield
        finally:
            _on_write.discard(on_write)

    async def claim(self, most_slots: int = 16) -> list[int]:
        """Lease free slots that contain messages, and return them."""
        now = self._clock.now()
        values = {"owner": self._owner, "now": now, "until": now + self.lease, "most": most_slots}
        async with self._single.begin() as connection:
            return list((await connection.execute(_CLAIM, values)).scalars())

    async def renew(self, claimed: Sequence[int]) -> bool:
        """Renew the leases. Returns False if a lease was lost. The relay must then stop publishing."""
        until = self._clock.now() + self.lease
        values = {"claimed": claimed, "owner": self._owner, "until": until}
        async with self._single.begin() as connection:
            result = await connection.execute(_RENEW, values)
        return result.rowcount == len(claimed)

    async def release(self, claimed: Sequence[int]) -> None:
        values = {"claimed": claimed, "owner": self._owner, "now": self._clock.now()}
        async with self._single.begin() as connection:
            await connection.execute(_RELEASE, values)

    async def pending(self, claimed: Sequence[int], most: int, *, after: int = 0) -> list[Pending]:
        """Return the oldest messages of the given slots with an id greater than `after`."""
        values = {"claimed": claimed, "after": after, "most": most}
        async with self._single.connect() as connection:
            rows = (await connection.execute(_PENDING, values)).all()
        return [self._read(row) for row in rows]

    def _read(self, row: Row[Any]) -> Pending:
        try:
            properties = read_properties(row.properties)
            message = Message(row.exchange, row.routing_key, bytes(row.body), properties)
            if DELAY in properties.headers:  # use the remaining delay
                message = delay_until_due(message, self._clock.now())
        except Exception as error:  # the row was written by hand or by another version
            problem = f"unreadable row: {type(error).__name__}: {error}"
            return Pending(row.id, row.key, Message("", ""), row.failures, problem)
        return Pending(row.id, row.key, message, row.failures)

    async def settle(self, published: Sequence[int], failed: Mapping[int, str]) -> None:
        """Delete published messages and record errors of failed ones."""
        engine = self._engine if failed else self._single
        async with engine.begin() as connection:
            if published:
                await connection.execute(_REMOVE, {"published": published})
            if failed:
                await connection.execute(
                    _FAIL,
                    [{"message": id_, "why": one_line(why[:500])} for id_, why in failed.items()],
                )

    async def depth(self) -> int:
        """Return the number of messages in the outbox."""
        async with self._single.connect() as connection:
            return (await connection.execute(select(func.count()).select_from(outbox))).scalar_one()
