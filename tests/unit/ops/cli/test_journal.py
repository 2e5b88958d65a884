"""The journal of commands: an SQLite file without SQLAlchemy."""

from __future__ import annotations

import asyncio
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from hopback.broker.server import BrokerServer, ServerSettings
from hopback.cli.exits import CommandFailed
from hopback.clock import ManualClock
from hopback.errors import JobConflict
from hopback.ops.cli.journal import journal
from hopback.ops.contract.requests import NEWEST, RedriveRequest
from hopback.ops.contract.values import AuditEntry, Moment
from hopback.ops.documents import Documents
from hopback.ops.jobs.job_record import JobRecord, JobSpec

if TYPE_CHECKING:
    from pathlib import Path

_ENTRY = AuditEntry(Moment(5.0), "ada", "message.show", "q", "", "why", "ok", {"seen": 3})
_JOB = JobRecord(
    "j-1",
    JobSpec(request=RedriveRequest(queue="q", reason="t"), broker="here"),
)


async def test_processes_on_one_file_share_jobs_audit_and_documents(tmp_path: Path) -> None:
    clock, url = ManualClock(10.0), f"sqlite:///{tmp_path / 'jobs.db'}"
    async with journal(url, clock) as one, journal(url, clock) as other:
        await other.write_entry(_ENTRY, "here")
        await one.write_entry(_ENTRY, "here")
        ours, theirs = (Documents(each.database, "here", clock) for each in (one, other))
        await theirs.write("kind", {"key": "text"})
        await ours.write("kind", {"key": "newer", "other": "text"})
        assert await one.read_entries(NEWEST) == await other.read_entries(NEWEST)
        assert [one.number for one in await one.read_entries(NEWEST)] == [2, 1]
        assert await theirs.read("kind", str) == {"key": "newer", "other": "text"}
        await other.begin(_JOB, "service")
        assert [job.id for job in await one.jobs(active=True, broker="here")] == ["j-1"]
        assert await one.jobs(active=True, broker="elsewhere") == ()
        with pytest.raises(JobConflict):
            await one.begin(JobRecord("j-2", _JOB.spec), "command")


async def test_invalid_journal_file_is_reported_and_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("something else entirely, and long enough to be seen as no database" * 20)
    file.chmod(0o644)
    before = file.read_bytes()
    with pytest.raises(
        CommandFailed, match="or the file is not a database: file is not a database"
    ):
        async with journal(f"sqlite:///{file}", ManualClock()) as one:
            await one.write_entry(_ENTRY)
    assert file.read_bytes() == before
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


async def test_missing_journal_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="unable to open database file"):
        async with journal(f"sqlite:///{tmp_path}/none/jobs.db", ManualClock()):
            pass


@pytest.mark.socket
@pytest.mark.parametrize(
    "command", [["dlq", "ls"], ["dlq", "add", "orders"], ["jobs", "ls"], ["audit"]], ids=" ".join
)
async def test_command_does_not_import_sqlalchemy_rich_or_httpx_cli(
    tmp_path: Path, command: list[str]
) -> None:
    """Each takes longer to import than the command to run."""
    broker = BrokerServer(ServerSettings(port=0, http_port=None))
    await broker.start()
    options = ["--broker", f"{broker.url}/".replace("//", "//guest:guest@", 1), "--amqp-only"]
    options += ["--store", f"sqlite:///{tmp_path}/jobs.db"]
    program = (
        "import sys; from hopback.cli.app import run;"
        f" run({[*command, *options]!r});"
        " print(sorted({'sqlalchemy', 'rich', 'httpx._main'} & set(sys.modules)))"
    )
    try:
        done = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, errors = await done.communicate()
    finally:
        await broker.stop()
    assert out.splitlines()[-1:] == [b"[]"], errors.decode()
