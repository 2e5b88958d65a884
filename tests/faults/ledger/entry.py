"""The entries that producers, consumers, operators and fault injectors write, one per line.

An entry is written before its action, for example before an ack. The books are therefore complete
even if the process is killed. Each line is written by a single system call, so a killed process
only leaves complete lines.
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
    SENT = "sent"
    """A producer is about to publish a message. `note` lists the destination queues."""
    CONFIRMED = "confirmed"
    BEGUN = "begun"
    """A handler was called. `note` is `again` if the message may have been delivered before,
    followed by `;n` if it was re-driven n times.
    """
    DONE = "done"
    FAILED = "failed"
    """The handler requested a retry."""
    HOPELESS = "hopeless"
    """The handler requested that the message is parked."""
    SNOOZED = "snoozed"
    ALTERED = "altered"
    """The body or the properties of a message have changed."""
    RETRIED = "retried"
    """The runtime has reported that a failed delivery was republished and settled."""
    PARKED = "parked"
    ABANDONED = "abandoned"
    DISCARDED = "discarded"
    FOUND = "found"
    """At the end, the message was in `queue`."""
    FAULT = "fault"
    """A fault was injected. `queue` is its scope, `who` is the victim or `*` for all, and `note` is
    its name.
    """
    HEALED = "healed"
    GONE = "gone"
    """An operator has deleted `queue` and its messages."""
    SAMPLE = "sample"
    """The resources of a process at this time are in `note`."""


class Entry(NamedTuple):
    at: float
    kind: Kind
    who: str
    message: str = "-"
    queue: str = "-"
    attempt: int = 0
    note: str = "-"

    def line(self) -> bytes:
        """Format the entry as a line of the file."""
        return (
            f"{self.at:.6f} {self.kind} {self.who} {self.message} {self.queue} {self.attempt}"
            f" {self.note.replace(' ', '_')}\n"
        ).encode()

    @classmethod
    def read(cls, line: str) -> Self:
        """Parse a line of the file."""
        at, kind, who, message, queue, attempt, note = line.split(" ")
        return cls(float(at), Kind(kind), who, message, queue, int(attempt), note)


class Pen(Protocol):
    """Writes entries under one name."""

    def write(
        self, kind: Kind, message: str = "-", queue: str = "-", attempt: int = 0, note: str = "-"
    ) -> None:
        """Write one entry, now."""


class ListPen:
    """Writes to a list. When the process is killed, it stops writing."""

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
    """Writes to a file, which is kept when the process is killed."""

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
    """Yield all entries of all files in a folder.

    An incomplete last line is ignored. With `since`, only entries that were added since the last
    call are returned.
    """
    for path in sorted(folder.glob("*.ledger")):
        with path.open("rb") as lines:
            lines.seek(0 if since is None else since.get(path.name, 0))
            for line in lines:
                if line.endswith(b"\n"):
                    yield Entry.read(line[:-1].decode())
            if since is not None:
                since[path.name] = lines.tell()
