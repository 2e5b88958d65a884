"""Bulk inserts into PostgreSQL. Requires the `postgres` extra."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from hopback.extras import needs

with needs("postgres", "hopback.store.rows"):
    from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from psycopg import AsyncConnection


async def copy_rows(
    connection: AsyncConnection[Any],
    table: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
) -> int:
    """Insert rows with COPY and return the number of inserted rows.

    Rows whose key already exists are skipped, so it is safe to insert a batch again. COPY does not
    support this, so the rows are first copied to a temporary table. The caller has to commit the
    transaction.
    """
    known = f"{table}\n{','.join(columns)}".encode()
    names = {
        "table": sql.Identifier(*table.split(".")),
        "passage": sql.Identifier(f"hopback_rows_{hashlib.sha256(known).hexdigest()[:16]}"),
        "columns": sql.SQL(", ").join(map(sql.Identifier, columns)),
    }
    async with connection.cursor() as cursor:
        await cursor.execute(
            sql.SQL(
                "CREATE TEMPORARY TABLE IF NOT EXISTS {passage} ON COMMIT DELETE ROWS"
                " AS SELECT {columns} FROM {table} WITH NO DATA"
            ).format(**names)
        )
        async with cursor.copy(
            sql.SQL("COPY {passage} ({columns}) FROM STDIN").format(**names)
        ) as copy:
            for row in rows:
                await copy.write_row(row)
        await cursor.execute(
            sql.SQL(
                "INSERT INTO {table} ({columns}) SELECT {columns} FROM {passage}"
                " ON CONFLICT DO NOTHING"
            ).format(**names)
        )
        new = cursor.rowcount
        # The function may be called several times in a transaction.
        await cursor.execute(sql.SQL("DELETE FROM {passage}").format(**names))
        return new
