"""A journal that is opened when it is needed: most commands only ask whether a job runs, and note a look.

SQLAlchemy takes longer to load than such a command needs for everything else. So these two things are
done with the standard library where the journal is an SQLite file with the tables that this release
writes; anything else opens the real journal, which then does the rest.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from msgspec import structs

from hopback.deadletters.contract import ACTIVE
from hopback.deadletters.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from hopback.clock import Clock
    from hopback.deadletters.contract import AuditEntry
    from hopback.deadletters.journal import JobRecord

__all__ = ["LateJournal", "sqlite_file"]

_BUSY_S = 10.0  # as long as the real journal waits for another writer
_ENTRY = ("at", "by", "action", "queue", "job", "reason", "result", "details", "broker")


def sqlite_file(url: str) -> Path | None:
    """The file that a database URL names; None for another database, and one that is in memory."""
    parts = urlsplit(url)
    plain = parts.scheme.partition("+")[0] == "sqlite" and not (parts.netloc or parts.query)
    name = unquote(parts.path).removeprefix("/")
    return Path(name) if plain and name and name != ":memory:" else None


class LateJournal:
    """Stands for the journal that `opening` gives, which is entered by the first call that needs it."""

    def __init__(
        self,
        file: Path | None,
        opening: Callable[[], AbstractAsyncContextManager[Journal]],
        stack: AsyncExitStack,
        clock: Clock,
    ) -> None:
        self._file = file
        self._opening = opening
        self._stack = stack
        self._clock = clock
        self._lock = asyncio.Lock()
        self._real: Journal | None = None

    async def real(self) -> Journal:
        """The journal itself."""
        async with self._lock:
            if self._real is None:
                self._real = await self._stack.enter_async_context(self._opening())
            return self._real

    async def jobs(
        self, *, broker: str = "", queue: str = "", active: bool = False, limit: int = 100
    ) -> tuple[JobRecord, ...]:
        """Jobs, the newest first."""
        if active and self._real is None and await asyncio.to_thread(self._is_idle, broker, queue):
            return ()
        found = await self.real()
        return await found.jobs(broker=broker, queue=queue, active=active, limit=limit)

    async def write(self, entry: AuditEntry, broker: str = "") -> None:
        """Append to the audit, for that broker."""
        if self._real is None and await asyncio.to_thread(self._append, entry, broker):
            return
        await (await self.real()).write(entry, broker)

    async def remembered(self, broker: str, kind: str) -> dict[str, str]:
        """The documents of a kind that are kept for a broker, by key."""
        if self._real is None:
            found = await asyncio.to_thread(self._documents, broker, kind)
            if found is not None:
                return found
        return await (await self.real()).remembered(broker, kind)

    def __getattr__(self, name: str) -> Any:
        """Whatever else a journal does, once it is open."""
        if name.startswith("_") or not callable(getattr(Journal, name, None)):
            raise AttributeError(name)

        async def call(*positional: Any, **named: Any) -> Any:
            return await getattr(await self.real(), name)(*positional, **named)

        return call

    def _is_idle(self, broker: str, queue: str) -> bool:
        """Whether it is sure that no job runs; a file that is not there yet has none."""
        if self._file is None:
            return False
        if not self._file.exists():
            return self._file.parent.is_dir()
        wanted = ["state IN (?, ?)", "leased_until >= ?"]
        values: list[object] = [*sorted(ACTIVE), self._clock.now()]
        for column, value in (("place", broker), ("queue", queue)):
            if value:
                wanted.append(f"{column} = ?")
                values.append(value)
        query = f"SELECT 1 FROM hopback_jobs WHERE {' AND '.join(wanted)} LIMIT 1"  # noqa: S608 - ours
        try:
            with closing(self._connect(self._file)) as connection:
                return connection.execute(query, values).fetchone() is None
        except sqlite3.Error:
            return False  # the real journal says what is wrong, or makes the tables

    def _documents(self, broker: str, kind: str) -> dict[str, str] | None:
        """What is kept; None where that is not sure."""
        if self._file is None:
            return None
        if not self._file.exists():
            return {} if self._file.parent.is_dir() else None
        query = "SELECT key, document FROM hopback_documents WHERE place = ? AND kind = ?"
        try:
            with closing(self._connect(self._file)) as connection:
                return dict(connection.execute(query, (broker, kind)).fetchall())
        except sqlite3.Error:
            return None

    def _append(self, entry: AuditEntry, broker: str) -> bool:
        """Whether the entry was written: only into a table that has exactly the columns we know."""
        if self._file is None or not self._file.exists():
            return False
        values = structs.asdict(entry) | {
            "details": json.dumps(dict(entry.details), default=str),
            "broker": broker,
        }
        names = ", ".join(f'"{name}"' for name in _ENTRY)
        marks = ", ".join("?" for _ in _ENTRY)
        insert = f"INSERT INTO hopback_audit ({names}) VALUES ({marks})"  # noqa: S608 - ours
        try:
            with closing(self._connect(self._file)) as connection, connection:
                columns = {row[1] for row in connection.execute("PRAGMA table_info(hopback_audit)")}
                if columns != {"number", *_ENTRY} or values.keys() - {"number"} != {*_ENTRY}:
                    return False
                connection.execute(insert, [values[name] for name in _ENTRY])
        except sqlite3.Error:
            return False
        return True

    @staticmethod
    def _connect(file: Path) -> sqlite3.Connection:
        return sqlite3.connect(f"{file.resolve().as_uri()}?mode=rw", uri=True, timeout=_BUSY_S)
