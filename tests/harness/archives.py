"""Unpacking tar archives on every Python that is supported."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["unpack"]


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Extract all members into the folder, and only there if tarfile supports filters.

    Python 3.11.2 of Debian 12 has no filters. All extracted archives are pinned or our own.
    """
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
    else:
        archive.extractall(folder)
