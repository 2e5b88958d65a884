"""The register of files, which joins the uploads of the gateway with the read model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Select, and_, func, insert, select, update

from hopback.systems.database import find_rows
from hopback.systems.file_pipeline.messages import (
    ReprocessFileRequested,
    UploadRequested,
    message_of,
)
from hopback.systems.file_pipeline.part_runtime import PartRuntime
from hopback.systems.file_pipeline.reception import ReceivedFile
from hopback.systems.file_pipeline.tables import audit, files, notifications, uploads

_PRODUCER = "gateway"
ACCEPTED = "accepted"
"""The status of files that are not in the read model yet."""
STATUSES = (ACCEPTED, "uploaded", "processing", "completed", "rejected", "failed", "timed-out")
"""All states of a file."""
_SHOWN = ("content_type", "sha256", "thumbnail", "metadata", "rejection", "failure")


class Register:
    """The queries and changes that the gateway makes."""

    def __init__(self, runtime: PartRuntime) -> None:
        self._runtime, self._database = runtime, runtime.database

    async def enter(self, received: ReceivedFile, correlation_id: str) -> None:
        """Register a file and send the command to process it, in one transaction."""
        now = self._runtime.clock.now()
        row = asdict(received) | {"run": 1, "received_at": now}
        wanted = UploadRequested(received.file_id, 1, received.name, received.declared_type)
        message = message_of(wanted, producer=_PRODUCER, now=now, correlation_id=correlation_id)
        async with self._database.transaction() as tx:
            await tx.execute(insert(uploads), row)
            await tx.send(message, key=received.file_id)

    async def reprocess(self, file_id: str, correlation_id: str) -> int | None:
        """Request that a file is processed again. Returns the number of the run, or None if there
        is no such file.
        """
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
            now = self._runtime.clock.now()
            message = message_of(wanted, producer=_PRODUCER, now=now, correlation_id=correlation_id)
            await tx.send(message, key=file_id)
        return wanted.run

    async def file(self, file_id: str) -> dict[str, Any] | None:
        """Return a file with its status, or None if it does not exist."""
        rows = await find_rows(self._database, _files().where(uploads.c.file_id == file_id))
        return _shown(rows[0], whole=True) if rows else None

    async def files(self, status: str | None, limit: int) -> tuple[list[dict[str, Any]], int]:
        """Return the newest files and the number of all files. If a status is given, other files
        are ignored.
        """
        query = _files()
        if status is not None:
            query = query.where(func.coalesce(files.c.status, ACCEPTED) == status)
        counted = select(func.count().label("total")).select_from(query.subquery())
        newest = query.order_by(uploads.c.received_at.desc(), uploads.c.file_id).limit(limit)
        found = [_shown(row, whole=False) for row in await find_rows(self._database, newest)]
        return found, (await find_rows(self._database, counted))[0]["total"]

    async def events(self, file_id: str) -> list[dict[str, Any]]:
        """Return the events of the current run from the audit, in chronological order.

        Callers choose the correlation id, so several files can have the same one.
        """
        mine = files.c.file_id == file_id
        present = await find_rows(
            self._database, select(files.c.run, files.c.correlation_id).where(mine)
        )
        if not present:
            return []
        same = audit.c.correlation_id == present[0]["correlation_id"]
        rows = await find_rows(self._database, select(audit).where(same).order_by(audit.c.number))
        return [
            {"type": row["type"], "at": format_moment(row["recorded_at"])}
            for row in rows
            if _about(row["body"]) == (file_id, present[0]["run"])
        ]

    async def notifications(self, after: int, limit: int) -> list[dict[str, Any]]:
        """Return the notifications with a number greater than `after`."""
        table = notifications.c
        query = select(notifications).where(table.number > after).order_by(table.number)
        return [
            {
                "number": row["number"],
                "fileId": row["file_id"],
                "type": row["type"],
                "text": row["text"],
                "at": format_moment(row["created_at"]),
            }
            for row in await find_rows(self._database, query.limit(limit))
        ]


def _about(body: str) -> tuple[object, object]:
    """Return the file id and the run of an event in the audit."""
    try:
        payload = json.loads(body)["payload"]
        return payload["fileId"], payload["run"]
    except (ValueError, RecursionError, TypeError, KeyError):
        return None, None


def _files() -> Select[Any]:
    """Return a query for all files that includes the read model of their current run."""
    same = and_(files.c.file_id == uploads.c.file_id, files.c.run == uploads.c.run)
    known = [files.c[name] for name in ("status", "updated_at", "correlation_id", *_SHOWN)]
    size = files.c.size.label("known_size")
    return select(uploads, *known, size).select_from(uploads.outerjoin(files, same))


def _shown(row: Mapping[str, Any], *, whole: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "fileId": row["file_id"],
        "name": row["name"],
        "status": row["status"] or ACCEPTED,
        "run": row["run"],
        "declaredType": row["declared_type"],
        "size": row["size"] if row["known_size"] is None else row["known_size"],
        "receivedAt": format_moment(row["received_at"]),
    }
    if not whole:
        return shown
    more = {}
    for name in (*_SHOWN, "correlation_id"):
        first, *rest = name.split("_")
        more[first + "".join(word.capitalize() for word in rest)] = row[name]
    changed = None if row["updated_at"] is None else format_moment(row["updated_at"])
    return shown | {name: value for name, value in more.items() if value} | {"updatedAt": changed}


def format_moment(seconds: float) -> str:
    """Format a time like `2026-01-31T12:00:00.000Z`."""
    stamp = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return stamp.replace("+00:00", "Z")
