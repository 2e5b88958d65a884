"""A damaged database is reported as such by page, HTTP and command, and error answers are logged by id."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx
import pytest

from hopback.broker.server import ServerSettings
from hopback.cli.app import run
from hopback.clock import SystemClock
from hopback.errors import StoreDamaged, StoreUnavailable
from hopback.ops.client import RemoteDeadLetters
from hopback.ops.http.app import create_app
from hopback.ops.jobs.journal import open_journal
from hopback.store import migrate, open_database
from hopback.testing.threads import BrokerThread
from tests.unit.ops.admin_service import Admin, admin, dead_letter, settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

_BROKER_WORDS = "broker does not answer"


async def _damage(file: Path, first: int) -> None:
    """Create a database and overwrite it from byte `first`, as a lost write-ahead log leaves it."""
    engine = open_database(f"sqlite:///{file}")
    await migrate(engine, SystemClock())
    await engine.dispose()
    content = file.read_bytes()  # noqa: ASYNC240
    file.write_bytes(content[:first] + b"\xff" * (len(content) - first))  # noqa: ASYNC240


@asynccontextmanager
async def _open_damaged(file: Path) -> AsyncIterator[Admin]:
    await _damage(file, 4096)
    async with (
        open_journal(f"sqlite:///{file}", SystemClock()) as journal,
        admin(dead_letter(1), journal=journal) as service,
    ):
        yield service


@pytest.mark.parametrize("path", ["/", "/jobs", "/queues/orders.dlq", "/audit"])
async def test_page_names_damaged_database_and_recovery_steps(tmp_path: Path, path: str) -> None:
    async with _open_damaged(tmp_path / "jobs.db") as service:
        page = await service.client.get(path, headers={"accept": "text/html"})
    assert "The database is damaged" in page.text
    assert ".recover" in page.text
    assert _BROKER_WORDS not in page.text


async def test_http_reports_damaged_database_with_recovery_steps(tmp_path: Path) -> None:
    async with _open_damaged(tmp_path / "jobs.db") as service:
        for path in ("/admin/dlq/overview", "/admin/dlq/jobs", "/admin/audit"):
            answer = await service.client.get(path)
            assert (answer.status_code, answer.json()["code"]) == (503, "database-damaged")
            assert ".recover" in answer.json()["remedy"]
            assert str(tmp_path) not in answer.text
        ready = await service.client.get("/readyz")
        alive = (await service.client.get("/alive")).json()
    assert (ready.status_code, _BROKER_WORDS in ready.text) == (503, False)
    assert alive["trouble"].startswith("The database is damaged: the database ")


async def test_client_of_a_server_raises_store_damaged(tmp_path: Path) -> None:
    async with _open_damaged(tmp_path / "jobs.db") as service:
        app = create_app(service.operations)
        async with RemoteDeadLetters(
            "http://localhost", transport=httpx.ASGITransport(app)
        ) as remote:
            with pytest.raises(StoreDamaged, match="is damaged on the server"):
                await remote.jobs()


@pytest.mark.socket
@pytest.mark.parametrize(
    ("command", "first"),
    [
        (["jobs", "ls"], 0),
        (["jobs", "ls"], 100),
        (["jobs", "ls"], 4096),
        (["dlq", "add", "orders"], 4096),
        (["audit"], 4096),
        (["serve", "--http", "0"], 0),
        (["serve", "--http", "0"], 4096),
    ],
)
def test_command_names_damaged_file_and_recovery_steps(
    tmp_path: Path, first: int, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The header, the schema or the rows are damaged."""
    file = tmp_path / "jobs.db"
    asyncio.run(_damage(file, first))
    with BrokerThread(ServerSettings(port=0, http_port=None)) as broker:
        access = ["--broker", broker.url, "--amqp-only", "--store", f"sqlite:///{file}"]
        assert run([*command, *access]) == 1
    said = capsys.readouterr().err
    assert f"the database {file} is damaged" in said
    assert ".recover" in said


@pytest.mark.parametrize(
    ("path", "status", "level"),
    [
        ("/admin/dlq/queues/none", 404, logging.INFO),
        ("/admin/dlq/jobs?limit=x", 400, logging.INFO),
        ("/queues/none", 404, logging.INFO),
        ("/no/such/path", 404, logging.INFO),
        ("/admin/dlq/jobs", 503, logging.WARNING),
    ],
)
async def test_log_contains_correlation_id_of_error_responses(
    path: str, status: int, level: int, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO, "hopback.ops.http")
    async with admin() as service:
        if status == 503:

            async def fail(*_: object, **__: object) -> None:
                raise StoreUnavailable("the database cannot be used: no room\n on disk")

            monkeypatch.setattr(service.operations.journal, "jobs", fail)
        answer = await service.client.get(path, headers={"x-correlation-id": "abc-1"})
    assert (answer.status_code, answer.headers["x-correlation-id"]) == (status, "abc-1")
    (line,) = [each for each in caplog.records if "abc-1" in each.getMessage()]
    assert line.levelno == level
    assert str(status) in line.getMessage()
    assert "\n" not in line.getMessage()
    assert ("no room" in line.getMessage()) == (status == 503)


async def test_log_contains_correlation_id_of_refused_sign_in(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "hopback.ops.http")
    async with admin(settings=settings()) as service:
        answer = await service.client.get("/admin/dlq/overview")
    assert answer.status_code == 401
    assert answer.json()["correlationId"] in caplog.text
