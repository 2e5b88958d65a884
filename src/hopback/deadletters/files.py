"""Archives as files: lines of JSON, compressed with zstd where the name ends in `.zst`.

What is written is on the disk before anything that depends on it is done. Compression needs the
extra `zstd`, which is imported when the first such file is opened.
"""

from __future__ import annotations

import asyncio
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from hopback.errors import BadLine
from hopback.extras import needs
from hopback.private_files import private_folder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["FileSink", "check_writable", "read_lines", "run_file"]

_COMPRESSED = ".zst"
_AT_ONCE = 1 << 20
_LONGEST = 256 << 20
"""More than the largest message that a broker takes, in base64."""


class FileSink:
    """A file that grows; every `write` returns when the lines are on the disk.

    It never overwrites: a file that exists is an OSError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._compressor = _zstandard().ZstdCompressor() if path.suffix == _COMPRESSED else None
        self._file: BinaryIO | None = None

    async def write(self, lines: bytes) -> None:
        """Append the lines and see them on the disk; OSError if that cannot be."""
        await asyncio.to_thread(self._write, lines)

    async def close(self) -> None:
        """Finish the file. Safe to repeat."""
        if self._file is not None:
            await asyncio.to_thread(self._file.close)

    def _write(self, lines: bytes) -> None:
        if self._file is None:
            private_folder(self.path.parent)
            # Payloads may be private: nobody but their owner reads the file.
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            self._file = os.fdopen(descriptor, "wb")
        # One frame for each write: what was cut off by a crash is the last frame alone.
        self._file.write(lines if self._compressor is None else self._compressor.compress(lines))
        self._file.flush()
        os.fsync(self._file.fileno())


def check_writable(path: str) -> None:
    """Say at once what a later write would trip over: a library that is missing."""
    if path.endswith(_COMPRESSED):
        _zstandard()


def run_file(path: str, run: int) -> Path:
    """The file of one run of a job: what a crash cut off is never written over, nor added to."""
    first = Path(path)
    if run == 1:
        return first
    stem, dot, suffixes = first.name.partition(".")
    return first.with_name(f"{stem}.{run}{dot}{suffixes}")


async def read_lines(path: Path) -> AsyncIterator[bytes]:
    """The lines of an archive, one after the other; OSError if the file cannot be read."""
    source = await asyncio.to_thread(_opened, path)
    try:
        while lines := await asyncio.to_thread(_some, source):
            for line in lines:
                yield line
    finally:
        await asyncio.to_thread(source.close)


def _opened(path: Path) -> io.BufferedReader:
    raw = path.open("rb")
    if path.suffix != _COMPRESSED:
        return raw
    reader = _zstandard().ZstdDecompressor().stream_reader(raw, read_across_frames=True)
    return io.BufferedReader(reader)


def _some(source: io.BufferedReader) -> list[bytes]:
    """About a megabyte of lines; BadLine for one that no message can be."""
    lines: list[bytes] = []
    size = 0
    while size < _AT_ONCE and (line := source.readline(_LONGEST)):
        if len(line) == _LONGEST:
            raise BadLine(f"expected lines of less than {_LONGEST} bytes, got a longer one")
        lines.append(line)
        size += len(line)
    return lines


def _zstandard() -> Any:
    """The library, or a sentence that says how to get it."""
    with needs("zstd", "a .zst archive"):
        import zstandard
    return zstandard
