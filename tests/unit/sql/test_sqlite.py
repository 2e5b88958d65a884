"""A database in an SQLite file, without anything that is not Python's own."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from hopback.clock import ManualClock
from hopback.errors import StoreUnavailable
from hopback.sql import sqlite, versions
from hopback.sql.database import RowRefused, placeholders
from hopback.sql.sqlite import SqliteDatabase, sqlite_file, sqlite_url
from hopback.store import open_database
from hopback.testing import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from hopback.sql.database import Execute


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    """A new file, and its end."""
    made = SqliteDatabase(tmp_path / "jobs.db", ManualClock(7.0))
    yield made
    await made.close()


def _keep(execute: Execute, key: str = "k") -> None:
    execute("INSERT INTO hopback_api_keys (id, document) VALUES (:id, '{}')", {"id": key})


def _kept(execute: Execute) -> list[str]:
    return [key for (key,) in execute("SELECT id FROM hopback_api_keys ORDER BY id")]


async def test_file_is_created_by_first_transaction_and_private(
    database: SqliteDatabase, tmp_path: Path
) -> None:
    file = tmp_path / "jobs.db"
    assert not file.exists()
    found = await database.write(lambda execute: versions.version_of(execute, "sqlite"))
    assert found == versions.LATEST
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    applied = await database.read(
        lambda execute: execute("SELECT DISTINCT applied_at FROM hopback_versions")
    )
    assert applied == [(7.0,)]


async def test_failed_transaction_leaves_no_rows(database: SqliteDatabase) -> None:
    def fail(execute: Execute) -> None:
        _keep(execute)
        raise LookupError

    with pytest.raises(LookupError):
        await database.write(fail)
    assert await database.read(_kept) == []
    await database.write(_keep)

    def repeat(execute: Execute) -> None:
        _keep(execute, "other")
        _keep(execute)

    with pytest.raises(RowRefused, match="UNIQUE constraint failed"):
        await database.write(repeat)
    assert await database.read(_kept) == ["k"]


async def test_transaction_of_cancelled_caller_completes(database: SqliteDatabase) -> None:
    began, go_on = threading.Event(), threading.Event()

    def keep(execute: Execute) -> None:
        _keep(execute, "a")
        began.set()
        go_on.wait(10)
        _keep(execute, "b")

    working = asyncio.create_task(database.write(keep))
    await asyncio.to_thread(began.wait, 10)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    go_on.set()
    assert await database.read(_kept) == ["a", "b"]


async def test_writer_waits_for_lock_up_to_timeout(
    database: SqliteDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_BUSY_S", 0.3)
    await database.write(_keep)
    with _lock(tmp_path / "jobs.db") as other:
        waiting = asyncio.create_task(database.write(partial(_keep, key="l")))
        assert await asyncio.wait([waiting], timeout=0.1) == (set(), {waiting})
        other.rollback()
        await waiting
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="database is locked"):
            await database.write(partial(_keep, key="m"))
    assert await database.read(_kept) == ["k", "l"]


@contextmanager
def _lock(file: Path) -> Iterator[sqlite3.Connection]:
    """Another process that is in the middle of a transaction."""
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield other
    finally:
        if other.in_transaction:
            other.rollback()
        other.close()


async def test_closing_database_ends_waiting_writer(
    database: SqliteDatabase, tmp_path: Path
) -> None:
    await database.write(_keep)
    with _lock(tmp_path / "jobs.db"):
        waiting = asyncio.create_task(database.write(partial(_keep, key="l")))
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.wait_for(database.close(), 5)  # it would have waited for ten
    await database.close()
    with pytest.raises(StoreUnavailable, match="was closed"):
        await database.read(_kept)


async def test_unusable_file_is_reported_at_once(
    database: SqliteDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a lock is waited for."""
    monkeypatch.setattr(sqlite, "_AGAIN_S", 60.0)
    (tmp_path / "jobs.db").mkdir()
    with pytest.raises(StoreUnavailable, match="unable to open database file"):
        await asyncio.wait_for(database.write(_keep), 30)


async def test_reading_missing_file_does_not_create_it(
    database: SqliteDatabase, tmp_path: Path
) -> None:
    assert await database.read(_kept) == []
    assert await asyncio.to_thread(os.listdir, tmp_path) == []
    await database.write(_keep)
    assert await database.read(_kept) == ["k"]


async def test_concurrent_creations_of_file_succeed(tmp_path: Path) -> None:
    for attempt in range(10):
        made = [SqliteDatabase(tmp_path / f"{attempt}.db", ManualClock()) for _ in range(6)]
        await asyncio.gather(*(one.write(partial(_keep, key=f"{n}")) for n, one in enumerate(made)))
        assert await made[0].read(_kept) == [str(number) for number in range(6)]
        await asyncio.gather(*(one.close() for one in made))


@in_virtual_time
async def test_virtual_time_stops_while_transaction_runs(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    database, before = SqliteDatabase(tmp_path / "jobs.db", ManualClock()), loop.time()
    await database.write(_keep)
    assert await database.read(_kept) == ["k"]
    await database.close()
    assert loop.time() == before


@pytest.mark.parametrize(
    ("url", "file"),
    [
        ("postgresql://u@h/db", None),
        ("sqlite:///:memory:", None),
        ("sqlite:///file:a.db?mode=ro", None),
        ("sqlite://host/a.db", None),
        ("sqlite:rel.db", None),
        ("sqlite:////var/a%20b.db", "/var/a b.db"),
        ("sqlite:///jobs.db", "jobs.db"),
        ("sqlite+aiosqlite:////st#x/jobs.db", "/st#x/jobs.db"),
        ("sqlite:////st%3Fx/jobs.db", "/st?x/jobs.db"),
    ],
)
def test_url_names_same_file_for_command_and_service(url: str, file: str | None) -> None:
    found = sqlite_file(url)
    assert (None if found is None else str(found)) == file
    if found is not None:
        assert open_database(url).url.database == file
        assert sqlite_file(sqlite_url(found)) == found


def test_list_values_have_separate_parameters() -> None:
    """`IN (…)` takes no list."""
    assert placeholders("k", ["a", "b"]) == (":k0, :k1", {"k0": "a", "k1": "b"})
