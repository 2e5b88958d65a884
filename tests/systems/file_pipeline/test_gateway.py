"""The gateway: uploads, answers, and hostile uploads, which leave no data."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import OperationalError

from hopback.testing import in_virtual_time
from tests.systems.file_pipeline.gateway_client import open_gateway, part
from tests.systems.file_pipeline.samples import bomb, broken_png, gif, png

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

_END = b"--b--\r\n"
_PNG = ("a.png", "image/png")


@in_virtual_time
async def test_uploaded_file_is_completed_with_thumbnail_metadata_and_notification(
    tmp_path: Path,
) -> None:
    """The upload is accepted at once. The events are listed in order."""
    async with open_gateway(tmp_path) as web:
        answer = await web.upload(gif(), "dance.gif", "image/gif")
        assert answer.status_code == 202
        where = answer.headers["location"]
        assert answer.json()["status"] == "accepted"
        await web.system.settle()
        found = (await web.client.get(where)).json()
        assert found["status"] == "completed"
        assert found["metadata"]["image"]["frames"] == 2
        assert found["thumbnail"]["width"] == 20
        small = await web.client.get(f"{where}/thumbnail")
        assert (small.headers["content-type"], small.content[:4]) == ("image/png", b"\x89PNG")
        assert small.headers["x-content-type-options"] == "nosniff"
        events = (await web.client.get(f"{where}/events")).json()["items"]
        assert events[0]["type"] == "FileUploaded.v1"
        assert events[-1]["type"] == "ProcessingCompleted.v1"
        notified = (await web.client.get("/notifications")).json()
        assert [one["text"] for one in notified["items"]] == ["dance.gif is ready."]
        later = await web.client.get("/notifications", params={"after": notified["next"]})
        assert later.json()["items"] == []


@in_virtual_time
async def test_reprocess_request_runs_file_again(tmp_path: Path) -> None:
    """The second run has a new correlation ID and no failure of the first."""
    async with open_gateway(tmp_path) as web:
        first = await web.upload_and_settle(broken_png(), *_PNG)
        assert (first["status"], first["failure"]["stage"]) == ("failed", "thumbnail")
        web.system.folder.file(first["fileId"]).write_bytes(png())
        where = f"/files/{first['fileId']}"
        again = await web.client.post(f"{where}/reprocess")
        assert (again.status_code, again.json()["run"]) == (202, 2)
        assert "failure" not in (await web.client.get(where)).json()
        await web.system.settle()
        second = (await web.client.get(where)).json()
        assert (second["status"], second["run"]) == ("completed", 2)
        assert "failure" not in second
        assert second["correlationId"] != first["correlationId"]


@in_virtual_time
async def test_files_are_listed_newest_first_and_by_status(tmp_path: Path) -> None:
    async with open_gateway(tmp_path) as web:
        await web.upload_and_settle(b"text", "first.txt", "text/plain")
        await asyncio.sleep(1)
        await web.upload_and_settle(png(), "second.pdf", "application/pdf")
        listed = (await web.client.get("/files")).json()
        assert [one["name"] for one in listed["items"]] == ["second.pdf", "first.txt"]
        rejected = (await web.client.get("/files", params={"status": "rejected"})).json()
        assert [one["name"] for one in rejected["items"]] == ["second.pdf"]


@in_virtual_time
async def test_correlation_id_of_request_is_in_every_event(tmp_path: Path) -> None:
    """An invalid ID is replaced."""
    async with open_gateway(tmp_path) as web:
        form = {"file": ("a.txt", b"text", "text/plain")}
        await web.client.post("/files", files=form, headers={"x-correlation-id": "shop-7"})
        await web.client.post("/files", files=form, headers={"x-correlation-id": "a" * 200})
        await web.system.settle()
        found = {one.properties.correlation_id for one in web.system.events()}
        assert "shop-7" in found
        assert "a" * 200 not in found
        assert len(found) == 2


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/files/../../etc/passwd", "GET"),
        ("/files/nothing", "GET"),
        ("/files/3f2b8f8e-0d7c-4c3e-9a70-6c9d2d1c7a11", "GET"),
        ("/files/3F2B8F8E-0D7C-4C3E-9A70-6C9D2D1C7A11/thumbnail", "GET"),
        ("/files/..%2f..%2fetc%2fpasswd/thumbnail", "GET"),
        ("/files/3f2b8f8e-0d7c-4c3e-9a70-6c9d2d1c7a11/reprocess", "POST"),
    ],
)
@in_virtual_time
async def test_unknown_files_and_paths_return_404(tmp_path: Path, path: str, method: str) -> None:
    async with open_gateway(tmp_path) as web:
        assert (await web.client.request(method, path)).status_code == 404


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "limit=x", "limit=-1", "limit=1e2"])
@in_virtual_time
async def test_wrong_limit_returns_400_with_the_range(tmp_path: Path, query: str) -> None:
    async with open_gateway(tmp_path) as web:
        answer = await web.client.get(f"/files?{query}")
        assert answer.status_code == 400
        assert answer.json()["error"] == "limit: expected a whole number from 1 to 500"


@in_virtual_time
async def test_errors_are_in_the_language_of_the_client(tmp_path: Path) -> None:
    async with open_gateway(tmp_path) as web:
        portuguese = {"Accept-Language": "pt-BR,pt;q=0.9,en;q=0.5"}
        answer = await web.client.get("/files?limit=0", headers=portuguese)
        assert answer.json()["error"] == "limit: esperado um número inteiro de 1 a 500"
        assert answer.headers["content-language"] == "pt"
        missing = await web.client.post("/files", content=b"", headers=portuguese)
        assert missing.json()["error"] == "esperado multipart/form-data com um campo `file`"


@in_virtual_time
async def test_gateway_has_health_and_metrics(tmp_path: Path) -> None:
    async with open_gateway(tmp_path) as web:
        assert (await web.client.get("/healthz")).status_code == 200
        assert (await web.client.get("/readyz")).json() == {"status": "ok", "reasons": []}
        assert 'path="/readyz"' in (await web.client.get("/metrics")).text


_GOOD = part("file", "a.png", "image/png", png())


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b"", "multipart/form-data; boundary=b", 400),
        (b"--b--\r\n", "multipart/form-data; boundary=b", 400),
        (b"not a form", "multipart/form-data; boundary=b", 400),
        (_GOOD, "multipart/form-data; boundary=b", 400),
        (_GOOD[:-20], "multipart/form-data; boundary=b", 400),
        (_GOOD + _GOOD + _END, "multipart/form-data; boundary=b", 400),
        (part("other", "a.png", "image/png", png()) + _END, "multipart/form-data; boundary=b", 400),
        (part("file", "a.png", "image/png", b"") + _END, "multipart/form-data; boundary=b", 400),
        (part("file", "", "image/png", png()) + _END, "multipart/form-data; boundary=b", 400),
        (part("file", "..", "image/png", png()) + _END, "multipart/form-data; boundary=b", 400),
        (part("file", "a.svg", "image/svg+xml", b"<svg/>") + _END, "multipart/form-data; boundary=b", 415),
        (part("file", "a.png", "text/html", b"<b>") + _END, "multipart/form-data; boundary=b", 415),
        (part("file", "a.exe", "image/png", png()) + _END, "multipart/form-data; boundary=b", 415),
        (part("file", "noending", "image/png", png()) + _END, "multipart/form-data; boundary=b", 415),
        (_GOOD + _END, "multipart/form-data", 415),
        (_GOOD + _END, "image/png", 415),
        (b'--b\r\n' + b"x" * 10_000, "multipart/form-data; boundary=b", 400),
        (b'--b\r\n' + b"A: b\r\n" * 50 + b"\r\n", "multipart/form-data; boundary=b", 400),
    ],
    ids=[
        "nothing", "no-parts", "no-form", "cut-off", "cut-in-the-file", "two-files", "other-field",
        "empty-file", "no-name", "only-dots", "svg", "html", "exe", "no-ending", "no-boundary",
        "no-multipart", "endless-header", "many-headers",
    ],
)  # fmt: skip
@in_virtual_time
async def test_hostile_forms_are_refused_without_files_rows_or_messages(
    tmp_path: Path, body: bytes, content_type: str, status: int
) -> None:
    async with open_gateway(tmp_path) as web:
        assert await web.send(body, content_type) == status
        assert web.files_on_disk() == []
        await web.system.settle()
        assert web.system.events() == []
        assert (await web.client.get("/files")).json()["items"] == []


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("../../../etc/cron.d/evil.png", "evil.png"),
        ("..\\\\..\\\\windows\\\\evil.png", "evil.png"),
        ("/absolute/evil.png", "evil.png"),
        ("evil\u202egnp.png", "evilgnp.png"),
        ("x" * 400 + ".png", "x" * 196 + ".png"),
    ],
    ids=["dots", "backslashes", "absolute", "reversed", "long"],
)
@in_virtual_time
async def test_name_of_upload_is_shown_and_never_used_as_path(
    tmp_path: Path, given: str, shown: str
) -> None:
    """Only its last part is shown. On disk a file has a generated ID."""
    async with open_gateway(tmp_path / "inner") as web:
        body = part("file", given, "image/png", png()) + _END
        assert await web.send(body) == 202
        await web.system.settle()
        (found,) = (await web.client.get("/files")).json()["items"]
        assert found["name"] == shown
        file_id = found["fileId"]
        assert web.files_on_disk() == [f"files/{file_id}", f"thumbnails/{file_id}.png"]
    assert os.listdir(tmp_path) == ["inner"]


@in_virtual_time
async def test_too_large_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """By its announced length, or as soon as it exceeds the limit."""
    async with open_gateway(tmp_path, max_bytes=1000) as web:
        announced = await web.upload(b"\x89PNG" + b"x" * 100_000, *_PNG)
        assert announced.status_code == 413
        sent = 0

        async def endless() -> AsyncIterator[bytes]:
            nonlocal sent
            yield part("file", *_PNG, b"")[:-2]
            while True:
                sent += 1000
                yield b"x" * 1000

        headers = {"content-type": "multipart/form-data; boundary=b"}
        answer = await web.client.post("/files", content=endless(), headers=headers)
        assert answer.status_code == 413
        assert sent <= 1000 + 64 * 1024 + 2000  # the limit of the file and of the form around it
        assert web.files_on_disk() == []


@in_virtual_time
async def test_other_fields_of_the_form_are_limited(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, max_bytes=1000) as web:

        async def endless() -> AsyncIterator[bytes]:
            yield b'--b\r\nContent-Disposition: form-data; name="note"\r\n\r\n'
            while True:
                yield b"x" * 10_000

        headers = {"content-type": "multipart/form-data; boundary=b"}
        answer = await web.client.post("/files", content=endless(), headers=headers)
        assert answer.status_code == 413


@in_virtual_time
async def test_unfinished_upload_is_aborted_after_the_time_limit(tmp_path: Path) -> None:
    """The answer is 408, and the received part is removed."""
    async with open_gateway(tmp_path, upload_s=30) as web:

        async def drop_by_drop() -> AsyncIterator[bytes]:
            yield part("file", *_PNG, b"")[:-2]
            while True:
                await asyncio.sleep(5)
                yield b"x"

        headers = {"content-type": "multipart/form-data; boundary=b"}
        answer = await web.client.post("/files", content=drop_by_drop(), headers=headers)
        assert answer.status_code == 408
        assert web.files_on_disk() == []


@in_virtual_time
async def test_picture_with_too_many_pixels_is_accepted_but_not_decoded(tmp_path: Path) -> None:
    """A small file declares 900 million pixels. It is parked at once, and the failure has the reason."""
    async with open_gateway(tmp_path) as web:
        found = await web.upload_and_settle(bomb(), "bomb.png", "image/png")
        assert found["status"] == "failed"
        assert "pixels" in found["failure"]["reason"]
        assert web.system.dead_letter_counts() == {"q.thumbnail": 1, "q.extractor": 1}


@pytest.mark.parametrize(
    ("content", "name", "kind", "code"),
    [
        (png(), "a.jpg", "image/jpeg", "TYPE_MISMATCH"),
        (png(), "a.jpg", "image/png", "EXTENSION_MISMATCH"),
        (b"MZ\x90\x00" + b"\x00" * 100, "a.png", "image/png", "UNKNOWN_CONTENT"),
        (b"{not json", "a.json", "application/json", "INVALID_JSON"),
        (b"[" * 100_000, "a.json", "application/json", "INVALID_JSON"),
        (b"\x00\x01binary", "a.txt", "text/plain", "UNKNOWN_CONTENT"),
        (b"RIFF\x00\x00\x00\x00WAVE", "a.webp", "image/webp", "UNKNOWN_CONTENT"),
    ],
    ids=["other-picture", "ending", "program", "json", "deep-json", "binary", "wave"],
)
@in_virtual_time
async def test_content_of_other_type_is_rejected(
    tmp_path: Path, content: bytes, name: str, kind: str, code: str
) -> None:
    """With a code and a sentence."""
    async with open_gateway(tmp_path) as web:
        found = await web.upload_and_settle(content, name, kind)
        assert (found["status"], found["rejection"]["code"]) == ("rejected", code)
        assert found["rejection"]["reason"].endswith(".")


@in_virtual_time
async def test_answers_contain_no_paths_of_the_machine(tmp_path: Path) -> None:
    """Also in errors of the operating system."""
    async with open_gateway(tmp_path) as web:
        magic = await web.upload_and_settle(png()[:8], *_PNG)
        assert magic["failure"]["reason"] == "BrokenPicture: Pillow finds no picture in it"
        lost = (await web.upload(png(), *_PNG)).json()["fileId"]
        os.unlink(web.system.folder.incoming(lost))
        await web.system.settle()
        notified = (await web.client.get("/notifications")).text
        assert "FileNotFoundError" in notified
        assert str(tmp_path) not in notified


@in_virtual_time
async def test_file_list_filters_by_status_and_returns_total(tmp_path: Path) -> None:
    """`accepted` is the status before the upload is handled. An unknown status is refused."""
    async with open_gateway(tmp_path) as web:
        for name in ("a.txt", "b.txt"):
            await web.upload_and_settle(b"hello", name, "text/plain")
        page = (await web.client.get("/files?limit=1&status=completed")).json()
        assert (len(page["items"]), page["total"]) == (1, 2)
        web.system.test.broker.cut()
        await web.upload(b"hello", "c.txt", "text/plain")
        accepted = (await web.client.get("/files?status=accepted")).json()
        assert [one["name"] for one in accepted["items"]] == ["c.txt"]
        assert (await web.client.get("/files?status=bogus")).status_code == 400


@in_virtual_time
async def test_files_that_share_a_correlation_id_keep_their_own_events(tmp_path: Path) -> None:
    """Clients choose the ID, so it may occur twice."""
    async with open_gateway(tmp_path) as web:
        shown = []
        for name in ("a.txt", "b.txt"):
            form = {"file": (name, b"hello", "text/plain")}
            same = {"X-Correlation-ID": "same"}
            answer = await web.client.post("/files", files=form, headers=same)
            await web.system.settle()
            shown.append(answer.headers["location"])
        for where in shown:
            events = (await web.client.get(f"{where}/events")).json()["items"]
            assert [one["type"] for one in events] == [
                "FileUploaded.v1",
                "FileValidated.v1",
                "MetadataExtracted.v1",
                "ProcessingCompleted.v1",
            ]


@in_virtual_time
async def test_failed_redrive_notifies_again(tmp_path: Path) -> None:
    """A second ProcessingFailed causes a second notification. After the repair the failure is gone."""
    async with open_gateway(tmp_path) as web:
        failed = await web.upload_and_settle(broken_png(), "a.png", "image/png")
        assert failed["status"] == "failed"
        before = (await web.system.notification_types()).count("ProcessingFailed.v1")
        await web.system.redrive("q.thumbnail")
        await web.system.settle()
        assert (await web.system.notification_types()).count("ProcessingFailed.v1") == before + 1
        assert (await web.system.audit_types()).count("ProcessingFailed.v1") == before + 1
        web.system.folder.file(failed["fileId"]).write_bytes(png())
        for queue in web.system.dead_letter_counts():
            await web.system.redrive(queue)
        await web.client.post(f"/files/{failed['fileId']}/reprocess")
        await web.system.settle()
        repaired = (await web.client.get(f"/files/{failed['fileId']}")).json()
        assert repaired["status"] == "completed", repaired
        assert "failure" not in repaired
        assert repaired["size"] == repaired["metadata"]["size"] == len(png())
        assert repaired["sha256"] == repaired["metadata"]["sha256"]


@in_virtual_time
async def test_file_is_not_stored_if_database_refuses_its_row(tmp_path: Path) -> None:
    async with open_gateway(tmp_path) as web:
        await web.client.get("/files")  # creates the tables
        async with web.system.runtime.database.transaction() as tx:
            await tx.execute(text("DROP TABLE file_pipeline_uploads"))
        assert (await web.upload(png(), *_PNG)).status_code == 503
        assert web.files_on_disk() == []


@in_virtual_time
async def test_file_is_kept_if_commit_fails(tmp_path: Path) -> None:
    """The row may have been committed, so the command may need the file."""
    async with open_gateway(tmp_path) as web:
        await web.client.get("/files")  # creates the tables

        def fail(_connection: Connection) -> None:
            raise OperationalError("COMMIT", {}, Exception("connection lost"))

        event.listen(Engine, "commit", fail)
        try:
            assert (await web.upload(png(), *_PNG)).status_code == 503
        finally:
            event.remove(Engine, "commit", fail)
        (kept,) = web.files_on_disk()
        assert kept.startswith("incoming/")
