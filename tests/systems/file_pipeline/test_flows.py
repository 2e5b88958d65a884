"""The flows of the document with the real parts, in virtual time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import delete, text, update
from sqlalchemy.exc import DatabaseError

from hopback.systems.file_pipeline.contents import Rejection
from hopback.systems.file_pipeline.messages import UploadRequested, message_of
from hopback.systems.file_pipeline.tables import audit
from hopback.systems.settings import SettingsError
from hopback.testing import in_virtual_time
from tests.systems.file_pipeline.running_pipeline import hostile_message, pipeline
from tests.systems.file_pipeline.samples import bomb, broken_png, jpeg_with_exif, png

if TYPE_CHECKING:
    from pathlib import Path

    from hopback.systems.file_pipeline.messages import FileUploaded

_BOTH = pytest.mark.parametrize("hardened", [False, True], ids=["faithful", "hardened"])


@_BOTH
@in_virtual_time
async def test_picture_is_completed_with_thumbnail_and_metadata(
    tmp_path: Path, hardened: bool
) -> None:
    """Each of the five events occurs once."""
    async with pipeline(tmp_path, hardened=hardened) as system:
        file_id = await system.upload(jpeg_with_exif(), "holiday.jpg", "image/jpeg")
        await system.settle()
        row = await system.file(file_id)
        assert row["status"] == "completed"
        assert row["thumbnail"]["height"] == 256
        assert row["metadata"]["image"]["exif"]["Make"] == "Hopback Optics"
        assert system.folder.thumbnail(file_id).read_bytes()[:4] == b"\x89PNG"
        assert await system.notification_types() == ["ProcessingCompleted.v1"]
        assert await system.audit_types() == [
            "FileUploaded.v1",
            "FileValidated.v1",
            "MetadataExtracted.v1",
            "ProcessingCompleted.v1",
            "ThumbnailGenerated.v1",
        ]
        assert system.dead_letter_counts() == {}


@_BOTH
@in_virtual_time
async def test_picture_that_pillow_cannot_decode_is_parked_after_three_attempts(
    tmp_path: Path, hardened: bool
) -> None:
    """It is in `q.thumbnail.dlq`. The other consumers received its event once."""
    async with pipeline(tmp_path, hardened=hardened) as system:
        began = system.now()
        file_id = await system.upload(broken_png(), "broken.png", "image/png")
        await system.settle()
        assert system.dead_letter_counts() == {"q.thumbnail": 1}
        (dead_letter,) = system.test.dead_letters("q.thumbnail")
        assert dead_letter.properties.type == "FileValidated.v1"
        assert dead_letter.properties.headers["x-parked-delivery-attempt"] == 3
        assert system.now() - began == pytest.approx(30, abs=1)
        assert system.runs("q.thumbnail") == 3
        assert system.runs("q.extractor") == 1
        assert (await system.audit_types()).count("FileValidated.v1") == 1
        row = await system.file(file_id)
        assert (row["status"], row["failure"]["stage"]) == ("failed", "thumbnail")
        assert row["metadata"]["image"]["width"] == 64
        assert await system.notification_types() == ["ProcessingFailed.v1"]


@in_virtual_time
async def test_picture_with_too_many_pixels_is_parked_at_once(tmp_path: Path) -> None:
    """The size in the header is too large, so a retry cannot succeed."""
    async with pipeline(tmp_path) as system:
        file_id = await system.upload(bomb(), "bomb.png", "image/png")
        await system.settle()
        assert system.dead_letter_counts() == {"q.thumbnail": 1, "q.extractor": 1}
        assert system.runs("q.thumbnail") == 1
        assert (await system.file(file_id))["status"] == "failed"


@in_virtual_time
async def test_file_of_wrong_type_is_rejected_with_code_and_reason(tmp_path: Path) -> None:
    """A rejection is not a failure: it causes a notification, no retry and no dead letter."""
    async with pipeline(tmp_path) as system:
        file_id = await system.upload(png(), "report.pdf", "application/pdf")
        await system.settle()
        row = await system.file(file_id)
        assert row["status"] == "rejected"
        assert row["rejection"] == {
            "code": "TYPE_MISMATCH",
            "reason": "The declared type is application/pdf, but the content is image/png.",
        }
        assert await system.notification_types() == ["FileRejected.v1"]
        assert system.dead_letter_counts() == {}


def scan(file: FileUploaded, content: bytes) -> Rejection | None:
    """A custom inspection."""
    return Rejection("INFECTED", f"{file.name} has a virus.") if b"virus" in content else None


@in_virtual_time
async def test_custom_inspection_rejects_with_code_and_reason(tmp_path: Path) -> None:
    """It runs after the built-in inspection, on accepted files only."""
    async with pipeline(tmp_path, inspection=f"{__name__}:scan") as system:
        infected = await system.upload(b"a virus", "a.txt", "text/plain")
        harmless = await system.upload(b"harmless", "b.txt", "text/plain")
        await system.settle()
        row = await system.file(infected)
        assert row["status"] == "rejected"
        assert row["rejection"] == {"code": "INFECTED", "reason": "a.txt has a virus."}
        assert (await system.file(harmless))["status"] == "completed"


@in_virtual_time
async def test_unknown_inspection_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="FILE_INSPECTION"):
        async with pipeline(tmp_path, inspection=f"{__name__}:missing"):
            pass


@in_virtual_time
async def test_text_file_is_completed_with_metadata_only(tmp_path: Path) -> None:
    """Text has statistics instead of a thumbnail."""
    async with pipeline(tmp_path) as system:
        file_id = await system.upload(b"one two\nthree\n", "notes.txt", "text/plain")
        await system.settle()
        row = await system.file(file_id)
        assert (row["status"], row["thumbnail"]) == ("completed", None)
        assert row["metadata"]["text"] == {
            "characters": 14,
            "words": 3,
            "lines": 2,
            "longestLine": 7,
        }


@in_virtual_time
async def test_redelivered_events_have_no_effect(tmp_path: Path) -> None:
    """The inbox recognises them."""
    async with pipeline(tmp_path) as system:
        file_id = await system.upload(png(), "a.png", "image/png")
        await system.settle()
        before = (
            await system.audit_types(),
            await system.notification_types(),
            await system.file(file_id),
        )
        for event in system.events():
            await system.send(event)
        await system.settle()
        assert (await system.audit_types(), await system.notification_types()) == before[:2]
        assert await system.file(file_id) == before[2]
        assert system.runs("q.validator") == 2
        assert system.dead_letter_counts() == {}


@in_virtual_time
async def test_unfinished_file_times_out(tmp_path: Path) -> None:
    """The file is completed if the missing events arrive later."""
    async with pipeline(tmp_path, timeout_s=60, sweep_s=5) as system:
        system.test.service.consumer("q.extractor").pause("maintenance")
        file_id = await system.upload(png(), "slow.png", "image/png")
        await system.test.advance(59)
        assert (await system.file(file_id))["status"] == "processing"
        await system.test.advance(10)
        assert (await system.file(file_id))["status"] == "timed-out"
        assert await system.notification_types() == ["ProcessingTimedOut.v1"]
        await system.test.advance(60)
        assert await system.notification_types() == ["ProcessingTimedOut.v1"]
        system.test.service.consumer("q.extractor").resume("done")
        await system.settle()
        assert (await system.file(file_id))["status"] == "completed"
        assert await system.notification_types() == [
            "ProcessingTimedOut.v1",
            "ProcessingCompleted.v1",
        ]


@in_virtual_time
async def test_failed_file_is_completed_after_repair_and_redrive(tmp_path: Path) -> None:
    """The re-drive uses `retry.q.thumbnail`."""
    async with pipeline(tmp_path) as system:
        file_id = await system.upload(broken_png(), "broken.png", "image/png")
        await system.settle()
        system.folder.file(file_id).write_bytes(png())
        await system.redrive("q.thumbnail")
        await system.settle()
        assert system.dead_letter_counts() == {}
        assert (await system.file(file_id))["status"] == "completed"
        assert await system.notification_types() == [
            "ProcessingFailed.v1",
            "ProcessingCompleted.v1",
        ]


@in_virtual_time
async def test_file_is_completed_after_storage_outage(tmp_path: Path) -> None:
    """The upload fails twice, then the file exists. It causes no dead letter."""
    async with pipeline(tmp_path) as system:
        file_id = await system.upload(png(), "late.png", "image/png", received=False)
        await system.test.advance(20)
        assert system.runs("q.upload.commands") == 2
        system.folder.incoming(file_id).write_bytes(png())
        await system.settle()
        assert (await system.file(file_id))["status"] == "completed"
        assert system.dead_letter_counts() == {}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"no json", "undecodable"),
        (b"\x00\xff" * 50_000, "undecodable"),
        (b"[" * 20_000, "undecodable"),
        (b"{}", "messageId"),
        (b'{"messageId": 7}', "messageId"),
        (None, "payload.fileId"),
    ],
    ids=["no-json", "binary", "deep", "empty", "wrong-type", "wrong-payload"],
)
@in_virtual_time
async def test_invalid_message_is_parked_and_audited(
    tmp_path: Path, body: bytes | None, reason: str
) -> None:
    """At once, with a reason. The audit stores it unchanged."""
    async with pipeline(tmp_path) as system:
        await system.send(hostile_message(body))
        await system.settle()
        assert system.dead_letter_counts() == {"q.validator": 1, "q.projection": 1}
        (dead_letter,) = system.test.dead_letters("q.validator")
        assert reason in str(dead_letter.properties.headers["x-parked-reason"])
        assert dead_letter.properties.headers["x-parked-delivery-attempt"] == 1
        assert len(await system.audit_types()) == 1


@in_virtual_time
async def test_file_id_that_is_a_path_is_parked(tmp_path: Path) -> None:
    """No file outside the folder is changed."""
    secret = tmp_path.parent / f"{tmp_path.name}-secret"
    secret.write_bytes(png())
    async with pipeline(tmp_path) as system:
        command = UploadRequested(f"../../{secret.name}", 1, "a.png", "image/png")
        await system.send(message_of(command, producer="mallory", now=system.now()))
        await system.settle()
        assert system.dead_letter_counts() == {"q.upload.commands": 1}
        assert secret.exists()


@in_virtual_time
async def test_failure_retry_and_parking_logs_have_all_documented_fields(tmp_path: Path) -> None:
    """JSON lines with correlation ID, queue, routing key, type, attempt and maximum."""
    async with pipeline(tmp_path) as system:
        await system.upload(broken_png(), "broken.png", "image/png")
        await system.settle()
        lines = system.log()
        names = ("handler.failed", "delivery.retried", "delivery.parked")
        failures = [one for one in lines if one["event"] in names]
        attempts = [(one["attempt"], one["maxAttempts"]) for one in failures]
        assert attempts == [(1, 3), (1, 3), (2, 3), (3, 3)]
        assert {one["queue"] for one in failures} == {"q.thumbnail"}
        assert {one["routingKey"] for one in failures} == {"files.validated.v1"}
        assert {one["messageType"] for one in failures} == {"FileValidated.v1"}
        assert len({one["correlationId"] for one in failures}) == 1


@in_virtual_time
async def test_every_message_has_the_envelope_of_the_document(tmp_path: Path) -> None:
    """Nine fields. `causationId` is the preceding message, `correlationId` the upload."""
    async with pipeline(tmp_path) as system:
        await system.upload(png(), "a.png", "image/png")
        await system.settle()
        envelopes = [json.loads(one.body) for one in system.events()]
    fields = "messageId kind type occurredAt correlationId causationId producer version payload"
    assert {tuple(one) for one in envelopes} == {tuple(fields.split())}
    assert {one["kind"] for one in envelopes} == {"event"}
    assert len({one["correlationId"] for one in envelopes}) == 1
    by_type = {one["type"]: one for one in envelopes}
    validated = by_type["FileValidated.v1"]
    assert validated["causationId"] == by_type["FileUploaded.v1"]["messageId"]
    assert by_type["ThumbnailGenerated.v1"]["causationId"] == validated["messageId"]
    assert by_type["MetadataExtracted.v1"]["producer"] == "extractor"


@in_virtual_time
async def test_audit_is_append_only(tmp_path: Path) -> None:
    """The database refuses updates and deletes."""
    async with pipeline(tmp_path) as system:
        await system.upload(png(), "a.png", "image/png")
        await system.settle()
        for statement in (update(audit).values(type="x"), delete(audit)):
            with pytest.raises(DatabaseError, match="append-only"):
                async with system.runtime.database.transaction() as tx:
                    await tx.execute(statement)
        assert len(await system.audit_types()) == 5


@in_virtual_time
async def test_refused_audit_row_is_retried_alone_and_logged(tmp_path: Path) -> None:
    """The other rows of its batch are recorded. Its failure and its retry have all documented fields."""
    async with pipeline(tmp_path) as system:
        async with system.runtime.database.transaction() as tx:
            await tx.execute(
                text(
                    "CREATE TRIGGER refuse BEFORE INSERT ON file_pipeline_audit "
                    "WHEN NEW.type = 'FileValidated.v1' BEGIN SELECT RAISE(ABORT, 'refused'); END"
                )
            )
        await system.upload(b"text", "a.txt", "text/plain")
        await system.settle()
        recorded = {"FileUploaded.v1", "MetadataExtracted.v1", "ProcessingCompleted.v1"}
        assert set(await system.audit_types()) == recorded
        assert system.dead_letter_counts() == {"q.audit": 1}
        lines = [one for one in system.log() if one.get("queue") == "q.audit"]
        names = ("handler.failed", "delivery.retried", "delivery.parked")
        failures = [one for one in lines if one["event"] in names]
        assert [(one["event"], one["attempt"]) for one in failures] == [
            ("handler.failed", 1),
            ("delivery.retried", 1),
            ("delivery.retried", 2),
            ("delivery.parked", 3),
        ]
        for one in failures:
            assert one["messageType"] == "FileValidated.v1"
            assert one["routingKey"] == "files.validated.v1"
            assert one["correlationId"]
            assert one["maxAttempts"] == 3
