"""Noticing that Python files have changed, by looking: for development, without a dependency."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Changes", "changed", "python_files"]

_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})
_LOOK_EVERY = 0.5  # short for whoever has just saved a file, and cheap: only times are read


def python_files(folders: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    """Every .py file below the folders with its time of change and size; hidden folders are not."""
    found: dict[Path, tuple[int, int]] = {}
    for folder in folders:
        for where, below, names in os.walk(folder):
            below[:] = [one for one in below if not one.startswith(".") and one not in _SKIPPED]
            for name in names:
                if name.endswith(".py"):
                    _note(Path(where, name), found)
    return found


def _note(path: Path, found: dict[Path, tuple[int, int]]) -> None:
    try:
        state = path.stat()
    except OSError:
        return  # it went away while we looked
    found[path] = (state.st_mtime_ns, state.st_size)


def changed(
    before: dict[Path, tuple[int, int]], after: dict[Path, tuple[int, int]]
) -> tuple[Path, ...]:
    """What was written, made or removed between two looks."""
    return tuple(
        sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    )


class Changes:
    """Tells what has changed since it was last asked, also while nobody asked."""

    def __init__(self, *folders: Path) -> None:
        self._folders = folders
        self._seen = python_files(folders)

    async def __call__(self) -> tuple[Path, ...]:
        """Return what changed, as soon as something has."""
        while True:
            now = python_files(self._folders)
            found, self._seen = changed(self._seen, now), now
            if found:
                return found
            await asyncio.sleep(_LOOK_EVERY)
