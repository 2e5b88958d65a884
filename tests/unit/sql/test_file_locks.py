"""SQLite keeps its locks while this process opens further connections to the file."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from hopback.clock import SystemClock
from hopback.sql.sqlite import SqliteDatabase
from hopback.store import migrate, open_database

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

_CONNECT = "import sqlite3, sys; file = sqlite3.connect(sys.argv[1]); "
_OPEN_AND_CLOSE = f"{_CONNECT}file.execute('SELECT * FROM hopback_versions'); file.close()"
_READ_KEYS = f"{_CONNECT}print(file.execute('SELECT id FROM hopback_api_keys').fetchall())"
_INSERT = "INSERT INTO hopback_api_keys (id, document) VALUES ('late', '{}')"


def _in_other_process(program: str, file: Path) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", program, str(file)], capture_output=True, text=True, check=True
    )
    return ran.stdout.strip()


def _list_deleted_files() -> list[str]:
    """Names of the deleted files that this process has open."""
    names = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            names.append(str(descriptor.readlink()))
        except OSError:  # the descriptor of this listing
            continue
    return [name for name in names if name.endswith("(deleted)")]


async def _hold_connections(engine: AsyncEngine, stack: AsyncExitStack, count: int) -> None:
    for _ in range(count):
        connection = await stack.enter_async_context(engine.connect())
        await connection.rollback()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
async def test_commit_is_visible_to_others_after_second_pool_connection(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    engine = open_database(f"sqlite:///{file}")
    await migrate(engine, SystemClock())
    async with AsyncExitStack() as stack:
        await _hold_connections(engine, stack, 2)
        _in_other_process(_OPEN_AND_CLOSE, file)
        assert [name for name in _list_deleted_files() if file.name in name] == []
        async with engine.begin() as writing:
            await writing.execute(text(_INSERT))
        assert _in_other_process(_READ_KEYS, file) == "[('late',)]"
    await engine.dispose()


async def test_commit_is_visible_to_others_after_connection_of_other_kind(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    engine = open_database(f"sqlite:///{file}")
    await migrate(engine, SystemClock())
    light = SqliteDatabase(file, SystemClock())
    await light.read(lambda execute: execute("SELECT * FROM hopback_api_keys"))
    await light.close()
    _in_other_process(_OPEN_AND_CLOSE, file)
    async with engine.begin() as writing:
        await writing.execute(text(_INSERT))
    assert _in_other_process(_READ_KEYS, file) == "[('late',)]"
    await engine.dispose()
