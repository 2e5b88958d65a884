"""`hopback store`: the database of the inbox and the outbox."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from hopback.cli.database_access import (
    database_failures,
    database_option,
    opened,
    store_package,
    unreachable,
)
from hopback.cli.exits import Exit
from hopback.cli.relay_command import relay

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["migrate", "status", "store"]


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
