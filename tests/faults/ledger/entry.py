"""Entries: what producers, consumers, operators and fault makers write down, one line each.

An entry is written before the act that makes it matter: a run before its ack, so that whatever dies
afterwards, the books know of it. A line goes to the file in one system call; a killed process leaves
whole lines.
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
    """What happened."""

    SENT = "sent"
    """A producer is about to publish; `note` lists the queues that are to get it."""
    CONFIRMED = "confirmed"
    BEGUN = "begun"
    """A handler was called; `note` is `again` if the broker may have handed it out before, and
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
    """The runtime said so: a failed delivery was published on and settled."""
    PARKED = "parked"
    ABANDONED = "abandoned"
    DISCARDED = "discarded"
    FOUND = "found"
    """At the end the message lies in `queue`."""
    FAULT = "fault"
    """Something was broken: `queue` is the scope, `who` the victim (`*`: all), `note` its name."""
    HEALED = "healed"
    GONE = "gone"
    """An operator has deleted `queue`, with what was in it."""
    SAMPLE = "sample"
    """What a process used at that moment, in `note`."""


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
        """As it stands in a file."""
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
    """Writes into a list; a process that was killed writes nothing more."""

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
    """Appends to a file; what was written outlives the process, however it ends."""

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
    """Every entry of every file in a folder; a last line that was cut short is no entry.

    With `since` only what was added to each file since it was last read with it.
    """
    for path in sorted(folder.glob("*.ledger")):
        with path.open("rb") as lines:
            lines.seek(0 if since is None else since.get(path.name, 0))
            for line in lines:
                if line.endswith(b"\n"):
                    yield Entry.read(line[:-1].decode())
            if since is not None:
                since[path.name] = lines.tell()
