"""Messages as lines of JSON and back: bytes exact, every property and header equal in value and type.

A line contains one message. Each header value is accompanied by the code of its AMQP type. The body is text
if it is UTF-8 and at most 1 MiB long, otherwise base64. `about` is for readers and is not imported. A file is
compressed with zstd where its name ends in `.zst`; that needs the extra `zstd`, which is
imported when the first such file is opened. What is written is on the disk before anything that depends on it
is done.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
from base64 import b64decode
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from msgspec import structs

from hopback.errors import BadLine
from hopback.extras import needs
from hopback.headers.typed_json import as_base64, properties_from_json, properties_to_json
from hopback.private_files import private_folder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hopback.message import Delivery, Properties
    from hopback.ops.contract.values import DeadLetter


VERSION = 1
"""The version of the format; a reader refuses a newer one."""


@dataclass(frozen=True, slots=True)
class Archived:
    """One message out of an archive: where it was, and all of it."""

    queue: str
    exchange: str
    routing_key: str
    body: bytes
    properties: Properties


def write_line(delivery: Delivery, dead_letter: DeadLetter | None = None) -> bytes:
    """One message as one line, with its newline."""
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


def read_line(line: bytes | str, *, where: str = "line") -> Archived:
    """The message in a line; BadLine says what was wrong and where."""
    try:
        record = json.loads(line)
        if not isinstance(record, dict) or record.get("hopback") != VERSION:
            raise ValueError(f"expected an exported message of version {VERSION}")
        texts = [record[name] for name in ("queue", "exchange", "routingKey")]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("expected texts for queue, exchange and routingKey")
        if "body" in record:
            body = str(record["body"]).encode("utf-8")
        else:
            body = b64decode(record["bodyBase64"], validate=True)
        queue, exchange, routing_key = texts
        return Archived(queue, exchange, routing_key, body, properties_from_json(record))
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
        ArithmeticError,
    ) as exc:
        raise BadLine(f"{where} is no exported message: {exc}") from exc


_MOST_TEXT = 1 << 20
"""Bytes of a body that is written as text. JSON may need six bytes for each, base64 never more than two."""
_COMPRESSED = ".zst"
_AT_ONCE = 1 << 20
"""Bytes of lines for one change of thread: each change costs about as much as reading a few kilobytes."""
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


def job_and_run(path: Path) -> tuple[str, int]:
    """Which job, and which of its runs, writes a file of this name: what `run_file` made of both."""
    job, _, rest = path.name.partition(".")
    run, _, _ = rest.partition(".")
    return job, int(run) if run.isdecimal() else 1


async def read_lines(path: Path) -> AsyncIterator[bytes]:
    """The lines of an archive, one after the other; OSError if the file cannot be read."""
    source = await asyncio.to_thread(_open, path)
    try:
        while lines := await asyncio.to_thread(_some, source):
            for line in lines:
                yield line
    finally:
        await asyncio.to_thread(source.close)


def lines_from(path: Path, position: int, most: int, most_bytes: int) -> tuple[list[bytes], int]:
    """Whole lines of a file from a position on, and where the next begins; one that grows has more later."""
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


def discarded_files(folder: Path) -> list[Path]:
    """The files that discards, of whatever broker, wrote into this folder; no folder has none."""
    return sorted(path for path in folder.glob("j-*.ndjson") if ".originals." not in path.name)


def forget_exports(folder: Path, before: float) -> int:
    """Delete the files of discards that were last written before then; how many. No folder is no error."""
    old = [path for path in folder.glob("j-*.ndjson*") if path.stat().st_mtime < before]
    for path in old:
        path.unlink(missing_ok=True)
    return len(old)
