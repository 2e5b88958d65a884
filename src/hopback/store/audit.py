"""The audit in SQL: rows are appended and read; the database lets nobody change or delete one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from sqlalchemy import insert, select

from hopback.store.schema import audit

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
        async with self._engine.begin() as connection:
            await connection.execute(insert(audit).values(values))

    async def read(self, wanted: dict[str, str], before: int | None, limit: int) -> list[AuditRow]:
        """The newest rows whose columns have these values."""
        query = select(audit).order_by(audit.c.number.desc()).limit(limit)
        for name, value in wanted.items():
            query = query.where(audit.c[name] == value)
        if before is not None:
            query = query.where(audit.c.number < before)
        async with self._engine.connect() as connection:
            return [
                AuditRow(
                    row.at, row.by, row.action, row.queue, row.job, row.reason, row.result,
                    row.details, row.number,
                )
                for row in await connection.execute(query)
            ]  # fmt: skip
