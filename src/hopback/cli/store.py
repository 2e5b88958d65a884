"""`hopback store`: the database of the inbox and the outbox, and the relay that empties the latter."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from hopback.cli.database import (
    database_failures,
    database_option,
    opened,
    store_package,
    unreachable,
)
from hopback.cli.exits import CommandFailed, Exit

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from hopback.broker.rabbitmq import RabbitMQ
    from hopback.broker.supervise import LineState
    from hopback.runtime.relay import Relay

__all__ = ["migrate", "relay", "status", "store"]

_LOG = logging.getLogger("hopback.relay")


@click.command(short_help="Publish what transactions left in the outbox, until stopped.")
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
@click.option(
    "--log-format",
    type=click.Choice(("auto", "json", "text")),
    default="auto",
    show_default=True,
    help="JSON lines, or short ones for people; by default those on a terminal.",
)
def relay(database: str, broker: str, idle: float, log_format: str) -> None:
    """Publish the messages of the outbox, confirmed and in order per key. Several may run at once.

    The first SIGINT or SIGTERM ends it after what is in flight, a second one at once; what was not
    confirmed stays in the outbox.
    """
    from hopback.cli.run_service import open_log

    open_log("info", log_format)
    published = asyncio.run(_relay(database, _broker(broker), idle))
    click.echo(f"Stopped. {published} messages published.")


def _broker(url: str) -> RabbitMQ:
    from hopback.broker.rabbitmq import RabbitMQ

    try:
        return RabbitMQ(url)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint="--broker") from error


async def _relay(database: str, broker: RabbitMQ, idle: float) -> int:
    from hopback.broker.publisher import Publisher
    from hopback.clock import SystemClock
    from hopback.runtime.relay import Relay

    engine = opened(database)
    try:
        await _require_tables(engine)
        outbox = store_package().Outbox(engine, _owner(), SystemClock())
        async with Publisher(broker, name="hopback relay", on_state=_log_state) as publisher:
            found = Relay(outbox, publisher.publish, idle=idle)
            await _until_stopped(found, idle)
        return found.published
    finally:
        await engine.dispose()


async def _require_tables(engine: AsyncEngine) -> None:
    package = store_package()
    try:
        version = await package.current_version(engine)
    except database_failures() as error:
        raise unreachable(error) from error
    if version < package.LATEST:
        raise CommandFailed(
            f"the database is at version {version}, expected {package.LATEST}",
            do="Run `hopback store migrate` first.",
            code=Exit.CONFLICT,
        )


def _owner() -> str:
    """A name for leases that no other relay has, and that tells an operator whose they are."""
    import os
    import socket
    import uuid

    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


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

    failures = 0
    while not stopping.is_set():
        try:
            rest = 0.0 if await relaying.sweep() else idle
            failures = 0
        except database_failures() as error:
            failures += 1
            rest = Backoff(first=0.5).delay(failures, 0.5)
            _LOG.warning("%s; trying again in %.1f s", unreachable(error), rest)
        with suppress(TimeoutError):
            async with asyncio.timeout(rest):
                await stopping.wait()


@click.group(short_help="The database of inbox and outbox: migrate it, relay what it holds.")
def store() -> None:
    """The database of inbox and outbox: SQLite, or PostgreSQL by URL."""


store.add_command(relay)


@store.command(short_help="Bring the tables to the version of this Hopback.")
@database_option
def migrate(database: str) -> None:
    """Apply the migrations that are missing. Safe to repeat, and to run from several places at once."""
    applied = asyncio.run(_migrate(database))
    latest = store_package().LATEST
    if applied:
        click.echo(f"Applied {', '.join(map(str, applied))}: the database is at version {latest}.")
    else:
        click.echo(f"Nothing to do: the database is at version {latest}.")


@store.command(short_help="Show the version of the tables and what is missing.")
@database_option
@click.option("--detailed-exit-code", is_flag=True, help="Leave with 10 if a migration is missing.")
def status(database: str, detailed_exit_code: bool) -> int:
    """Show the version of the tables beside the one that this Hopback works with."""
    latest = store_package().LATEST
    found = asyncio.run(_version(database))
    click.echo(f"version {found} of {latest}: {_judged(found, latest)}")
    return Exit.FOUND if detailed_exit_code and found < latest else Exit.OK


def _judged(found: int, latest: int) -> str:
    if found < latest:
        return "run `hopback store migrate`"
    return "up to date" if found == latest else "made by a newer Hopback"


async def _migrate(url: str) -> list[int]:
    from hopback.clock import SystemClock

    engine = opened(url)
    try:
        applied: list[int] = await store_package().migrate(engine, SystemClock())
    except database_failures() as error:
        raise unreachable(error) from error
    finally:
        await engine.dispose()
    return applied


async def _version(url: str) -> int:
    """The version; a file that does not exist is not made by looking."""
    engine = opened(url)
    try:
        if _is_missing_file(engine):
            return 0
        version: int = await store_package().current_version(engine)
    except database_failures() as error:
        raise unreachable(error) from error
    finally:
        await engine.dispose()
    return version


def _is_missing_file(engine: AsyncEngine) -> bool:
    from pathlib import Path

    file = engine.url.database
    return engine.dialect.name == "sqlite" and bool(file) and not Path(str(file)).exists()
