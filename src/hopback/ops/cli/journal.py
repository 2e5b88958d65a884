"""Open the journal of a command or a service, which is in a database or in a file of the user."""

from __future__ import annotations

import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hopback.cli.store import check_file, unreachable
from hopback.errors import StoreUnavailable
from hopback.private_files import private_folder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hopback.clock import Clock
    from hopback.ops.jobs.journal import Journal

IN_MEMORY = "memory"
"""The value of `--store` for a journal in memory, which is lost when the process ends."""


@asynccontextmanager
async def journal(
    url: str | None, clock: Clock, *, lease_s: float = 30.0
) -> AsyncIterator[Journal]:
    """Open the journal in a database, or in the user's file if there is no URL.

    If the user's file cannot be created, the journal is in memory.
    """
    from hopback.ops.jobs.journal import MemoryJournal, open_journal

    address = url or _own_file()
    if address is None or address == IN_MEMORY:
        yield MemoryJournal()
        return
    check_file(address)
    try:
        async with open_journal(address, clock, lease_s=lease_s) as found:
            yield found
    except StoreUnavailable as error:
        raise unreachable(error) from error


def _own_file() -> str | None:
    from hopback.sql.sqlite import sqlite_url

    folder = state_folder()
    try:
        private_folder(folder)
    except OSError:
        return None
    return sqlite_url(folder / "jobs.db") if os.access(folder, os.W_OK) else None


def state_folder() -> Path:
    """Return the platform's folder for application state of the user."""
    home = Path.home()
    if sys.platform == "win32":
        root = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        root = home / "Library" / "Application Support"
    else:
        root = Path(os.environ.get("XDG_STATE_HOME") or home / ".local" / "state")
    return root / "hopback"
