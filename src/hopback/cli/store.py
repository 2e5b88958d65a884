"""`hopback store`: the database of the inbox and the outbox, and the relay that empties the latter."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hopback.cli.database import database, database_errors, database_option, unreachable
from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.options import log_format_option, rabbitmq
from hopback.errors import StoreUnavailable

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

    from hopback.broker.rabbitmq import RabbitMQ
    from hopback.broker.supervise import LineState
    from hopback.runtime.relay import Relay

__all__ = ["migrate", "relay", "status", "store"]

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


def _log_state(state: LineState, reason: str) -> None:
    _LOG.info("the publishing connection is %s%s", state, f": {reason}" if reason else "")


async def _until_stopped(relaying: Relay, idle: float) -> None:
    """Sweep until a signal comes; a second one does not wait for what is in flight."""
    stopping, forced = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (forced if stopping.is_set() else stopping).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    waits = [
        asyncio.ensure_future(_sweep_on(relaying, idle, stopping)),
        asyncio.ensure_future(forced.wait()),
    ]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waits:
            one.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


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
