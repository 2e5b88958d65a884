"""Unpacking tar archives on every Python that is supported."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["unpack"]


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Everything into the folder, and nothing beside it where tarfile can see to that.

    Python 3.11.2, which is Debian 12's, has no filters yet; what is unpacked here is pinned or our own.
    """
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
    else:
        archive.extractall(folder)
