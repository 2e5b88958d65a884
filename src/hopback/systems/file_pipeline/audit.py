"""The audit: records every event once, in order, permanently."""

from __future__ import annotations

from sqlalchemy import insert

from hopback import App, Context
from hopback.systems.file_pipeline.part_runtime import PartRuntime
from hopback.systems.file_pipeline.tables import audit

_QUEUE = "q.audit"
_LONGEST = 65_536
"""Bytes of a body that are recorded. Messages of the pipeline have some hundreds."""


def add_audit(app: App, runtime: PartRuntime) -> None:
    """Add the handler of `q.audit`. It records every message, including invalid ones."""

    @app.handler(_QUEUE, concurrency=1)  # one at a time, to keep the order
    async def record(context: Context) -> None:
        message_id = _plain(context.message_id)
        row = {
            "message_id": message_id,
            "type": _plain(context.delivery.properties.type or ""),
            "routing_key": _plain(context.routing_key),
            "correlation_id": _plain(context.correlation_id),
            "recorded_at": runtime.clock.now(),
            "body": _plain(context.delivery.body[:_LONGEST].decode("utf-8", "replace")),
        }
        async with runtime.database.transaction() as tx:
            if await tx.first_time(_QUEUE, message_id):
                await tx.execute(insert(audit), row)


def _plain(text: str) -> str:
    """Replace NUL characters, which PostgreSQL cannot store."""
    return text.replace("\x00", "\N{SYMBOL FOR NULL}")
