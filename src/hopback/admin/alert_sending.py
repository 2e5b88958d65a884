"""Telling somebody of alerts: a webhook, a chat, a mail.

Who is told stands in the settings file alone, never in a request or a message, and is asked as push targets
are: redirects are not followed, proxies of the environment not used, no text of a message becomes a header.
"""

from __future__ import annotations

import asyncio
import json
import smtplib
import ssl
from email.message import EmailMessage
from email.utils import formatdate
from typing import TYPE_CHECKING

from hopback.admin.alert_settings import AlertTargetKind
from hopback.deadletters.codec import to_json
from hopback.runtime.push import SIGNATURE, push_client
from hopback.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hopback.admin.alert_settings import AlertTargetSettings
    from hopback.clock import Clock
    from hopback.deadletters.alerts import Alert, AlertNotice

__all__ = ["AlertSender", "NotTaken", "mail_of", "slack_body", "summary_of_notice", "webhook_body"]

_LISTED = 20  # alerts of one message to people; the page has them all
_LONGEST_SUBJECT = 150  # characters: mail programs cut longer ones
_LONGEST_ANSWER = 2000  # bytes that are read of a refusal; its first line is shown
_LONGEST_PROBLEM = 200  # characters of it


class NotTaken(Exception):
    """A target did not take a message; the text says why, without its address."""


class AlertSender:
    """Tells one target."""

    def __init__(
        self,
        target: AlertTargetSettings,
        environment: Mapping[str, str],
        clock: Clock,
        link: str = "",
    ) -> None:
        self.settings = target
        self._clock = clock
        self._link = link.rstrip("/")
        self._password = environment.get(target.password_env, "") if target.password_env else ""
        self._push = None
        if target.kind is not AlertTargetKind.MAIL:
            self._push = target.push_target(environment)

    async def send(self, notice: AlertNotice) -> None:
        """Return when it was taken; NotTaken if it was not, or nobody can tell."""
        seconds = self.settings.timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                if self.settings.kind is AlertTargetKind.MAIL:
                    # A thread cannot be stopped: smtplib's own limit ends each of its steps.
                    await asyncio.to_thread(self._mail, notice)
                else:
                    await self._post(notice)
        except TimeoutError:
            raise NotTaken(f"no answer within {seconds:g} s") from None
        except smtplib.SMTPResponseException as error:
            said = error.smtp_error
            text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
            raise NotTaken(f"the mail server says {error.smtp_code} {_shortened(text)}") from None
        except smtplib.SMTPException as error:
            raise NotTaken(_shortened(f"{type(error).__name__}: {error}")) from None
        except OSError as error:
            raise NotTaken(_shortened(error.strerror or type(error).__name__)) from None

    async def _post(self, notice: AlertNotice) -> None:
        import httpx

        target = self._push
        assert target is not None  # noqa: S101 - by the kind
        slack = self.settings.kind is AlertTargetKind.SLACK
        body = slack_body(notice, self._link) if slack else webhook_body(notice, self._link)
        headers = {"content-type": "application/json", "x-message-id": notice.id}
        if target.bearer:
            headers["authorization"] = f"Bearer {target.bearer}"
        if target.secret:
            headers[SIGNATURE] = target.signature(body, self._clock.now())
        try:
            async with (
                push_client(target) as client,
                client.stream("POST", target.url, content=body, headers=headers) as answer,
            ):
                said = b""
                async for part in answer.aiter_raw():
                    said += part
                    if len(said) > _LONGEST_ANSWER:
                        break
                if not answer.is_success:
                    text = said[:_LONGEST_ANSWER].decode("utf-8", "replace").strip()
                    raise NotTaken(_shortened(f"it answers {answer.status_code} {text}"))
        except httpx.HTTPError as error:
            raise NotTaken(_shortened(str(error) or type(error).__name__)) from None

    def _mail(self, notice: AlertNotice) -> None:
        said = self.settings
        tls = ssl.create_default_context()
        if said.security == "tls":
            server: smtplib.SMTP = smtplib.SMTP_SSL(
                said.host, said.port, timeout=said.timeout_seconds, context=tls
            )
        else:
            server = smtplib.SMTP(said.host, said.port, timeout=said.timeout_seconds)
        with server:
            if said.security == "starttls":
                server.starttls(context=tls)
            if said.user:
                server.login(said.user, self._password)
            server.send_message(mail_of(notice, self._link, said.sender, said.to))


def _shortened(text: str) -> str:
    line = one_line(text.strip().splitlines()[0] if text.strip() else "")
    return line if len(line) <= _LONGEST_PROBLEM else f"{line[:_LONGEST_PROBLEM]}…"


# --- what is said


def summary_of_notice(notice: AlertNotice) -> str:
    """The notice in one line."""
    if notice.is_test:
        return "Hopback: a test, nothing is wrong"
    if len(notice.firing) + len(notice.resolved) == 1 and not notice.more:
        one = (*notice.firing, *notice.resolved)[0]
        word = "resolved: " if notice.resolved else ""
        return one_line(f"Hopback: {word}{one.rule} ({_where(one)})")
    parts = [
        f"{len(some)} {word}"
        for some, word in ((notice.firing, "firing"), (notice.resolved, "resolved"))
        if some
    ]
    return f"Hopback: {', '.join(parts)}{f', {notice.more} more' if notice.more else ''}"


def _where(alert: Alert) -> str:
    return f"{alert.queue} on {alert.broker}" if alert.broker else alert.queue


def webhook_body(notice: AlertNotice, link: str) -> bytes:
    """The notice for a program: the alerts as the API has them, each with a whole link."""
    document = to_json(notice)
    for group in ("firing", "resolved"):
        for each in document[group]:
            each["link"] = f"{link}{each['url']}" if link else ""
    document["text"] = summary_of_notice(notice)
    return json.dumps(document, ensure_ascii=False).encode()


def slack_body(notice: AlertNotice, link: str) -> bytes:
    """The notice for a chat. What it says of others is escaped: it cannot make links or call people."""
    lines = [f"*{_escaped(summary_of_notice(notice))}*"]
    for alert, word in _listed(notice):
        where = _escaped(one_line(_where(alert)))
        where = f"<{link}{alert.url}|{where}>" if link else f"`{where}`"
        lines.append(f"• {word} {_escaped(one_line(alert.rule))}: {where} {_escaped(alert.text)}")
    lines += _left_out(notice)
    return json.dumps({"text": "\n".join(lines)}, ensure_ascii=False).encode()


def mail_of(notice: AlertNotice, link: str, sender: str, to: Iterable[str]) -> EmailMessage:
    """The notice as a mail; its Message-ID is the notice's, so that a copy can be told."""
    mail = EmailMessage()
    mail["From"], mail["To"] = sender, ", ".join(to)
    mail["Subject"] = summary_of_notice(notice)[:_LONGEST_SUBJECT]
    mail["Date"] = formatdate(notice.created_at)
    mail["Message-ID"] = f"<{notice.id}@{sender.rpartition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"
    lines = []
    for alert, word in _listed(notice):
        lines += [f"{word}: {one_line(alert.rule)}", f"  {one_line(_where(alert))}: {alert.text}"]
        lines += [f"  {link}{alert.url}", ""] if link else [""]
    lines += _left_out(notice)
    mail.set_content("\n".join(lines) or "This is a test. Nothing is wrong.\n")
    return mail


def _listed(notice: AlertNotice) -> Iterator[tuple[Alert, str]]:
    for alert in notice.firing[:_LISTED]:
        yield alert, "Firing"
    for alert in notice.resolved[: max(_LISTED - len(notice.firing), 0)]:
        yield alert, "Resolved"


def _left_out(notice: AlertNotice) -> list[str]:
    listed = min(len(notice.firing) + len(notice.resolved), _LISTED)
    left = len(notice.firing) + len(notice.resolved) + notice.more - listed
    return [f"and {left} more: see the page"] if left else []


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
