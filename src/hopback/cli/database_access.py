"""How a command reaches the database of inbox and outbox: the option, the engine, and its troubles."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hopback.cli.exits import CommandFailed, Exit

if TYPE_CHECKING:
    from types import ModuleType

    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["database_failures", "database_option", "opened", "store_package", "unreachable"]

database_option = click.option(
    "--database",
    envvar="HOPBACK_DATABASE",
    required=True,
    metavar="URL",
    help="sqlite:///file.db or postgresql://user:password@host/name; also HOPBACK_DATABASE.",
)


def store_package() -> ModuleType:
    """`hopback.store`, loaded when it is first asked for."""
    from hopback import store

    return store


def opened(url: str) -> AsyncEngine:
    """An engine; nothing is connected yet. A file that cannot be opened is told at once."""
    engine: AsyncEngine = store_package().open_database(url)
    if engine.dialect.name == "sqlite" and not _is_usable(Path(engine.url.database or ":memory:")):
        raise unreachable(OSError("unable to open database file"))
    return engine


def _is_usable(file: Path) -> bool:
    """Asked before the driver is: its thread would outlive a failure and speak to a closed loop."""
    if file.exists():
        return file.is_file() and os.access(file, os.R_OK | os.W_OK)
    return file.parent.is_dir() and os.access(file.parent, os.W_OK)


def database_failures() -> tuple[type[Exception], ...]:
    """What a database says when it cannot be used; SQLAlchemy is loaded when this is asked."""
    from sqlalchemy.exc import SQLAlchemyError

    return (SQLAlchemyError, OSError)


def unreachable(error: Exception) -> CommandFailed:
    """The driver's own words, without the statement; they never hold the password."""
    said = str(getattr(error, "orig", None) or error).splitlines()
    return CommandFailed(
        f"the database cannot be used: {said[0] if said else type(error).__name__}",
        do="Check address, credentials and that the database exists.",
        code=Exit.UNREACHABLE,
    )
