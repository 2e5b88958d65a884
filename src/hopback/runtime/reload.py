"""Noticing that Python files have changed, by looking: for development, without a dependency."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["changed", "python_files", "until_changed"]

_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})
_LOOK_EVERY = 0.5


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


async def until_changed(folders: Iterable[Path]) -> tuple[Path, ...]:
    """Return what changed, as soon as something has."""
    places = tuple(folders)
    before = python_files(places)
    while True:
        await asyncio.sleep(_LOOK_EVERY)
        found = changed(before, python_files(places))
        if found:
            return found
