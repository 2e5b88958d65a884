"""Run queries on the read models of the systems."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Executable

from hopback.store import Database


async def find_rows(database: Database, query: Executable) -> list[dict[str, Any]]:
    """Return the rows of a query as dictionaries with the column names as keys."""
    async with database.transaction() as tx:
        return [dict(row) for row in (await tx.execute(query)).mappings()]


async def find_row(database: Database, query: Executable) -> dict[str, Any] | None:
    """Return the first row of a query, or None if there are no rows."""
    return next(iter(await find_rows(database, query)), None)
