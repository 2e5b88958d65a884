"""The command `hopback store`, which migrates the database and relays its outbox."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import uuid
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hopback.cli.broker_options import rabbitmq
from hopback.cli.exits import CommandFailed, Exit, exit_of
from hopback.cli.options import Seconds, log_format_option
from hopback.errors import StoreDamaged, StoreTooNew, StoreUnavailable
from hopback.waiting import first_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from sqlalchemy.engine import URL
    from sqlalchemy.ext.asyncio import AsyncEngine

    from hopback.broker.rabbitmq import RabbitMQ
    from hopback.broker.supervise import SupervisedState
    from hopback.runtime.relay import Relay

database_option = click.option(
    "--database",
    "url",
    envvar="HOPBACK_DATABASE",
    required=True,
    metavar="URL",
    help="sqlite:///file.db or postgresql://user:password@host/name. Also HOPBACK_DATABASE.",
)


@asynccontextmanager
async def database(url: str) -> AsyncIterator[AsyncEngine]:
    """Open a database engine and dispose of it at the end of the block. SQL errors are raised as
    CommandFailed.
    """
    from hopback.store import open_database

    check_file(url)
    engine = open_database(url)
    try:
        with database_errors():
            yield engine
    finally:
        await engine.dispose()


def check_file(url: str) -> None:
    """Raise CommandFailed if the URL names a SQLite file that cannot be used.

    If opening a file fails, the thread of the driver stays alive and uses an event loop that is
    already closed.
    """
    from hopback.sql.sqlite import sqlite_file

    file = sqlite_file(url)
    if file is None:
        return
    if file.exists():
        is_usable = file.is_file() and os.access(file, os.R_OK | os.W_OK)
    else:
        is_usable = file.parent.is_dir() and os.access(file.parent, os.W_OK)
    if not is_usable:
        raise unreachable(OSError("unable to open database file"))


@contextmanager
def database_errors(*connecting: type[Exception]) -> Iterator[None]:
    """Raise StoreUnavailable, SQL errors and errors of the types `connecting` as CommandFailed."""
    from hopback.store.database import store_errors

    failures: tuple[type[Exception], ...] = (StoreUnavailable, *connecting)
    try:
        with store_errors():
            yield
    except failures as error:
        raise unreachable(error) from error


def unreachable(error: Exception) -> CommandFailed:
    """Convert an error of the database to CommandFailed. The SQL statement and the password are
    omitted.
    """
    text = (str(error).splitlines() or [type(error).__name__])[0]
    if isinstance(error, StoreDamaged | StoreTooNew):
        return CommandFailed(text, do=error.remedy, code=exit_of(error))
    return CommandFailed(
        text if isinstance(error, StoreUnavailable) else f"the database cannot be used: {text}",
        do="Check address, credentials and that the database exists.",
        code=Exit.UNREACHABLE,
    )


_LOG = logging.getLogger("hopback.relay")


@click.group(short_help="Migrate the database and relay its outbox.")
def store() -> None:
    """Migrate the database of inbox and outbox (SQLite or PostgreSQL) and relay its outbox."""


@store.command(short_help="Apply the missing migrations.")
@database_option
def migrate(url: str) -> None:
    """Apply the missing migrations. This can be repeated, and several processes can do it at the
    same time.
    """
    from hopback.clock import SystemClock
    from hopback.store import LATEST
    from hopback.store import migrate as apply_migrations

    async def migrate_database() -> list[int]:
        async with database(url) as engine:
            with database_errors(OSError):
                return await apply_migrations(engine, SystemClock())

    applied = asyncio.run(migrate_database())
    if applied:
        click.echo(f"Applied {', '.join(map(str, applied))}: the database is at version {LATEST}.")
    else:
        click.echo(f"Nothing to do: the database is at version {LATEST}.")


@store.command(short_help="Show the schema version.")
@database_option
@click.option(
    "--detailed-exit-code", is_flag=True, help="Exit with status 10 if a migration is missing."
)
def status(url: str, detailed_exit_code: bool) -> int:
    """Show the schema version of the database and the version that Hopback requires."""
    from hopback.store import LATEST

    found = asyncio.run(_version(url))
    message = "up to date" if found == LATEST else "made by a newer Hopback"
    if found < LATEST:
        message = "run `hopback store migrate`"
    click.echo(f"version {found} of {LATEST}: {message}")
    return Exit.FOUND if detailed_exit_code and found < LATEST else Exit.OK


async def _version(url: str) -> int:
    from hopback.store import current_version

    async with database(url) as engine:
        if _is_missing(engine.url):
            return 0
        with database_errors(OSError):
            return await current_version(engine)


def _is_missing(url: URL) -> bool:
    is_file = url.get_backend_name() == "sqlite" and bool(url.database)
    return is_file and not Path(str(url.database)).exists()


@store.command(short_help="Publish the messages of the outbox until stopped.")
@database_option
@click.option(
    "--broker",
    envvar="HOPBACK_BROKER",
    required=True,
    metavar="URL",
    help="amqp(s):// address. HOPBACK_BROKER keeps it out of process lists.",
)
@click.option(
    "--idle",
    type=Seconds(least=0.01),
    default="500ms",
    show_default=True,
    metavar="TIME",
    help="Time between two queries of an empty outbox: 500ms, or a number of seconds.",
)
@log_format_option
def relay(url: str, broker: str, idle: float, log_format: str) -> None:
    """Publish the messages of the outbox with confirms and in order per key. Several relays may run
    at once.

    After the first SIGINT or SIGTERM, the relay waits for publishes in flight. A second signal
    stops it at once. Messages that were not confirmed stay in the outbox.
    """
    from hopback.cli.log import open_log

    open_log("info", log_format)
    published = asyncio.run(_relay(url, rabbitmq(broker), idle))
    click.echo(f"Stopped. {published} messages published.")


async def _relay(url: str, broker: RabbitMQ, idle: float) -> int:
    from hopback.broker.message_sender import MessageSender
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
        # The owner of leases is a unique name, which also shows an operator which process holds
        # them.
        owner = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        outbox = Outbox(engine, owner, SystemClock())
        publisher = MessageSender(broker, name="hopback relay", on_state=_log_state)
        publisher.start()  # it retries until the broker is available
        try:
            found = Relay(outbox, publisher.send, idle=idle)
            await _until_stopped(found, idle)
        finally:
            await publisher.close()
        return found.published


def _log_state(state: SupervisedState, reason: str) -> None:
    _LOG.info("the publishing connection is %s%s", state, f": {reason}" if reason else "")


async def _until_stopped(relaying: Relay, idle: float) -> None:
    """Run the relay until a signal arrives. A second signal ends it without waiting for publishes
    in flight.
    """
    stopping, forced = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (forced if stopping.is_set() else stopping).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    swept, _ = await first_of(_sweep_on(relaying, idle, stopping), forced.wait())
    if swept is not None:
        swept.result()


async def _sweep_on(relaying: Relay, idle: float, stopping: asyncio.Event) -> None:
    """Run the relay until it is stopped. If the database is unavailable, retry."""
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
            # No jitter is needed, because a database only has a few relays.
            rest = Backoff(first=0.5).delay(failures, 0.5)
            _LOG.warning("%s. Next attempt in %.1f s", unreachable(error), rest)
        with suppress(TimeoutError):
            async with asyncio.timeout(rest):
                await stopping.wait()
