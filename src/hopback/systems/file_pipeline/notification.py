"""Notification: what people have to know, in a table that the gateway serves, and by e-mail if one wants."""

from __future__ import annotations

import asyncio
import os
import smtplib
from dataclasses import dataclass
from email.message import EmailMessage
from typing import TYPE_CHECKING
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
from hopback.systems.file_pipeline.settings import PipelineSettings
from hopback.systems.file_pipeline.stages import alone
from hopback.systems.file_pipeline.tables import notifications

if TYPE_CHECKING:
    from typing import TypeAlias

    from hopback.systems.file_pipeline.part_runtime import PartRuntime

    Told: TypeAlias = FileRejected | ProcessingCompleted | ProcessingFailed | ProcessingTimedOut

_LONGEST_WAIT_S = 20.0
"""How long a mail server may take: what takes longer is retried by the queue, and others are not held up."""
_PORTS = {"smtp": 25, "smtps": 465}
"""Where mail servers listen if nothing is said."""


@dataclass(frozen=True, slots=True)
class Mailer:
    """Sends plain text to the addresses of the settings. STARTTLS is used wherever it is offered."""

    address: str
    sender: str
    recipients: tuple[str, ...]

    @classmethod
    def of(cls, settings: PipelineSettings) -> Mailer | None:
        """The mailer that the settings name; None if nothing is mailed."""
        if not settings.smtp:
            return None
        return cls(settings.smtp, settings.mail_from, settings.mail_to)

    def send(self, message_id: str, subject: str, text: str) -> None:
        """Hand a mail over; OSError or SMTPException if the server does not take it. Blocks.

        Its id follows from the event's: a mail that was sent twice is one for most mailboxes.
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
    """Add the handler of `q.notification`.

    The mail goes out before the mark that the event was processed: if the process dies in between, it
    goes out again, rather than never.
    """
    mailer = Mailer.of(runtime.settings)

    @app.handler(_QUEUE, concurrency=4)
    async def notify(event: PipelineMessage) -> Park | None:
        try:
            news: Told = payload_of(event, *_TOLD)
        except Malformed as error:
            return Park(str(error))
        text = told(news)
        if mailer is not None:
            # An event that has its row has had its mail.
            known = select(notifications.c.number).where(
                notifications.c.message_id == event.messageId
            )
            async with runtime.engine.connect() as connection:
                found = (await connection.execute(known)).first()
            if found is None:
                await asyncio.to_thread(mailer.send, event.messageId, text, text)
        async with runtime.transaction() as tx:
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


def __getattr__(name: str) -> App:
    """`app`, made of the environment when it is first asked for."""
    if name != "app":
        raise AttributeError(name)
    return alone("notification", add_notification, PipelineSettings.read(os.environ))
