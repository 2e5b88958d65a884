"""The databases of a command: that of inbox and outbox (`hopback store`), and that of jobs and audit."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import uuid
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hopback.cli.broker_options import rabbitmq
from hopback.cli.exits import CommandFailed, Exit, exit_of
from hopback.cli.options import log_format_option
from hopback.errors import StoreDamaged, StoreTooNew, StoreUnavailable
from hopback.private_files import private_folder
from hopback.waiting import first_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from sqlalchemy.engine import URL
    from sqlalchemy.ext.asyncio import AsyncEngine

    from hopback.broker.rabbitmq import RabbitMQ
    from hopback.broker.supervise import SupervisedState
    from hopback.clock import Clock
    from hopback.ops.alerts.book import AlertBook
    from hopback.ops.jobs.journal import Journal
    from hopback.runtime.relay import Relay

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
    if isinstance(error, StoreDamaged | StoreTooNew):
        return CommandFailed(said, do=error.remedy, code=exit_of(error))
    return CommandFailed(
        said if isinstance(error, StoreUnavailable) else f"the database cannot be used: {said}",
        do="Check address, credentials and that the database exists.",
        code=Exit.UNREACHABLE,
    )


@asynccontextmanager
async def journal(url: str | None, clock: Clock, *, lease: float = 30.0) -> AsyncIterator[Journal]:
    """The journal at that URL, or in the user's own file; its tables are made if they are missing.

    Without the extra `store`, and where the user's own file cannot be made, it is kept in memory. For what
    runs long, and needs more of the database than a journal; `light_journal` is for commands.
    """
    from hopback.ops.jobs.journal import MemoryJournal

    has_extra = find_spec("sqlalchemy") is not None and find_spec("aiosqlite") is not None
    address = url or (_own_file() if has_extra else None)
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
        from hopback.ops.jobs.journal_sql import SqlJournal

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
async def light_journal(url: str | None, clock: Clock) -> AsyncIterator[Journal]:
    """The same journal as `journal` gives; an SQLite file is opened when it is needed, without SQLAlchemy.

    For what looks once and ends: SQLAlchemy takes longer to load than such a command for everything else.
    """
    from hopback.sql.sqlite import SqliteDatabase, sqlite_file

    address = url or _own_file()
    file = None if address is None else sqlite_file(address)
    if file is None:
        async with journal(address or IN_MEMORY, clock) as found:
            yield found
        return
    from hopback.ops.jobs.journal_sql import SqlJournal

    if not _is_usable(file):
        raise unreachable(OSError("unable to open database file"))
    opened = SqliteDatabase(file, clock)
    try:
        try:
            yield SqlJournal(opened, clock)
        finally:
            await opened.close()
    except StoreUnavailable as error:
        raise unreachable(error) from error


def _own_file() -> str | None:
    """The URL of the user's own file, in a folder that nobody else reads; None if it cannot be."""
    from hopback.sql.sqlite import sqlite_url

    folder = state_folder()
    try:
        private_folder(folder)
    except OSError:
        return None
    return sqlite_url(folder / "jobs.db") if os.access(folder, os.W_OK) else None


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
    from hopback.cli.log import open_log

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
        if version != LATEST:
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
