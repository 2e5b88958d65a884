"""The register of files: the uploads of the gateway joined with the read model."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Select, and_, func, insert, select, update

from hopback.systems.file_pipeline.messages import ReprocessFileRequested, UploadRequested
from hopback.systems.file_pipeline.part_runtime import PartRuntime
from hopback.systems.file_pipeline.reception import ReceivedFile
from hopback.systems.file_pipeline.tables import audit, files, notifications, uploads

_PRODUCER = "gateway"
ACCEPTED = "accepted"
"""The status of a file that is not in the read model yet."""
STATUSES = (ACCEPTED, "uploaded", "processing", "completed", "rejected", "failed", "timed-out")
"""Every status of a file."""
_SHOWN = ("content_type", "sha256", "thumbnail", "metadata", "rejection", "failure")


class Register:
    """The queries and changes of the gateway."""

    def __init__(self, runtime: PartRuntime) -> None:
        self._runtime = runtime

    async def enter(self, received: ReceivedFile, correlation_id: str) -> None:
        """Register a received file and request its upload in one transaction."""
        row = {
            "file_id": received.file_id,
            "name": received.name,
            "declared_type": received.declared_type,
            "size": received.size,
            "run": 1,
            "received_at": self._runtime.clock.now(),
        }
        wanted = UploadRequested(received.file_id, 1, received.name, received.declared_type)
        async with self._runtime.database.transaction() as tx:
            await tx.execute(insert(uploads).values(**row))
            await self._runtime.announce(
                tx, wanted, producer=_PRODUCER, correlation_id=correlation_id
            )

    async def reprocess(self, file_id: str, correlation_id: str) -> int | None:
        """Request another run of a file. Return its number, or None if the file does not exist."""
        counted = (
            update(uploads)
            .where(uploads.c.file_id == file_id)
            .values(run=uploads.c.run + 1)
            .returning(uploads)
        )
        async with self._runtime.database.transaction() as tx:
            row = (await tx.execute(counted)).mappings().first()
            if row is None:
                return None
            wanted = ReprocessFileRequested(file_id, row["run"], row["name"], row["declared_type"])
            await self._runtime.announce(
                tx, wanted, producer=_PRODUCER, correlation_id=correlation_id
            )
        run: int = row["run"]
        return run

    async def file(self, file_id: str) -> dict[str, Any] | None:
        """Return a file with its status, or None."""
        rows = await self._rows(_files().where(uploads.c.file_id == file_id))
        return _shown(rows[0], whole=True) if rows else None

    async def files(self, status: str | None, limit: int) -> tuple[list[dict[str, Any]], int]:
        """Return the newest files, optionally of one status, and the total number."""
        query = _files()
        if status is not None:
            query = query.where(func.coalesce(files.c.status, ACCEPTED) == status)
        counted = select(func.count().label("total")).select_from(query.subquery())
        newest = query.order_by(uploads.c.received_at.desc(), uploads.c.file_id).limit(limit)
        found = [_shown(row, whole=False) for row in await self._rows(newest)]
        return found, (await self._rows(counted))[0]["total"]

    async def events(self, file_id: str) -> list[dict[str, Any]]:
        """Return the audited events of the present run in order.

        Files may share a correlation id: the caller chooses it.
        """
        mine = files.c.file_id == file_id
        present = await self._rows(select(files.c.run, files.c.correlation_id).where(mine))
        if not present:
            return []
        same = audit.c.correlation_id == present[0]["correlation_id"]
        rows = await self._rows(select(audit).where(same).order_by(audit.c.number))
        return [
            {"type": row["type"], "at": _moment(row["recorded_at"])}
            for row in rows
            if _about(row["body"]) == (file_id, present[0]["run"])
        ]

    async def notifications(self, after: int, limit: int) -> list[dict[str, Any]]:
        """Return notifications after a number."""
        table = notifications.c
        query = select(notifications).where(table.number > after).order_by(table.number)
        return [
            {
                "number": row["number"],
                "fileId": row["file_id"],
                "type": row["type"],
                "text": row["text"],
                "at": _moment(row["created_at"]),
            }
            for row in await self._rows(query.limit(limit))
        ]

    async def _rows(self, query: Select[Any]) -> list[Mapping[str, Any]]:
        async with self._runtime.database.engine.connect() as connection:
            return [dict(row) for row in (await connection.execute(query)).mappings()]


def _about(body: str) -> tuple[object, object]:
    """Return the file id and the run of an audited event."""
    try:
        payload = json.loads(body)["payload"]
        return payload["fileId"], payload["run"]
    except (ValueError, RecursionError, TypeError, KeyError):
        return None, None


def _files() -> Select[Any]:
    """Return the query of all files with the read model of their present run."""
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
        "receivedAt": _moment(row["received_at"]),
    }
    if not whole:
        return shown
    more = {}
    for name in (*_SHOWN, "correlation_id"):
        first, *rest = name.split("_")
        more[first + "".join(word.capitalize() for word in rest)] = row[name]
    changed = None if row["updated_at"] is None else _moment(row["updated_at"])
    return shown | {name: value for name, value in more.items() if value} | {"updatedAt": changed}


def _moment(seconds: float) -> str:
    stamp = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return stamp.replace("+00:00", "Z")


def is_file_id(text: str) -> bool:
    """Whether the text has the form of a file id."""
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False
