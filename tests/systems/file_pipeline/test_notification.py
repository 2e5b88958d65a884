"""Notifications by mail. SMTP is aiosmtpd."""

from __future__ import annotations

import socket
from email import message_from_bytes
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from hopback.testing import in_virtual_time
from tests.systems.file_pipeline.gateway_client import open_gateway

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.socket


class _Mailbox:
    """The handler of aiosmtpd. It refuses the first mail temporarily."""

    def __init__(self) -> None:
        self.refusals = 1
        self.mails: list[Any] = []

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
        if self.refusals:
            self.refusals -= 1
            return "451 busy, try again"
        self.mails.append((envelope.rcpt_tos, message_from_bytes(envelope.content)))
        return "250 OK"


@in_virtual_time
async def test_notification_is_also_sent_by_mail(tmp_path: Path) -> None:
    """One mail per notification, to every address. A temporary refusal is retried."""
    mailbox = _Mailbox()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = import_module("aiosmtpd.controller").Controller(mailbox, "127.0.0.1", port)
    server.start()
    try:
        options = {
            "smtp": f"smtp://127.0.0.1:{port}",
            "mail_to": ("ops@example.org", "team@example.org"),
        }
        async with open_gateway(tmp_path, **options) as web:
            await web.upload_and_settle(b"hello", "a.txt", "text/plain")
            notified = await web.client.get("/notifications")
            assert [one["text"] for one in notified.json()["items"]] == ["a.txt is ready."]
    finally:
        server.stop()
    ((recipients, mail),) = mailbox.mails
    assert recipients == ["ops@example.org", "team@example.org"]
    assert (mail["Subject"], mail["From"]) == ("a.txt is ready.", "file-pipeline@localhost")
    assert mailbox.refusals == 0
