"""The databases of a command: that of inbox and outbox (`hopback store`), and that of jobs and audit."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sqlite3
import sys
import uuid
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlsplit

import click

from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.options import log_format_option, rabbitmq
from hopback.errors import StoreUnavailable
from hopback.private_files import private_folder
from hopback.waiting import first_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from sqlalchemy.engine import URL
    from sqlalchemy.ext.asyncio import AsyncEngine

    from hopback.broker.rabbitmq import RabbitMQ
    from hopback.broker.supervise import SupervisedState
    from hopback.clock import Clock
    from hopback.deadletters.alert_book import AlertBook
    from hopback.deadletters.contract import AuditEntry
    from hopback.deadletters.journal import JobRecord, Journal
    from hopback.runtime.relay import Relay

__all__ = [
    "IN_MEMORY",
    "LateJournal",
    "alert_book",
    "database",
    "database_errors",
    "database_option",
    "journal",
    "late_journal",
    "migrate",
    "relay",
    "sql_journal",
    "sqlite_file",
    "state_folder",
    "status",
    "store",
    "unreachable",
]

IN_MEMORY = "memory"
"""The store that ends with the process: nothing can be resumed, nothing is audited."""

database_option = click.option(
    "--database",
    "url",
    envvar="HOPBACK_DATABASE",
    required=True,
    metavar="URL",
    help="sqlite:///file.db or postgresql://user:password@host/name; also HOPBACK_DATABASE.",
)


@asynccontextmanager
async def database(url: str) -> AsyncIterator[AsyncEngine]:
    """An engine, closed at the end; nothing is connected yet. What SQL refuses is a CommandFailed."""
    from hopback.store import open_database

    engine = open_database(url)
    if engine.dialect.name == "sqlite" and not _is_usable(Path(engine.url.database or ":memory:")):
        raise unreachable(OSError("unable to open database file"))
    try:
        with database_errors():
            yield engine
    finally:
        await engine.dispose()


def _is_usable(file: Path) -> bool:
    """Asked before the driver is: its thread would outlive a failure and speak to a closed loop."""
    if file.exists():
        return file.is_file() and os.access(file, os.R_OK | os.W_OK)
    return file.parent.is_dir() and os.access(file.parent, os.W_OK)


@contextmanager
def database_errors(*connecting: type[Exception]) -> Iterator[None]:
    """Make a CommandFailed of what the database refuses, and while one connects of what sockets do."""
    from hopback.store.database import store_errors

    failures: tuple[type[Exception], ...] = (StoreUnavailable, *connecting)
    try:
        with store_errors():
            yield
    except failures as error:
        raise unreachable(error) from error


def unreachable(error: Exception) -> CommandFailed:
    """What the database, or the way to it, said; never the statement, nor the password."""
    said = (str(error).splitlines() or [type(error).__name__])[0]
    return CommandFailed(
        said if isinstance(error, StoreUnavailable) else f"the database cannot be used: {said}",
        do="Check address, credentials and that the database exists.",
        code=Exit.UNREACHABLE,
    )


@asynccontextmanager
async def journal(url: str | None, clock: Clock, *, lease: float = 30.0) -> AsyncIterator[Journal]:
    """The journal at that URL, or in the user's own file; its tables are made if they are missing.

    Without the extra `store`, and where the user's own file cannot be made, it is kept in memory.
    """
    from hopback.deadletters.journal import MemoryJournal

    address = url or _own_file()
    if address is None or address == IN_MEMORY:
        yield MemoryJournal()
        return
    async with sql_journal(address, clock, lease=lease) as found:
        yield found


@asynccontextmanager
async def sql_journal(address: str, clock: Clock, *, lease: float = 30.0) -> AsyncIterator[Journal]:
    """The journal in that database."""
    from hopback.store import migrate

    async with database(address) as engine:
        from hopback.deadletters.journal_sql import SqlJournal

        with database_errors(OSError):
            await migrate(engine, clock)
        yield SqlJournal(engine, clock, lease=lease)


def alert_book(kept: Journal) -> AlertBook | None:
    """Alerts are kept where jobs and audit are, if that is a database."""
    engine = getattr(kept, "engine", None)
    if engine is None:
        return None
    from hopback.store.admin import AlertTable

    return AlertTable(engine)


@asynccontextmanager
async def late_journal(url: str | None, clock: Clock) -> AsyncIterator[Journal]:
    """The same journal as `journal` gives, opened when it is needed: for what looks once and ends."""
    from hopback.deadletters.journal import MemoryJournal

    address = url or _own_file()
    if address is None or address == IN_MEMORY:
        yield MemoryJournal()
        return
    async with AsyncExitStack() as stack:
        file = sqlite_file(address)
        late = LateJournal(file, lambda: sql_journal(address, clock), stack, clock)
        yield cast("Journal", late)


def _own_file() -> str | None:
    """The URL of the user's own file, in a folder that nobody else reads; None if it cannot be."""
    if find_spec("sqlalchemy") is None or find_spec("aiosqlite") is None:
        return None
    folder = state_folder()
    try:
        private_folder(folder)
    except OSError:
        return None
    return f"sqlite:///{folder / 'jobs.db'}" if os.access(folder, os.W_OK) else None


def state_folder() -> Path:
    """The folder for what a user's commands remember, as the platform has it."""
    home = Path.home()
    if sys.platform == "win32":
        root = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        root = home / "Library" / "Application Support"
    else:
        root = Path(os.environ.get("XDG_STATE_HOME") or home / ".local" / "state")
    return root / "hopback"


# --- a journal that is opened when it is needed
#
# Most commands only ask whether a job runs, and note a look, and SQLAlchemy takes longer to load than such a
# command needs for everything else. So these two things are done with the standard library where the journal
# is an SQLite file with the tables that this release writes; anything else opens the real journal, which then
# does the rest. What needs an extra is imported where it is used: `hopback serve` names a missing one.

_BUSY_S = 10.0  # as long as the real journal waits for another writer
_ENTRY = ("at", "by", "action", "queue", "job", "reason", "result", "details", "broker")


def sqlite_file(url: str) -> Path | None:
    """The file that a database URL names; None for another database, and one that is in memory."""
    parts = urlsplit(url)
    plain = parts.scheme.partition("+")[0] == "sqlite" and not (parts.netloc or parts.query)
    name = unquote(parts.path).removeprefix("/")
    return Path(name) if plain and name and name != ":memory:" else None


class LateJournal:
    """Stands for the journal that `opening` gives, which is entered by the first call that needs it."""

    def __init__(
        self,
        file: Path | None,
        opening: Callable[[], AbstractAsyncContextManager[Journal]],
        stack: AsyncExitStack,
        clock: Clock,
    ) -> None:
        self._file = file
        self._opening = opening
        self._stack = stack
        self._clock = clock
        self._lock = asyncio.Lock()
        self._real: Journal | None = None

    async def real(self) -> Journal:
        """The journal itself."""
        async with self._lock:
            if self._real is None:
                self._real = await self._stack.enter_async_context(self._opening())
            return self._real

    async def jobs(
        self, *, broker: str = "", queue: str = "", active: bool = False, limit: int = 100
    ) -> tuple[JobRecord, ...]:
        """Jobs, the newest first."""
        if active and self._real is None and await asyncio.to_thread(self._is_idle, broker, queue):
            return ()
        found = await self.real()
        return await found.jobs(broker=broker, queue=queue, active=active, limit=limit)

    async def write(self, entry: AuditEntry, broker: str = "") -> None:
        """Append to the audit, for that broker."""
        if self._real is None and await asyncio.to_thread(self._append, entry, broker):
            return
        await (await self.real()).write(entry, broker)

    async def remembered(self, broker: str, kind: str) -> dict[str, str]:
        """The documents of a kind that are kept for a broker, by key."""
        if self._real is None:
            found = await asyncio.to_thread(self._documents, broker, kind)
            if found is not None:
                return found
        return await (await self.real()).remembered(broker, kind)

    def __getattr__(self, name: str) -> Any:
        """Whatever else a journal does, once it is open."""
        from hopback.deadletters.journal import Journal

        if name.startswith("_") or not callable(getattr(Journal, name, None)):
            raise AttributeError(name)

        async def call(*positional: Any, **named: Any) -> Any:
            return await getattr(await self.real(), name)(*positional, **named)

        return call

    def _is_idle(self, broker: str, queue: str) -> bool:
        """Whether it is sure that no job runs; a file that is not there yet has none."""
        if self._file is None:
            return False
        if not self._file.exists():
            return self._file.parent.is_dir()
        from hopback.deadletters.contract import ACTIVE

        wanted = ["state IN (?, ?)", "leased_until >= ?"]
        values: list[object] = [*sorted(ACTIVE), self._clock.now()]
        for column, value in (("place", broker), ("queue", queue)):
            if value:
                wanted.append(f"{column} = ?")
                values.append(value)
        query = f"SELECT 1 FROM hopback_jobs WHERE {' AND '.join(wanted)} LIMIT 1"  # noqa: S608 - ours
        try:
            with closing(self._connect(self._file)) as connection:
                return connection.execute(query, values).fetchone() is None
        except sqlite3.Error:
            return False  # the real journal says what is wrong, or makes the tables

    def _documents(self, broker: str, kind: str) -> dict[str, str] | None:
        """What is kept; None where that is not sure."""
        if self._file is None:
            return None
        if not self._file.exists():
            return {} if self._file.parent.is_dir() else None
        query = "SELECT key, document FROM hopback_documents WHERE place = ? AND kind = ?"
        try:
            with closing(self._connect(self._file)) as connection:
                return dict(connection.execute(query, (broker, kind)).fetchall())
        except sqlite3.Error:
            return None

    def _append(self, entry: AuditEntry, broker: str) -> bool:
        """Whether the entry was written: only into a table that has exactly the columns we know."""
        if self._file is None or not self._file.exists():
            return False
        from msgspec import structs

        values = structs.asdict(entry) | {
            "details": json.dumps(dict(entry.details), default=str),
            "broker": broker,
        }
        names = ", ".join(f'"{name}"' for name in _ENTRY)
        marks = ", ".join("?" for _ in _ENTRY)
        insert = f"INSERT INTO hopback_audit ({names}) VALUES ({marks})"  # noqa: S608 - ours
        try:
            with closing(self._connect(self._file)) as connection, connection:
                columns = {row[1] for row in connection.execute("PRAGMA table_info(hopback_audit)")}
                if columns != {"number", *_ENTRY} or values.keys() - {"number"} != {*_ENTRY}:
                    return False
                connection.execute(insert, [values[name] for name in _ENTRY])
        except sqlite3.Error:
            return False
        return True

    @staticmethod
    def _connect(file: Path) -> sqlite3.Connection:
        return sqlite3.connect(f"{file.resolve().as_uri()}?mode=rw", uri=True, timeout=_BUSY_S)


# --- `hopback store`


_LOG = logging.getLogger("hopback.relay")


@click.group(short_help="The database of inbox and outbox: migrate it, relay what it holds.")
def store() -> None:
    """The database of inbox and outbox: SQLite, or PostgreSQL by URL."""


@store.command(short_help="Bring the tables to the version of this Hopback.")
@database_option
def migrate(url: str) -> None:
    """Apply the migrations that are missing. Safe to repeat, and to run from several places at once."""
    from hopback.clock import SystemClock
    from hopback.store import LATEST
    from hopback.store import migrate as apply_migrations

    async def migrating() -> list[int]:
        async with database(url) as engine:
            with database_errors(OSError):
                return await apply_migrations(engine, SystemClock())

    applied = asyncio.run(migrating())
    if applied:
        click.echo(f"Applied {', '.join(map(str, applied))}: the database is at version {LATEST}.")
    else:
        click.echo(f"Nothing to do: the database is at version {LATEST}.")


@store.command(short_help="Show the version of the tables and what is missing.")
@database_option
@click.option("--detailed-exit-code", is_flag=True, help="Leave with 10 if a migration is missing.")
def status(url: str, detailed_exit_code: bool) -> int:
    """Show the version of the tables beside the one that this Hopback works with."""
    from hopback.store import LATEST

    found = asyncio.run(_version(url))
    told = "up to date" if found == LATEST else "made by a newer Hopback"
    if found < LATEST:
        told = "run `hopback store migrate`"
    click.echo(f"version {found} of {LATEST}: {told}")
    return Exit.FOUND if detailed_exit_code and found < LATEST else Exit.OK


async def _version(url: str) -> int:
    """The version; a file that does not exist is not made by looking."""
    from hopback.store import current_version

    async with database(url) as engine:
        if _is_missing(engine.url):
            return 0
        with database_errors(OSError):
            return await current_version(engine)


def _is_missing(url: URL) -> bool:
    is_file = url.get_backend_name() == "sqlite" and bool(url.database)
    return is_file and not Path(str(url.database)).exists()


# --- the relay


@store.command(short_help="Publish what transactions left in the outbox, until stopped.")
@database_option
@click.option(
    "--broker",
    envvar="HOPBACK_BROKER",
    required=True,
    metavar="URL",
    help="amqp(s):// address; also HOPBACK_BROKER, which keeps it out of process lists.",
)
@click.option(
    "--idle",
    type=click.FloatRange(min=0.01),
    default=0.5,
    show_default=True,
    metavar="S",
    help="Seconds between two looks at an empty outbox.",
)
@log_format_option
def relay(url: str, broker: str, idle: float, log_format: str) -> None:
    """Publish the messages of the outbox, confirmed and in order per key. Several may run at once.

    The first SIGINT or SIGTERM ends it after what is in flight, a second one at once; what was not
    confirmed stays in the outbox.
    """
    from hopback.cli.run_service import open_log

    open_log("info", log_format)
    published = asyncio.run(_relay(url, rabbitmq(broker), idle))
    click.echo(f"Stopped. {published} messages published.")


async def _relay(url: str, broker: RabbitMQ, idle: float) -> int:
    from hopback.broker.publisher import Publisher
    from hopback.clock import SystemClock
    from hopback.runtime.relay import Relay
    from hopback.store import LATEST, Outbox, current_version

    async with database(url) as engine:
        with database_errors(OSError):
            version = await current_version(engine)
        if version < LATEST:
            raise CommandFailed(
                f"the database is at version {version}, expected {LATEST}",
                do="Run `hopback store migrate` first.",
                code=Exit.CONFLICT,
            )
        # The owner of leases: a name that no other relay has, and that tells an operator whose they are.
        owner = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        outbox = Outbox(engine, owner, SystemClock())
        publisher = Publisher(broker, name="hopback relay", on_state=_log_state)
        publisher.start()  # a broker that is not up yet is waited for
        try:
            found = Relay(outbox, publisher.publish, idle=idle)
            await _until_stopped(found, idle)
        finally:
            await publisher.close()
        return found.published


def _log_state(state: SupervisedState, reason: str) -> None:
    _LOG.info("the publishing connection is %s%s", state, f": {reason}" if reason else "")


async def _until_stopped(relaying: Relay, idle: float) -> None:
    """Sweep until a signal comes; a second one does not wait for what is in flight."""
    stopping, forced = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (forced if stopping.is_set() else stopping).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    swept, _ = await first_of(_sweep_on(relaying, idle, stopping), forced.wait())
    if swept is not None:
        swept.result()


async def _sweep_on(relaying: Relay, idle: float, stopping: asyncio.Event) -> None:
    """Sweep again and again; a database that is away is waited for."""
    from hopback.broker.supervise import Backoff
    from hopback.store.database import store_errors

    failures = 0
    while not stopping.is_set():
        try:
            with store_errors():
                rest = 0.0 if await relaying.sweep() else idle
            failures = 0
        except (StoreUnavailable, OSError) as error:
            failures += 1
            # The middle of the step: the few relays of a database need no spreading by chance.
            rest = Backoff(first=0.5).delay(failures, 0.5)
            _LOG.warning("%s; trying again in %.1f s", unreachable(error), rest)
        with suppress(TimeoutError):
            async with asyncio.timeout(rest):
                await stopping.wait()
