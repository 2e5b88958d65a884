"""Exports to download and imports to upload: by HTTP, on the page and by the remote library."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from hopback.errors import BadRequest, NoSuch
from hopback.ops.client import RemoteDeadLetters
from hopback.ops.contract.requests import AuditQuery, DiscardRequest, Pace, Submission
from hopback.ops.contract.values import JobState
from hopback.ops.http.archives import FormUpload, lines_in
from hopback.ops.http.problems import Refused
from hopback.ops.http.settings import RequestLimits
from hopback.ops.jobs.job_record import JobRecord, JobSpec
from hopback.ops.messages.archive import delete_exports
from hopback.testing import in_virtual_time
from tests.unit.ops.admin_service import DLQ, admin, dead_letter, settings
from tests.unit.ops.http.test_access import _bearer, _token

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

_SAME = {"Sec-Fetch-Site": "same-origin"}
_QUEUE = f"/admin/dlq/queues/{DLQ}"


async def test_page_exports_and_imports_archive() -> None:
    """The archive of a session and of the whole queue can be downloaded."""
    async with admin(dead_letter(1), dead_letter(2, "KeyError")) as service:
        whole = await service.client.post(f"/queues/{DLQ}/export", headers=_SAME)
        assert whole.headers["content-disposition"] == f'attachment; filename="{DLQ}.ndjson"'
        assert len(whole.text.splitlines()) == 2
        session = await service.session()
        some = await service.client.get(f"/sessions/{session['id']}/export?filter=error:KeyError")
        (line,) = some.text.splitlines()
        assert json.loads(line)["queue"] == DLQ
        await service.operations.release(session["id"])
        files = {"file": ("export.ndjson", some.content, "application/x-ndjson")}
        done = await service.client.post(f"/queues/{DLQ}/import", files=files, headers=_SAME)
        assert "1 message imported" in done.text
        again = await service.client.post(f"{_QUEUE}/export")
        entries = await service.operations.audit(AuditQuery(queue=DLQ))
    assert len(again.text.splitlines()) == 3
    assert {one.action for one in entries} >= {"messages.export", "messages.import"}


async def test_remote_client_exports_and_imports() -> None:
    """The lines equal those of the local library. An import requires a queue."""
    async with admin(dead_letter(1)) as service:
        transport = service.client._transport
        async with RemoteDeadLetters("http://127.0.0.1", transport=transport) as remote:
            lines = [line async for line in remote.export(DLQ)]

            async def given_lines() -> AsyncIterator[bytes]:
                for line in lines:
                    yield line

            (own,) = [json.loads(line) async for line in service.operations.export(DLQ)]
            (found,) = map(json.loads, lines)
            same = ("queue", "routingKey", "properties", "body")
            assert [found[name] for name in same] == [own[name] for name in same]
            assert (await remote.import_lines(given_lines(), queue=DLQ)).published == 1
            with pytest.raises(BadRequest, match="a queue for them"):
                await remote.import_lines(given_lines())
            with pytest.raises(NoSuch):
                await remote.import_lines(given_lines(), queue="orders")


async def test_invalid_import_names_line_and_publishes_no_message() -> None:
    async with admin(dead_letter(1)) as service:
        bad = await service.client.post(f"{_QUEUE}/import", content=b"{}\n")
        none = await service.client.post(
            f"/queues/{DLQ}/import", files={"x": (None, "1")}, headers=_SAME
        )
        plain = await service.client.post(f"/queues/{DLQ}/import", data={"a": "b"}, headers=_SAME)
        assert bad.json()["published"] == 0
    assert "line 1" in bad.json()["problem"]
    assert (none.status_code, plain.status_code) == (400, 415)


async def test_archives_require_operator_role_and_size_limit() -> None:
    """Imports have a higher size limit than other requests."""
    sizes = RequestLimits(import_bytes=2_000_000, request_bytes=1000)
    limited = structs.replace(settings(), limits=sizes)
    viewer = _bearer(_token(roles=["viewer"]))
    boss = _bearer(_token(roles=["admin"]))
    async with admin(dead_letter(1), settings=limited) as service:
        client = service.client
        answers = [
            await client.post(f"{_QUEUE}/export", headers=viewer),
            await client.post(f"{_QUEUE}/import", content=b"", headers=viewer),
            await client.post(f"{_QUEUE}/import", content=b"\n" * 1_000_000, headers=boss),
            await client.post(f"{_QUEUE}/import", content=b"\n" * 2_000_001, headers=boss),
            await client.post("/admin/keys", content=b" " * 1001, headers=boss),
        ]
    assert [one.status_code for one in answers] == [403, 403, 200, 413, 413]


async def test_archive_of_discard_is_downloaded_from_its_job(tmp_path: Path) -> None:
    """A file outside the export folder is not served."""
    async with admin(dead_letter(1), exports=tmp_path) as service:
        body = {"kind": "discard", "queue": DLQ, "reason": "obsolete", "confirm": DLQ}
        begun = await service.client.post("/admin/dlq/jobs", json=body)
        assert begun.status_code == 202, begun.text
        job = begun.json()["id"]
        await service.operations.wait(job)
        found = await service.client.get(f"/jobs/{job}/export")
        by_api = await service.client.get(f"/admin/dlq/jobs/{job}/export")
        (tmp_path / f"{job}.ndjson").unlink()
        gone = await service.client.get(f"/admin/dlq/jobs/{job}/export")
    assert len(found.text.splitlines()) == 1
    assert by_api.content == found.content
    assert gone.status_code == 404


@in_virtual_time
async def test_archive_of_discard_with_several_runs_is_downloaded_as_one_file(
    tmp_path: Path,
) -> None:
    """A killed run may leave an incomplete line."""
    async with admin(*map(dead_letter, range(20)), exports=tmp_path) as service:
        pace = Pace(rate=10, in_flight=1)
        asked = DiscardRequest(queue=DLQ, reason="obsolete", confirm=DLQ, pace=pace)
        job = (await service.operations.start(asked)).id
        await asyncio.sleep(1)  # virtual
        service.broker.cut()
        done = await service.operations.wait(job)
        assert (done.state, done.run) == (JobState.COMPLETED, 2), done.state_reason
        first, second = tmp_path / f"{job}.ndjson", tmp_path / f"{job}.2.ndjson"
        with first.open("ab") as file:
            file.write(second.read_bytes()[:50])
        found = await service.client.get(f"/jobs/{job}/export")
    bodies = {json.loads(line)["body"] for line in found.text.splitlines()}
    assert bodies == {json.dumps({"order": {"id": number}}) for number in range(20)}
    assert found.headers["content-disposition"] == f'attachment; filename="{job}.ndjson"'


async def test_archive_that_only_a_later_run_has_written_is_downloaded(tmp_path: Path) -> None:
    async with admin(exports=tmp_path) as service:
        spec = JobSpec(
            request=DiscardRequest(queue=DLQ, reason="obsolete", confirm=DLQ),
            submission=Submission(export_to=str(tmp_path / "j-1.ndjson")),
            broker=service.operations.broker.journal_name,
        )
        await service.operations.journal.begin(JobRecord("j-1", spec, run=3), "another process")
        (tmp_path / "j-1.2.ndjson").write_text("{}\n")
        found = await service.client.get("/admin/dlq/jobs/j-1/export")
    assert found.text == "{}\n"
    assert found.headers["content-disposition"] == 'attachment; filename="j-1.ndjson"'


def test_delete_exports_removes_only_old_archives(tmp_path: Path) -> None:
    for name, at in (("j-1.ndjson", 1.0), ("j-2.ndjson", 100.0), ("notes.txt", 1.0)):
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, (at, at))
    assert delete_exports(tmp_path, 50.0) == 1
    assert delete_exports(tmp_path / "nowhere", 50.0) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"j-2.ndjson", "notes.txt"}


def _form(content: bytes, boundary: str) -> bytes:
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="reason"\r\n\r\nbecause\r\n'
    file = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    return (head + file).encode() + content + f"\r\n--{boundary}--\r\n".encode()


async def _pieces(body: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


@given(st.binary(max_size=300), st.integers(1, 80))
async def test_multipart_file_is_read_across_any_chunk_boundaries(
    content: bytes, size: int
) -> None:
    """A truncated body is refused."""
    body = _form(content, "mark-1")
    form = FormUpload("multipart/form-data; boundary=mark-1", _pieces(body, size))
    assert b"".join([piece async for piece in form.file()]) == content
    cut = FormUpload("multipart/form-data; boundary=mark-1", _pieces(body[:-20], size))
    with pytest.raises(Refused):
        [piece async for piece in cut.file()]
    lines = [line async for line in lines_in(_pieces(content, size))]
    assert b"\n".join(lines) == content.removesuffix(b"\n")
