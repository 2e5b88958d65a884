"""The register of files, which joins the uploads of the gateway with the read model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import and_, func, insert, select, update

from hopback.store import Database
from hopback.systems.database import find_row, find_rows
from hopback.systems.file_pipeline.messages import (
    ReprocessFileRequested,
    UploadRequested,
    message_of,
)
from hopback.systems.file_pipeline.reception import ReceivedFile
from hopback.systems.file_pipeline.storage import FileStorage
from hopback.systems.file_pipeline.tables import audit, files, notifications, uploads

_PRODUCER = "gateway"
ACCEPTED = "accepted"
"""The status of files that are not in the read model yet."""
STATUSES = (ACCEPTED, "uploaded", "processing", "completed", "rejected", "failed", "timed-out")
"""All states of a file."""

_status = func.coalesce(files.c.status, ACCEPTED)
_FILES = select(
    *uploads.c["file_id", "name", "run", "declared_type", "received_at"],
    *files.c["content_type", "sha256", "thumbnail", "metadata", "rejection", "failure"],
    *files.c["correlation_id", "updated_at"],
    _status.label("status"),
    func.coalesce(files.c.size, uploads.c.size).label("size"),
).outerjoin_from(
    uploads, files, and_(files.c.file_id == uploads.c.file_id, files.c.run == uploads.c.run)
)
"""All uploads with the read model of their current run."""


class Register:
    """The queries and changes that the gateway makes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def enter(
        self, received: ReceivedFile, storage: FileStorage, correlation_id: str
    ) -> None:
        """Register and store a file and send the command to process it, in one transaction."""
        now = self._database.clock.now()
        row = {
            "file_id": received.file_id,
            "name": received.name,
            "declared_type": received.declared_type,
            "size": received.size,
            "run": 1,
            "received_at": now,
        }
        wanted = UploadRequested(received.file_id, 1, received.name, received.declared_type)
        message = message_of(wanted, producer=_PRODUCER, now=now, correlation_id=correlation_id)
        async with self._database.transaction() as tx:
            await tx.execute(insert(uploads), row)
            await tx.send(message, key=received.file_id)
            # If the database is unavailable, no file is stored. If the commit fails, the file is
            # kept, because the row may have been committed.
            await asyncio.to_thread(storage.receive, received.file_id, received.content)

    async def reprocess(self, file_id: str, correlation_id: str) -> int | None:
        """Request that a file is processed again. Returns the number of the run, or None if there
        is no such file.
        """
        now = self._database.clock.now()
        counted = (
            update(uploads)
            .where(uploads.c.file_id == file_id)
            .values(run=uploads.c.run + 1)
            .returning(uploads)
        )
        async with self._database.transaction() as tx:
            row = (await tx.execute(counted)).mappings().first()
            if row is None:
                return None
            wanted = ReprocessFileRequested(file_id, row["run"], row["name"], row["declared_type"])
            message = message_of(wanted, producer=_PRODUCER, now=now, correlation_id=correlation_id)
            await tx.send(message, key=file_id)
        return wanted.run

    async def file(self, file_id: str) -> dict[str, Any] | None:
        """Return a file with its status and results, or None if it does not exist."""
        row = await find_row(self._database, _FILES.where(uploads.c.file_id == file_id))
        if row is None:
            return None
        results = {
            "contentType": row["content_type"],
            "sha256": row["sha256"],
            "thumbnail": row["thumbnail"],
            "metadata": row["metadata"],
            "rejection": row["rejection"],
            "failure": row["failure"],
            "correlationId": row["correlation_id"],
        }
        known = {name: value for name, value in results.items() if value}
        changed = row["updated_at"]
        return _summary(row) | known | {"updatedAt": changed and format_moment(changed)}

    async def files(self, status: str | None, limit: int) -> tuple[list[dict[str, Any]], int]:
        """Return the newest files and the number of all files. If a status is given, other files
        are ignored.
        """
        query = _FILES if status is None else _FILES.where(_status == status)
        newest = query.order_by(uploads.c.received_at.desc(), uploads.c.file_id).limit(limit)
        async with self._database.transaction() as tx:
            found = [_summary(row) for row in (await tx.execute(newest)).mappings()]
            total = await tx.execute(select(func.count()).select_from(query.subquery()))
            return found, total.scalar_one()

    async def events(self, file_id: str) -> list[dict[str, Any]]:
        """Return the events of the current run from the audit, in chronological order."""
        query = (
            select(audit.c.type, audit.c.recorded_at, audit.c.body, files.c.run)
            .join(files, files.c.correlation_id == audit.c.correlation_id)
            .where(files.c.file_id == file_id)
            .order_by(audit.c.number)
        )
        # Callers choose the correlation id, so several files can have the same one.
        return [
            {"type": row["type"], "at": format_moment(row["recorded_at"])}
            for row in await find_rows(self._database, query)
            if _about(row["body"]) == (file_id, row["run"])
        ]

    async def notifications(self, after: int, limit: int) -> list[dict[str, Any]]:
        """Return the notifications with a number greater than `after`."""
        number = notifications.c.number
        query = select(notifications).where(number > after).order_by(number).limit(limit)
        return [
            {
                "number": row["number"],
                "fileId": row["file_id"],
                "type": row["type"],
                "text": row["text"],
                "at": format_moment(row["created_at"]),
            }
            for row in await find_rows(self._database, query)
        ]


def _about(body: str) -> tuple[object, object]:
    """Return the file id and the run of an event in the audit."""
    try:
        payload = json.loads(body)["payload"]
        return payload["fileId"], payload["run"]
    except (ValueError, RecursionError, TypeError, KeyError):
        return None, None


def _summary(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {
        "fileId": row["file_id"],
        "name": row["name"],
        "status": row["status"],
        "run": row["run"],
        "declaredType": row["declared_type"],
        "size": row["size"],
        "receivedAt": format_moment(row["received_at"]),
    }


def format_moment(seconds: float) -> str:
    """Format a time like `2026-01-31T12:00:00.000Z`."""
    stamp = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return stamp.replace("+00:00", "Z")
