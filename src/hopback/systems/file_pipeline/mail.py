"""Notifications by e-mail, beside the table that the gateway serves."""

from __future__ import annotations

import smtplib
from dataclasses import dataclass
from email.message import EmailMessage
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from hopback.systems.file_pipeline.settings import PipelineSettings

__all__ = ["Mailer"]

_PATIENCE_S = 20.0
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
        with kind(host, port, timeout=_PATIENCE_S) as server:
            if not secure and server.has_extn("starttls"):
                server.starttls()
            if where.username:
                server.login(unquote(where.username), unquote(where.password or ""))
            server.send_message(mail)
