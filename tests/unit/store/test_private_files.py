"""Files created by Hopback are readable only by their owner, regardless of the umask."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from hopback.clock import SystemClock
from hopback.ops.jobs.journal import open_journal
from hopback.private_files import private_folder, write_private
from hopback.store import migrate, open_database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")


@pytest.fixture(autouse=True)
def _open_to_all() -> Iterator[None]:
    """A umask of 0, so that only Hopback makes files private."""
    before = os.umask(0o000)
    yield
    os.umask(before)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_new_database_is_private_to_owner(tmp_path: Path) -> None:
    """This includes SQLite's files next to it."""
    file = tmp_path / "jobs.db"
    async with open_journal(f"sqlite:///{file}", SystemClock()) as journal:
        await journal.store_id()
        modes = {path.name: _mode(path) for path in tmp_path.iterdir()}  # noqa: ASYNC240
    assert set(modes) == {"jobs.db", "jobs.db-wal", "jobs.db-shm"}
    assert set(modes.values()) == {0o600}


async def test_existing_database_is_made_private(tmp_path: Path) -> None:
    """It was created by an older Hopback, with its log next to it."""
    file = tmp_path / "jobs.db"
    engine = open_database(f"sqlite:///{file}")
    await migrate(engine, SystemClock())
    for path in tmp_path.iterdir():  # noqa: ASYNC240
        path.chmod(0o644)
    again = open_database(f"sqlite:///{file}")
    await migrate(again, SystemClock())
    modes = {path.name: _mode(path) for path in tmp_path.iterdir()}  # noqa: ASYNC240
    await again.dispose()
    await engine.dispose()
    assert set(modes) == {"jobs.db", "jobs.db-wal", "jobs.db-shm"}
    assert set(modes.values()) == {0o600}


def test_file_saved_by_command_is_private_to_owner(tmp_path: Path) -> None:
    """The file is new, or existed and was public."""
    new, old = tmp_path / "new", tmp_path / "old"
    old.write_bytes(b"longer than what comes now")
    old.chmod(0o644)
    for path in (new, old):
        write_private(path, b"payload")
        assert (path.read_bytes(), _mode(path)) == (b"payload", 0o600)


def test_created_folders_are_private_to_owner(tmp_path: Path) -> None:
    """An existing folder keeps its mode."""
    folder = private_folder(tmp_path / "a" / "b")
    assert [_mode(each) for each in (folder, folder.parent)] == [0o700, 0o700]
    tmp_path.chmod(0o755)
    assert _mode(private_folder(tmp_path)) == 0o755
