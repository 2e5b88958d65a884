"""The audit in SQL: rows are appended and read; the database lets nobody change one.

Rows are deleted only when they are older than a moment that was written down first, in a table to which
rows can only be added as well: whoever shortens the audit leaves when, and up to which moment.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from sqlalchemy import delete, func, insert, select

from hopback.store.database import reading, writing
from hopback.store.schema import audit, audit_retention

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["AuditRow", "AuditTable"]


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One act; `details` is JSON, `number` is given by the database."""

    at: float
    by: str
    action: str
    queue: str
    job: str
    reason: str
    result: str
    details: str
    number: int = 0


class AuditTable:
    """The audit."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def append(self, row: AuditRow) -> None:
        """Write one act down."""
        values = asdict(row)
        del values["number"]
        async with writing(self._engine) as connection:
            await connection.execute(insert(audit).values(values))

    async def delete(self, before: float, now: float, limit: int) -> int:
        """Delete at most `limit` rows from before that moment, the oldest first; how many."""
        old = select(audit.c.number).where(audit.c.at < before).order_by(audit.c.number)
        async with writing(self._engine) as connection:
            numbers = list((await connection.execute(old.limit(limit))).scalars())
            if not numbers:
                return 0
            latest = select(func.max(audit_retention.c.deleted_before))
            said = (await connection.execute(latest)).scalar()
            if said is None or said < before:
                await connection.execute(
                    insert(audit_retention).values(at=now, deleted_before=before)
                )
            await connection.execute(delete(audit).where(audit.c.number.in_(numbers)))
        return len(numbers)

    async def read(self, wanted: dict[str, str], before: int | None, limit: int) -> list[AuditRow]:
        """The newest rows whose columns have these values."""
        query = select(audit).order_by(audit.c.number.desc()).limit(limit)
        for name, value in wanted.items():
            query = query.where(audit.c[name] == value)
        if before is not None:
            query = query.where(audit.c.number < before)
        async with reading(self._engine) as connection:
            return [
                AuditRow(
                    row.at, row.by, row.action, row.queue, row.job, row.reason, row.result,
                    row.details, row.number,
                )
                for row in await connection.execute(query)
            ]  # fmt: skip
