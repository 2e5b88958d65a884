"""A database in an SQLite file, without anything that is not Python's own."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest

from hopback.clock import ManualClock
from hopback.errors import StoreUnavailable
from hopback.sql import sqlite, versions
from hopback.sql.database import RowRefused, placeholders
from hopback.sql.sqlite import SqliteDatabase, sqlite_file
from hopback.testing import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
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


async def test_the_file_is_made_by_the_first_work_and_is_its_owners_alone(
    database: SqliteDatabase, tmp_path: Path
) -> None:
    """Its tables are those of the latest version; nothing is made before it is needed."""
    file = tmp_path / "jobs.db"
    assert not file.exists()
    found = await database.read(lambda execute: versions.version_of(execute, "sqlite"))
    assert found == versions.LATEST
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    applied = await database.read(
        lambda execute: execute("SELECT DISTINCT applied_at FROM hopback_versions")
    )
    assert applied == [(7.0,)]


async def test_work_that_fails_leaves_nothing(database: SqliteDatabase) -> None:
    """Neither of its own errors nor of a row that the database refuses; the next work goes on."""

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


async def test_work_whose_caller_is_cancelled_is_done_as_a_whole(database: SqliteDatabase) -> None:
    """There is no half of a transaction, and the file is closed behind it."""
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


async def test_a_writer_waits_for_another_and_not_forever(
    database: SqliteDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process holds the lock for a while, then for too long."""
    monkeypatch.setattr(sqlite, "_BUSY_MS", 300)
    await database.write(_keep)
    other = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    waiting = asyncio.create_task(database.write(lambda execute: _keep(execute, "l")))
    await asyncio.sleep(0.05)
    assert await asyncio.wait([waiting], timeout=0.05) == (set(), {waiting})
    other.rollback()
    await waiting
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="database is locked"):
        await database.write(lambda execute: _keep(execute, "m"))
    other.rollback()
    other.close()
    assert await database.read(_kept) == ["k", "l"]


async def test_of_many_that_make_the_file_at_once_all_find_it(tmp_path: Path) -> None:
    """Commands that begin together on a new machine."""
    made = [SqliteDatabase(tmp_path / "jobs.db", ManualClock()) for _ in range(6)]
    await asyncio.gather(*(one.write(partial(_keep, key=f"{n}")) for n, one in enumerate(made)))
    assert await made[0].read(_kept) == [str(number) for number in range(6)]
    await asyncio.gather(*(one.close() for one in made))


@in_virtual_time
async def test_time_stands_still_while_it_works(tmp_path: Path) -> None:
    """A test in virtual time does not run ahead of the thread."""
    loop = asyncio.get_running_loop()
    database, before = SqliteDatabase(tmp_path / "jobs.db", ManualClock()), loop.time()
    await database.write(_keep)
    assert await database.read(_kept) == ["k"]
    await database.close()
    assert loop.time() == before


def test_only_files_have_this_way() -> None:
    """Another database, or one in memory, is opened by SQLAlchemy."""
    assert sqlite_file("postgresql://u@h/db") is None
    assert sqlite_file("sqlite:///:memory:") is None
    assert str(sqlite_file("sqlite:////var/a%20b.db")) == "/var/a b.db"
    assert str(sqlite_file("sqlite:///jobs.db")) == "jobs.db"


def test_values_of_a_list_have_a_name_each() -> None:
    """For `IN (…)`, which takes no list."""
    assert placeholders("k", ["a", "b"]) == (":k0, :k1", {"k0": "a", "k1": "b"})
