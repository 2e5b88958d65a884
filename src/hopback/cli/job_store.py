"""Where the command keeps jobs and audit: a file of the user's own, or a database by URL."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hopback.cli.database_access import database_failures, opened, store_package, unreachable
from hopback.private_files import private_folder

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from hopback.clock import Clock
    from hopback.deadletters.journal import Journal

__all__ = ["IN_MEMORY", "open_journal", "state_folder"]

IN_MEMORY = "memory"
"""The store that ends with the process: nothing can be resumed, nothing is audited."""


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


async def open_journal(url: str | None, clock: Clock, stack: AsyncExitStack) -> Journal:
    """The journal at that URL, or in the user's own file; its tables are made if they are missing.

    Without the extra `store`, and where the user's own file cannot be made, it is kept in memory.
    """
    from hopback.deadletters.journal import MemoryJournal

    address = url or _own_file()
    if address is None or address == IN_MEMORY:
        return MemoryJournal()
    engine = opened(address)
    stack.push_async_callback(engine.dispose)
    try:
        await store_package().migrate(engine, clock)
    except database_failures() as error:
        raise unreachable(error) from error
    from hopback.deadletters.sql_journal import SqlJournal

    return SqlJournal(engine, clock)


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
