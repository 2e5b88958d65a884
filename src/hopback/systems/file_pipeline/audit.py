"""Audit: every event, once, in the order in which it came, for good."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sqlalchemy import insert

from hopback import Context  # noqa: TC001  read by the runtime
from hopback.systems.file_pipeline.settings import PipelineSettings
from hopback.systems.file_pipeline.stages import alone
from hopback.systems.file_pipeline.tables import audit

if TYPE_CHECKING:
    from hopback import App
    from hopback.systems.file_pipeline.part_runtime import PartRuntime

app: App

_QUEUE = "q.audit"
_LONGEST = 65_536
"""Bytes of a body that are kept: messages of the pipeline have some hundreds."""


def add_audit(app: App, runtime: PartRuntime) -> None:
    """Add the handler of `q.audit`. It takes whatever comes: also what nobody understands."""

    @app.handler(_QUEUE, concurrency=1)  # one after another: the order is part of the record
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
        async with runtime.transaction() as tx:
            if await tx.first_time(_QUEUE, message_id):
                await tx.execute(insert(audit).values(**row))


def _plain(text: str) -> str:
    """The text with every NUL made visible: PostgreSQL has no room for one."""
    return text.replace("\x00", "\N{SYMBOL FOR NULL}")


def __getattr__(name: str) -> App:
    """`app`, made of the environment when it is first asked for."""
    if name != "app":
        raise AttributeError(name)
    return alone("audit", add_audit, PipelineSettings.read(os.environ))
