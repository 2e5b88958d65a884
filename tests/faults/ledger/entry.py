"""Entries written by producers, consumers, operators and fault injectors, one line each.

An entry is written before its act, for example a run before its ack, so the books are complete even
if the process dies. A line is written by one system call, so a killed process leaves complete
lines.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Self

__all__ = ["Entry", "FilePen", "Kind", "ListPen", "Pen", "read_entries"]


class Kind(StrEnum):
    """The kind of an entry."""

    SENT = "sent"
    """A producer is about to publish. `note` lists the destination queues."""
    CONFIRMED = "confirmed"
    BEGUN = "begun"
    """A handler was called. `note` is `again` if the broker may have delivered it before, and
    `;n` if the message was re-driven n times."""
    DONE = "done"
    FAILED = "failed"
    """The handler asked for a retry."""
    HOPELESS = "hopeless"
    """The handler asked for parking."""
    SNOOZED = "snoozed"
    ALTERED = "altered"
    """A message came with another body or other properties than it was sent with."""
    RETRIED = "retried"
    """Reported by the runtime: a failed delivery was republished and settled."""
    PARKED = "parked"
    ABANDONED = "abandoned"
    DISCARDED = "discarded"
    FOUND = "found"
    """At the end the message is in `queue`."""
    FAULT = "fault"
    """Something was broken: `queue` is the scope, `who` the victim (`*`: all), `note` its name."""
    HEALED = "healed"
    GONE = "gone"
    """An operator has deleted `queue` with its messages."""
    SAMPLE = "sample"
    """The resources of a process at that moment, in `note`."""


class Entry(NamedTuple):
    """One line of the ledger."""

    at: float
    kind: Kind
    who: str
    message: str = "-"
    queue: str = "-"
    attempt: int = 0
    note: str = "-"

    def line(self) -> bytes:
        """The line in the file."""
        return (
            f"{self.at:.6f} {self.kind} {self.who} {self.message} {self.queue} {self.attempt}"
            f" {self.note.replace(' ', '_')}\n"
        ).encode()

    @classmethod
    def read(cls, line: str) -> Self:
        """The entry of a line."""
        at, kind, who, message, queue, attempt, note = line.split(" ")
        return cls(float(at), Kind(kind), who, message, queue, int(attempt), note)


class Pen(Protocol):
    """Writes entries in one name."""

    def write(
        self, kind: Kind, message: str = "-", queue: str = "-", attempt: int = 0, note: str = "-"
    ) -> None:
        """Write one entry, now."""


class ListPen:
    """Writes into a list. A killed process stops writing."""

    def __init__(self, entries: list[Entry], who: str, now: Callable[[], float]) -> None:
        self._entries = entries
        self.who = who
        self._now = now
        self.alive = True

    def write(
        self, kind: Kind, message: str = "-", queue: str = "-", attempt: int = 0, note: str = "-"
    ) -> None:
        """Write one entry, now."""
        if self.alive:
            self._entries.append(Entry(self._now(), kind, self.who, message, queue, attempt, note))


class FilePen:
    """Appends to a file that outlives the process."""

    def __init__(self, path: Path, who: str, now: Callable[[], float]) -> None:
        self.who = who
        self._now = now
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(
        self, kind: Kind, message: str = "-", queue: str = "-", attempt: int = 0, note: str = "-"
    ) -> None:
        """Write one entry, now."""
        os.write(
            self._file, Entry(self._now(), kind, self.who, message, queue, attempt, note).line()
        )


def read_entries(folder: Path, since: dict[str, int] | None = None) -> Iterator[Entry]:
    """Return every entry of every file in a folder.

    An incomplete last line is ignored. With `since`, return only entries added since the last call
    with it.
    """
    for path in sorted(folder.glob("*.ledger")):
        with path.open("rb") as lines:
            lines.seek(0 if since is None else since.get(path.name, 0))
            for line in lines:
                if line.endswith(b"\n"):
                    yield Entry.read(line[:-1].decode())
            if since is not None:
                since[path.name] = lines.tell()
