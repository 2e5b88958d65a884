"""The main flows on RabbitMQ and PostgreSQL, in one process and in eight."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import jwt
import pytest
from sqlalchemy import insert, select

from hopback import RabbitMQ
from hopback.store import Outbox
from hopback.systems.database import find_rows
from hopback.systems.file_pipeline.demo import SYSTEM
from hopback.systems.file_pipeline.part_runtime import PartRuntime
from hopback.systems.file_pipeline.projection import _time_out
from hopback.systems.file_pipeline.settings import PipelineSettings
from hopback.systems.file_pipeline.tables import files
from hopback.systems.host import Host
from tests.systems.file_pipeline.samples import broken_png, jpeg_with_exif, png

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hopback.systems.host import Part
    from tests.harness.shared import SharedPostgres

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("systems")]

_SECRET = "a secret that is long enough for HS256, for tests only"
_SETTINGS = {"RETRY_TTL_MS": "200", "ADMIN_JWT_SECRET": _SECRET}
_TIMEOUT_S = 120.0


@pytest.fixture
def database(postgres: SharedPostgres) -> str:
    """Return the URL of an empty PostgreSQL database."""
    return postgres.create_database()


def _administrator() -> dict[str, str]:
    claims = {"sub": "u-1", "roles": ["admin"], "exp": time.time() + 600}
    claims |= {"iss": "file-pipeline", "aud": "file-pipeline"}
    return {"authorization": f"Bearer {jwt.encode(claims, _SECRET, 'HS256')}"}


class _Client:
    """Uploads files and waits for their status."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def upload(self, content: bytes, name: str, kind: str) -> str:
        answer = await self.client.post("/files", files={"file": (name, content, kind)})
        assert answer.status_code == 202, answer.text
        where: str = answer.headers["location"]
        return where

    async def wait_for_status(self, where: str, status: str) -> dict[str, Any]:
        """Wait until the file has the status and return its state."""
        async with asyncio.timeout(_TIMEOUT_S):
            while True:
                found: dict[str, Any] = (await self.client.get(where)).json()
                if found["status"] == status:
                    return found
                await asyncio.sleep(0.05)

    async def dead_letters(self, queue: str) -> int:
        answer = await self.client.get("/admin/dlq/queues", headers=_administrator())
        found: int = next(
            one["messages"] for one in answer.json()["items"] if one["queue"] == queue
        )
        return found


@pytest.mark.parametrize("hardened", [False, True], ids=["faithful", "hardened"])
async def test_pipeline_in_one_process_completes_fails_and_redrives_files(
    amqp_url: str, database: str, tmp_path: Path, hardened: bool
) -> None:
    """A picture is completed. A broken one fails, is parked, repaired and re-driven, and is completed."""
    host = Host(RabbitMQ(amqp_url), database, tmp_path, "http://gateway", hardened)
    async with SYSTEM.start(replace(host, variables=_SETTINGS)) as started:
        transport = httpx.ASGITransport(app=started.web)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url=host.url) as http:
            client = _Client(http)
            await _run_flow(client, tmp_path)


async def _run_flow(client: _Client, folder: Path) -> None:
    good = await client.upload(jpeg_with_exif(), "a.jpg", "image/jpeg")
    bad = await client.upload(broken_png(), "b.png", "image/png")
    lie = await client.upload(png(), "c.pdf", "application/pdf")
    many = [await client.upload(b"text %d" % n, f"{n}.txt", "text/plain") for n in range(20)]
    assert (await client.wait_for_status(good, "completed"))["metadata"]["image"]["width"] == 400
    assert (await client.wait_for_status(lie, "rejected"))["rejection"]["code"] == "TYPE_MISMATCH"
    for where in many:
        await client.wait_for_status(where, "completed")
    failed = await client.wait_for_status(bad, "failed")
    await _wait_until(lambda: client.dead_letters("q.thumbnail.dlq"), 1)
    (folder / "files" / failed["fileId"]).write_bytes(png())
    path = "/admin/dlq/queues/q.thumbnail.dlq/re-drive"
    moved = await client.client.post(path, headers=_administrator())
    assert (moved.status_code, moved.json()["moved"]) == (201, 1)
    await client.wait_for_status(bad, "completed")
    assert await client.dead_letters("q.thumbnail.dlq") == 0

    async def notifications() -> tuple[list[str], int]:
        answer = await client.client.get("/notifications?limit=500")
        items = answer.json()["items"]
        return [one["type"] for one in items if one["fileId"] == failed["fileId"]], len(items)

    # The outbox publishes the last notification after the status change.
    await _wait_until(notifications, (["ProcessingFailed.v1", "ProcessingCompleted.v1"], 24))


async def _wait_until(ask: Callable[[], Any], expected: object) -> None:
    async with asyncio.timeout(_TIMEOUT_S):
        while await ask() != expected:  # noqa: ASYNC110  another process
            await asyncio.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def _process(part: Part, environment: dict[str, str], port: int, log: Path) -> Iterator[None]:
    """Run a part with its documented command and end it with SIGTERM."""
    program, *rest = part.command.split()
    module = [sys.executable, "-m", program, *rest]
    command = [*module, "--port", str(port)] if part.is_web else [*module, "--log-format", "json"]
    with log.open("wb") as stream:
        process = subprocess.Popen(command, env=environment, stdout=stream, stderr=stream)
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(_TIMEOUT_S)
    assert code in (0, -signal.SIGTERM), log.read_text()


async def test_pipeline_in_eight_processes_completes_and_parks_files(
    amqp_url: str, database: str, tmp_path: Path
) -> None:
    """One broker and one database. A picture is completed, a broken one is parked."""
    port, folder = _free_port(), tmp_path / "files"
    environment = os.environ | _SETTINGS
    environment |= {
        "HOPBACK_BROKER": amqp_url,
        "DATABASE_URL": database,
        "FILES_FOLDER": str(folder),
    }
    url = f"http://127.0.0.1:{port}"
    with ExitStack() as processes:
        for number, part in enumerate(SYSTEM.parts):
            log = tmp_path / f"{number}.log"
            processes.enter_context(_process(part, environment, port, log))
        async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
            client = _Client(http)
            await _wait_until(lambda: _answers(http), True)
            good = await client.upload(png(), "a.png", "image/png")
            bad = await client.upload(broken_png(), "b.png", "image/png")
            await client.wait_for_status(good, "completed")
            await client.wait_for_status(bad, "failed")
            await _wait_until(lambda: client.dead_letters("q.thumbnail.dlq"), 1)
    _check_log((tmp_path / "3.log").read_text())


async def _answers(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/files")).status_code == 200
    except httpx.TransportError:
        return False


def _check_log(text: str) -> None:
    """Check the JSON log of the thumbnail's failures for all fields of the document."""
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    failures = [one for one in lines if one["event"] in ("delivery.retried", "delivery.parked")]
    assert [(one["attempt"], one["maxAttempts"]) for one in failures] == [(1, 3), (2, 3), (3, 3)]
    for one in failures:
        assert one["correlationId"]
        assert one["queue"] == "q.thumbnail"
        assert one["routingKey"] == "files.validated.v1"
        assert one["messageType"] == "FileValidated.v1"


async def test_two_projections_time_out_each_late_file_once(database: str, tmp_path: Path) -> None:
    """The second one skips the files that the first one has locked."""
    runtime = PartRuntime(PipelineSettings(tmp_path, database))
    row = {"run": 1, "status": "processing", "content_type": "image/png", "timed_out": False}
    row |= {"correlation_id": "c", "started_at": 0.0, "updated_at": 0.0}
    async with runtime.database.transaction() as tx:
        await tx.execute(insert(files), [row | {"file_id": f"f{n}"} for n in range(150)])
    async with runtime.database.transaction() as first:
        await _time_out(first, 60, 100)
        async with runtime.database.transaction() as second:
            await _time_out(second, 60, 100)
    found = await find_rows(runtime.database, select(files.c.status))
    assert [one["status"] for one in found] == ["timed-out"] * 150
    assert await Outbox(runtime.database.engine, "test", runtime.clock).depth() == 150
    await runtime.database.close()
