"""The audit records all events permanently, in order and without duplicates."""

from __future__ import annotations

from typing import Any

from sqlalchemy import insert

from hopback import App, Context
from hopback.systems.file_pipeline.part_runtime import PartRuntime
from hopback.systems.file_pipeline.tables import audit

_QUEUE = "q.audit"
_LONGEST = 65_536
"""How many bytes of a body are recorded. The messages of the pipeline have a few hundred."""


def add_audit(app: App, runtime: PartRuntime) -> None:
    """Add the handler of `q.audit`, which records all messages, even invalid ones."""

    async def read(context: Context) -> dict[str, Any]:
        return {
            "message_id": _plain(context.message_id),
            "type": _plain(context.delivery.properties.type or ""),
            "routing_key": _plain(context.routing_key),
            "correlation_id": _plain(context.correlation_id),
            "recorded_at": runtime.clock.now(),
            "body": _plain(context.delivery.body[:_LONGEST].decode("utf-8", "replace")),
        }

    # Process one message and one batch at a time to keep the order.
    @app.batch(_QUEUE, size=100, wait="100ms", batchers=1, prepare=read, processors=1)
    async def record(rows: list[dict[str, Any]]) -> None:
        async with runtime.database.transaction() as tx:
            new = [row for row in rows if await tx.first_time(_QUEUE, row["message_id"])]
            if new:
                await tx.execute(insert(audit), new)


def _plain(text: str) -> str:
    """Replace NUL characters, which PostgreSQL cannot store."""
    return text.replace("\x00", "\N{SYMBOL FOR NULL}")
