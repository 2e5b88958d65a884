"""`hopback store`: the database of the inbox and the outbox."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from hopback.cli.exits import CommandFailed, Exit

if TYPE_CHECKING:
    from types import ModuleType

    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["migrate", "status", "store"]

_database = click.option(
    "--database",
    envvar="HOPBACK_DATABASE",
    required=True,
    metavar="URL",
    help="sqlite:///file.db or postgresql://user:password@host/name; also HOPBACK_DATABASE.",
)


@click.group(short_help="Migrate the database of inbox and outbox, or show its version.")
def store() -> None:
    """The database of inbox and outbox: SQLite, or PostgreSQL by URL."""


@store.command(short_help="Bring the tables to the version of this Hopback.")
@_database
def migrate(database: str) -> None:
    """Apply the migrations that are missing. Safe to repeat, and to run from several places at once."""
    applied = asyncio.run(_migrate(_store(), database))
    latest = _store().LATEST
    if applied:
        click.echo(f"Applied {', '.join(map(str, applied))}: the database is at version {latest}.")
    else:
        click.echo(f"Nothing to do: the database is at version {latest}.")


@store.command(short_help="Show the version of the tables and what is missing.")
@_database
@click.option("--detailed-exit-code", is_flag=True, help="Leave with 10 if a migration is missing.")
def status(database: str, detailed_exit_code: bool) -> int:
    """Show the version of the tables beside the one that this Hopback works with."""
    latest = _store().LATEST
    found = asyncio.run(_version(_store(), database))
    click.echo(f"version {found} of {latest}: {_judged(found, latest)}")
    return Exit.FOUND if detailed_exit_code and found < latest else Exit.OK


def _judged(found: int, latest: int) -> str:
    if found < latest:
        return "run `hopback store migrate`"
    return "up to date" if found == latest else "made by a newer Hopback"


def _store() -> ModuleType:
    try:
        from hopback import store as found
    except ImportError as error:
        raise CommandFailed(
            f"the store needs SQLAlchemy, which cannot be imported: {error}",
            do="Install the extra: pip install 'hopback[store]' (for PostgreSQL 'hopback[postgres]').",
        ) from error
    return found


async def _migrate(found: ModuleType, url: str) -> list[int]:
    from hopback.clock import SystemClock

    engine = _opened(found, url)
    try:
        applied: list[int] = await found.migrate(engine, SystemClock())
    except _failures() as error:
        raise _unreachable(error) from error
    finally:
        await engine.dispose()
    return applied


async def _version(found: ModuleType, url: str) -> int:
    """The version; a file that does not exist is not made by looking."""
    engine = _opened(found, url)
    try:
        if _is_missing_file(engine):
            return 0
        version: int = await found.current_version(engine)
    except _failures() as error:
        raise _unreachable(error) from error
    finally:
        await engine.dispose()
    return version


def _is_missing_file(engine: AsyncEngine) -> bool:
    from pathlib import Path

    file = engine.url.database
    return engine.dialect.name == "sqlite" and bool(file) and not Path(str(file)).exists()


def _opened(found: ModuleType, url: str) -> AsyncEngine:
    try:
        engine: AsyncEngine = found.open_database(url)
    except ImportError as error:
        raise CommandFailed(
            f"the driver of this database is not installed: {error}",
            do="Install the extra: pip install 'hopback[postgres]', or 'hopback[store]' for SQLite.",
        ) from error
    return engine


def _failures() -> tuple[type[Exception], ...]:
    """What a database says when it cannot be used; SQLAlchemy is loaded when this is asked."""
    from sqlalchemy.exc import SQLAlchemyError

    return (SQLAlchemyError, OSError)


def _unreachable(error: Exception) -> CommandFailed:
    """The driver's own words, without the statement; they never hold the password."""
    said = str(getattr(error, "orig", None) or error).splitlines()
    return CommandFailed(
        f"the database cannot be used: {said[0] if said else type(error).__name__}",
        do="Check address, credentials and that the database exists.",
        code=Exit.UNREACHABLE,
    )
