"""A journal that is opened late: the short way writes and reads what the real one does."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from hopback.cli.store import LateJournal, late_journal, sql_journal, sqlite_file
from hopback.clock import ManualClock
from hopback.deadletters.contract import AuditEntry, Moment
from hopback.deadletters.journal import JobRecord, JobSpec, SelectionSnapshot
from hopback.deadletters.requests import NEWEST, JobKind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from hopback.deadletters.journal import Journal

_ENTRY = AuditEntry(Moment(5.0), "ada", "message.show", "q", "", "why", "ok", {"seen": 3})
_JOB = JobRecord("j-1", JobSpec(JobKind.REDRIVE, "q", "here", SelectionSnapshot(1)))


async def test_a_look_is_audited_without_opening_the_journal(tmp_path: Path) -> None:
    """The row is the one that the real journal writes; it is read back by that."""
    clock, url = ManualClock(10.0), f"sqlite:///{tmp_path / 'jobs.db'}"
    async with sql_journal(url, clock) as real:
        await real.write(_ENTRY, "here")
        await real.remember("here", "kind", {"key": "text"}, 10.0)
    opened = 0

    @asynccontextmanager
    async def opening() -> AsyncIterator[Journal]:
        nonlocal opened
        opened += 1
        async with sql_journal(url, clock) as found:
            yield found

    async with AsyncExitStack() as stack:
        late = LateJournal(sqlite_file(url), opening, stack, clock)
        await late.write(_ENTRY, "here")
        assert await late.jobs(active=True, broker="here", queue="q") == ()
        assert await late.remembered("here", "kind") == {"key": "text"}
        assert opened == 0
        first, second = await late.read(NEWEST)
        assert opened == 1
    assert (first.number, second.number) == (2, 1)
    assert first.details == second.details == {"seen": 3}


async def test_a_job_that_runs_is_found(tmp_path: Path) -> None:
    """Also by the way that only asks whether there is one."""
    clock, url = ManualClock(10.0), f"sqlite:///{tmp_path / 'jobs.db'}"
    async with sql_journal(url, clock) as real:
        await real.begin(_JOB, "owner")
    async with late_journal(url, clock) as late:
        assert [job.id for job in await late.jobs(active=True, broker="here")] == ["j-1"]
        assert await late.jobs(active=True, broker="elsewhere") == ()


async def test_what_is_no_database_of_ours_is_left_to_the_real_journal(tmp_path: Path) -> None:
    """A table with other columns is not written to by the short way: the real one migrates it."""
    clock, url = ManualClock(10.0), f"sqlite:///{tmp_path / 'new.db'}"
    async with late_journal(url, clock) as late:
        assert await late.jobs(active=True) == ()
        assert not (tmp_path / "new.db").exists()
        await late.write(_ENTRY)
        assert [one.by for one in await late.read(NEWEST)] == ["ada"]


def test_only_files_have_the_short_way() -> None:
    """Another database, or one in memory, is opened as always."""
    assert sqlite_file("postgresql://u@h/db") is None
    assert sqlite_file("sqlite:///:memory:") is None
    assert str(sqlite_file("sqlite:////var/a%20b.db")) == "/var/a b.db"
    assert str(sqlite_file("sqlite:///jobs.db")) == "jobs.db"


def test_a_command_that_needs_no_job_loads_no_database(tmp_path: Path) -> None:
    """Neither SQLAlchemy nor rich nor the command of httpx: a look takes a third of a second."""
    program = (
        "import sys; from hopback.cli.app import run;"
        f" run(['dlq', 'ls', '--broker', 'embedded', '--store', 'sqlite:///{tmp_path}/jobs.db']);"
        " print(sorted({'sqlalchemy', 'rich', 'httpx._main'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
