"""Notifies users. Notifications are written to a table that the gateway reads."""

from __future__ import annotations

from typing import TypeAlias, get_args

from sqlalchemy import insert

from hopback import App, Rule, Verdict
from hopback.systems.file_pipeline.messages import (
    FileRejected,
    Malformed,
    PipelineMessage,
    ProcessingCompleted,
    ProcessingFailed,
    ProcessingTimedOut,
    payload_of,
)
from hopback.systems.file_pipeline.part_runtime import PartRuntime
from hopback.systems.file_pipeline.tables import notifications

News: TypeAlias = FileRejected | ProcessingCompleted | ProcessingFailed | ProcessingTimedOut

_QUEUE = "q.notification"


def add_notification(app: App, runtime: PartRuntime) -> None:
    """Add the handler of `q.notification`."""

    @app.handler(_QUEUE, concurrency=4, rules=[Rule(Malformed, Verdict.PARK)])
    async def notify(event: PipelineMessage) -> None:
        news: News = payload_of(event, *get_args(News))
        row = {
            "message_id": event.messageId,
            "file_id": news.fileId,
            "type": event.type,
            "text": text_of(news),
            "created_at": runtime.clock.now(),
        }
        async with runtime.database.transaction() as tx:
            if await tx.first_time(_QUEUE, event.messageId):
                await tx.execute(insert(notifications), row)


def text_of(news: News) -> str:
    match news:
        case FileRejected(name=name, reason=reason):
            return f"{name} was rejected. {reason}"
        case ProcessingCompleted(name=name):
            return f"{name} is ready."
        case ProcessingFailed(stage=stage, reason=reason):
            return f"The file failed in {stage}: {reason}"
        case ProcessingTimedOut(name=name, waitingFor=missing):
            return f"{name or 'The file'} takes too long. Still missing: {' and '.join(missing)}."
