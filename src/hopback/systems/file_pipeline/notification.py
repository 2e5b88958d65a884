"""Notifications: in a table that the gateway serves, and optionally by mail."""

from __future__ import annotations

import asyncio
import smtplib
from dataclasses import dataclass
from email.message import EmailMessage
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from sqlalchemy import insert, select

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
from hopback.systems.file_pipeline.part_runtime import PartRuntime
from hopback.systems.file_pipeline.settings import PipelineSettings
from hopback.systems.file_pipeline.tables import notifications

News: TypeAlias = FileRejected | ProcessingCompleted | ProcessingFailed | ProcessingTimedOut

_LONGEST_WAIT_S = 20.0
"""Seconds for the answer of a mail server. Then the message is retried."""
_PORTS = {"smtp": 25, "smtps": 465}
"""The default ports of mail servers."""


@dataclass(frozen=True, slots=True)
class Mailer:
    """Sends plain text to the addresses of the settings. STARTTLS is used if the server offers it."""

    address: str
    sender: str
    recipients: tuple[str, ...]

    @classmethod
    def of(cls, settings: PipelineSettings) -> Mailer | None:
        """Return the mailer of the settings, or None without SMTP_URL."""
        if not settings.smtp:
            return None
        return cls(settings.smtp, settings.mail_from, settings.mail_to)

    def send(self, message_id: str, subject: str, text: str) -> None:
        """Send a mail. Raises OSError or SMTPException if the server does not accept it. Blocks.

        Its id is derived from the id of the event, so that most mailboxes show a repeated mail once.
        """
        mail = EmailMessage()
        mail["From"] = self.sender
        mail["To"] = ", ".join(self.recipients)
        mail["Subject"] = " ".join(subject.split())[:200]
        mail["Message-ID"] = f"<{message_id}@file-pipeline.hopback>"
        mail.set_content(text)
        where = urlsplit(self.address)
        host, port = where.hostname or "localhost", where.port or _PORTS[where.scheme]
        secure = where.scheme == "smtps"
        kind = smtplib.SMTP_SSL if secure else smtplib.SMTP
        with kind(host, port, timeout=_LONGEST_WAIT_S) as server:
            if not secure and server.has_extn("starttls"):
                server.starttls()
            if where.username:
                server.login(unquote(where.username), unquote(where.password or ""))
            server.send_message(mail)


_QUEUE = "q.notification"
_NEWS = (FileRejected, ProcessingCompleted, ProcessingFailed, ProcessingTimedOut)


def text_of(news: News) -> str:
    """Return the text of a notification."""
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
    """Add the handler of `q.notification`.

    The mail is sent before the event is marked as processed. If the process dies in between, the mail is
    sent twice.
    """
    mailer = Mailer.of(runtime.settings)

    @app.handler(_QUEUE, concurrency=4)
    async def notify(event: PipelineMessage) -> Park | None:
        try:
            news: News = payload_of(event, *_NEWS)
        except Malformed as error:
            return Park(str(error))
        text = text_of(news)
        if mailer is not None:
            # The row is written after the mail was sent.
            known = select(notifications.c.number).where(
                notifications.c.message_id == event.messageId
            )
            async with runtime.database.engine.connect() as connection:
                found = (await connection.execute(known)).first()
            if found is None:
                await asyncio.to_thread(mailer.send, event.messageId, text, text)
        async with runtime.database.transaction() as tx:
            if await tx.first_time(_QUEUE, event.messageId):
                row = {
                    "message_id": event.messageId,
                    "file_id": news.fileId,
                    "type": event.type,
                    "text": text,
                    "created_at": runtime.clock.now(),
                }
                await tx.execute(insert(notifications).values(**row))
        return None
