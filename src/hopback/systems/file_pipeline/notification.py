"""Notifies users. Notifications are written to a table that the gateway reads, and can also be sent
by mail.
"""

from __future__ import annotations

import asyncio
import smtplib
from email.message import EmailMessage
from typing import TypeAlias, get_args
from urllib.parse import unquote, urlsplit

from sqlalchemy import insert, select

from hopback import App, Rule, Verdict
from hopback.systems.database import find_row
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
from hopback.systems.file_pipeline.settings import PipelineSettings
from hopback.systems.file_pipeline.tables import notifications

News: TypeAlias = FileRejected | ProcessingCompleted | ProcessingFailed | ProcessingTimedOut

_QUEUE = "q.notification"
_LONGEST_WAIT_S = 20.0
"""Seconds to wait for the mail server. After this the message is retried."""
_PORTS = {"smtp": 25, "smtps": 465}
"""The default ports of mail servers."""


def add_notification(app: App, runtime: PartRuntime) -> None:
    """Add the handler of `q.notification`.

    Mail is sent before the event is marked as processed. If the process is killed in between, the
    mail is sent twice.
    """

    @app.handler(_QUEUE, concurrency=4, rules=[Rule(Malformed, Verdict.PARK)])
    async def notify(event: PipelineMessage) -> None:
        news: News = payload_of(event, *get_args(News))
        text = text_of(news)
        if runtime.settings.smtp:
            # If the row exists, the mail has already been sent.
            same = notifications.c.message_id == event.messageId
            if await find_row(runtime.database, select(notifications).where(same)) is None:
                await asyncio.to_thread(send_mail, runtime.settings, event.messageId, text)
        row = {
            "message_id": event.messageId,
            "file_id": news.fileId,
            "type": event.type,
            "text": text,
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


def send_mail(settings: PipelineSettings, message_id: str, text: str) -> None:
    """Send a mail to the configured addresses. This blocks. STARTTLS is used if the server supports
    it.

    The id of the mail is derived from the id of the event, so that most mail clients hide
    duplicates. Raises OSError or SMTPException if the server does not accept the mail.
    """
    mail = EmailMessage()
    mail["From"] = settings.mail_from
    mail["To"] = ", ".join(settings.mail_to)
    mail["Subject"] = " ".join(text.split())[:200]
    mail["Message-ID"] = f"<{message_id}@file-pipeline.hopback>"
    mail.set_content(text)
    where = urlsplit(settings.smtp)
    secure = where.scheme == "smtps"
    kind = smtplib.SMTP_SSL if secure else smtplib.SMTP
    port = where.port or _PORTS[where.scheme]
    with kind(where.hostname or "localhost", port, timeout=_LONGEST_WAIT_S) as server:
        if not secure and server.has_extn("starttls"):
            server.starttls()
        if where.username:
            server.login(unquote(where.username), unquote(where.password or ""))
        server.send_message(mail)
