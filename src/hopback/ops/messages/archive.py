"""Write messages as lines of JSON, and read them back with identical bodies, values and types.

Each line contains one message. Header values include the code of their AMQP type. The body is text
if it is UTF-8 and has at most 1 MiB. Otherwise it is base64. `about` is only informative and not
imported. A file is compressed with zstd if its name ends with `.zst`, which requires the extra
`zstd`. Lines are written to the disk before a message is removed from its queue.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
from base64 import b64decode
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from msgspec import structs

from hopback.errors import BadLine
from hopback.extras import needs
from hopback.headers.typed_json import as_base64, properties_from_json, properties_to_json
from hopback.message import Delivery, Received
from hopback.private_files import private_folder

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable

    from hopback.ops.contract.values import DeadLetter


VERSION = 1
"""The version of the format. Other versions cannot be read."""


def write_line(delivery: Delivery, dead_letter: DeadLetter | None = None) -> bytes:
    """Write a message as a line that ends with a newline."""
    record: dict[str, object] = {
        "hopback": VERSION,
        "queue": delivery.queue,
        "exchange": delivery.exchange,
        "routingKey": delivery.routing_key,
        **properties_to_json(delivery.properties),
    }
    try:
        if len(delivery.body) > _MOST_TEXT:
            raise ValueError("too long to be read as text")
        record["body"] = delivery.body.decode("utf-8")
    except ValueError:
        record["bodyBase64"] = as_base64(delivery.body)
    if dead_letter is not None:
        record["about"] = structs.asdict(dead_letter)
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def read_line(line: bytes | str, *, where: str = "line") -> Received:
    """Read a message from a line. Raises BadLine, which contains `where` and the reason."""
    try:
        record = json.loads(line)
        if not isinstance(record, dict) or record.get("hopback") != VERSION:
            raise ValueError(f"expected an exported message of version {VERSION}")
        texts = [record[name] for name in ("queue", "exchange", "routingKey")]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("expected strings for queue, exchange and routingKey")
        if "body" in record:
            body = str(record["body"]).encode("utf-8")
        else:
            body = b64decode(record["bodyBase64"], validate=True)
        queue, exchange, routing_key = texts
        return Received(queue, exchange, routing_key, body, properties_from_json(record))
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
        ArithmeticError,
    ) as exc:
        raise BadLine(f"{where} is not an exported message: {exc}") from exc


_MOST_TEXT = 1 << 20
"""Bytes. A larger body is written as base64, which needs less than two bytes per byte. JSON can
need six.
"""
_COMPRESSED = ".zst"
_AT_ONCE = 1 << 20
"""Bytes to read per call in a thread. The overhead of a call equals the time for some kilobytes."""
_LONGEST = 256 << 20
"""Bytes. The largest message of a broker is smaller when encoded as base64. Longer lines are refused."""


class FileSink:
    """A new file to which lines are appended. `write` returns after the lines were written to the
    disk.

    Raises OSError if the file already exists.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._compressor = _zstandard().ZstdCompressor() if path.suffix == _COMPRESSED else None
        self._file: BinaryIO | None = None

    async def write(self, lines: bytes) -> None:
        """Append lines and sync them to the disk."""
        await asyncio.to_thread(self._write, lines)

    async def close(self) -> None:
        """Close the file. It can be called repeatedly."""
        if self._file is not None:
            await asyncio.to_thread(self._file.close)

    def _write(self, lines: bytes) -> None:
        if self._file is None:
            private_folder(self.path.parent)
            # Only the owner may read the file, because payloads can be confidential.
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            self._file = os.fdopen(descriptor, "wb")
        # Each write creates a frame, so a crash can only damage the last one.
        self._file.write(lines if self._compressor is None else self._compressor.compress(lines))
        self._file.flush()
        os.fsync(self._file.fileno())


def check_writable(path: str) -> None:
    """Raise an error if a library is missing that is needed to write the file."""
    if path.endswith(_COMPRESSED):
        _zstandard()


def run_file(path: str, run: int) -> Path:
    """Return the file for a run of a job. Each run writes to its own file."""
    first = Path(path)
    if run == 1:
        return first
    stem, dot, suffixes = first.name.partition(".")
    return first.with_name(f"{stem}.{run}{dot}{suffixes}")


def run_files(path: str, runs: int) -> list[Path]:
    """Return the existing files of the first `runs` runs of a job. A run may not have written any."""
    files = (run_file(path, run) for run in range(1, runs + 1))
    return [file for file in files if file.is_file()]


def file_beside(path: str, job: str) -> str:
    """Return the file for a job that continues another job. It is in the same folder as the other file."""
    first = Path(path)
    _, dot, suffixes = first.name.partition(".")
    return str(first.with_name(f"{job}{dot}{suffixes}"))


def job_and_run(path: Path) -> tuple[str, int]:
    """Return the job and the run for a file name created by `run_file`."""
    job, _, rest = path.name.partition(".")
    run, _, _ = rest.partition(".")
    return job, int(run) if run.isdecimal() else 1


async def read_lines(path: Path) -> AsyncIterator[bytes]:
    """Yield the lines of an archive. Raises OSError if the file cannot be read."""
    source = await asyncio.to_thread(_open, path)
    try:
        while lines := await asyncio.to_thread(_read_block, source):
            for line in lines:
                yield line
    finally:
        await asyncio.to_thread(source.close)


async def read_files(paths: Iterable[Path]) -> AsyncGenerator[bytes, None]:
    """Yield the content of the files of a job as one archive.

    If a run was killed, the last line of its file may be incomplete. It is left out, because its
    message is still in the queue.
    """
    for path in paths:
        source = await asyncio.to_thread(path.open, "rb")
        try:
            while lines := await asyncio.to_thread(_read_block, source):
                if path.suffix != _COMPRESSED and not lines[-1].endswith(b"\n"):
                    lines.pop()
                yield b"".join(lines)
        finally:
            await asyncio.to_thread(source.close)


def read_lines_from(
    path: Path, position: int, most: int, most_bytes: int
) -> tuple[list[bytes], int]:
    """Read complete lines from a position in a file that may still grow.

    Returns the lines and the position after them.
    """
    lines: list[bytes] = []
    with path.open("rb") as source:
        end = source.seek(position)
        while len(lines) < most and end - position < most_bytes:
            line = source.readline(_LONGEST)
            if not line.endswith(b"\n"):
                break
            lines.append(line)
            end += len(line)
    return lines, end


def _open(path: Path) -> io.BufferedReader:
    raw = path.open("rb")
    if path.suffix != _COMPRESSED:
        return raw
    reader = _zstandard().ZstdDecompressor().stream_reader(raw, read_across_frames=True)
    return io.BufferedReader(reader)


def _read_block(source: io.BufferedReader) -> list[bytes]:
    """Read about one megabyte of lines. Raises BadLine if a line is too long."""
    lines: list[bytes] = []
    size = 0
    while size < _AT_ONCE and (line := source.readline(_LONGEST)):
        if len(line) == _LONGEST:
            raise BadLine(f"expected lines of less than {_LONGEST} bytes, got a longer one")
        lines.append(line)
        size += len(line)
    return lines


def _zstandard() -> Any:
    """Import the library. Raises an error that names the extra if it is missing."""
    with needs("zstd", "a .zst archive"):
        import zstandard
    return zstandard


def list_discard_files(folder: Path) -> list[Path]:
    """Return the files with discarded messages in a folder, which does not have to exist."""
    return sorted(path for path in folder.glob("j-*.ndjson") if ".originals." not in path.name)


def delete_exports(folder: Path, before: float) -> int:
    """Delete files of discarded messages that were last written before a time. Returns their number."""
    old = [path for path in folder.glob("j-*.ndjson*") if path.stat().st_mtime < before]
    for path in old:
        path.unlink(missing_ok=True)
    return len(old)
