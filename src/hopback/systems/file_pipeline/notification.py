"""Notification: a record of what people have to know, which the gateway serves."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sqlalchemy import insert

from hopback import App, Park
from hopback.systems.file_pipeline.messages import (
    FileRejected,
    Malformed,
    PipelineMessage,
    ProcessingCompleted,
    ProcessingFailed,
    ProcessingTimedOut,
    payload_of,
)
from hopback.systems.file_pipeline.settings import PipelineSettings
from hopback.systems.file_pipeline.stages import alone
from hopback.systems.file_pipeline.tables import notifications

if TYPE_CHECKING:
    from typing import TypeAlias

    from hopback.systems.file_pipeline.part_runtime import PartRuntime

    Told: TypeAlias = FileRejected | ProcessingCompleted | ProcessingFailed | ProcessingTimedOut

__all__ = ["add_notification", "app", "told"]

app: App

_QUEUE = "q.notification"
_TOLD = (FileRejected, ProcessingCompleted, ProcessingFailed, ProcessingTimedOut)


def told(news: Told) -> str:
    """The news as a sentence for people."""
    match news:
        case FileRejected(name=name, reason=reason):
            return f"{name} was rejected. {reason}"
        case ProcessingCompleted(name=name):
            return f"{name} is ready."
        case ProcessingFailed(stage=stage, reason=reason):
            return f"The file failed in {stage}: {reason}"
        case ProcessingTimedOut(name=name, waitingFor=missing):
            return f"{name or 'The file'} takes too long: still without {' and '.join(missing)}."


def add_notification(app: App, runtime: PartRuntime) -> None:
    """Add the handler of `q.notification`."""

    @app.handler(_QUEUE, concurrency=4)
    async def notify(event: PipelineMessage) -> Park | None:
        try:
            news: Told = payload_of(event, *_TOLD)
        except Malformed as error:
            return Park(str(error))
        async with runtime.transaction() as tx:
            if await tx.first_time(_QUEUE, event.messageId):
                row = {
                    "message_id": event.messageId,
                    "file_id": news.fileId,
                    "type": event.type,
                    "text": told(news),
                    "created_at": runtime.clock.now(),
                }
                await tx.execute(insert(notifications).values(**row))
        return None


def __getattr__(name: str) -> App:
    """`app`, made of the environment when it is first asked for."""
    if name != "app":
        raise AttributeError(name)
    return alone("notification", add_notification, PipelineSettings.read(os.environ))
