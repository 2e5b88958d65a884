"""Send notices to webhooks, Slack and mail addresses.

The addresses are in the settings file. The same rules apply as for push targets. Redirects and
proxies from the environment are not used, and headers do not contain any text from messages.
"""

from __future__ import annotations

import asyncio
import json
import smtplib
import ssl
from email.message import EmailMessage
from email.utils import formatdate
from typing import TYPE_CHECKING

from hopback.ops.alerts.settings import AlertTargetKind, AlertTargetSettings
from hopback.ops.contract.codec import to_json
from hopback.runtime.push import SIGNATURE, push_client
from hopback.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hopback.clock import Clock
    from hopback.ops.alerts.values import Alert, AlertNotice

_LISTED = 20  # alerts in a chat message or mail, to keep it readable. The page shows all.
_NAMED = 3  # queues named in the subject of several alerts. The rest is "and others".
_LONGEST_SUBJECT = 150  # characters, because mail programs truncate longer subjects
_LONGEST_ANSWER = 2000  # bytes of an error response that are read. The rest is ignored.
_LONGEST_PROBLEM = 200  # characters of an error that are shown, which fit in a line of the page


class NotTaken(Exception):
    """A target did not accept a notice. The message is the reason and does not contain the address."""


class AlertSender:
    """Send notices to one target."""

    def __init__(
        self,
        target: AlertTargetSettings,
        environment: Mapping[str, str],
        clock: Clock,
        link: str = "",
        address: str = "",
    ) -> None:
        self.settings = target
        self._address = address
        self._clock = clock
        self._link = link.rstrip("/")
        self._password = environment.get(target.password_env, "") if target.password_env else ""
        self._push = None
        if target.kind is not AlertTargetKind.MAIL:
            self._push = target.push_target(environment)

    async def send(self, notice: AlertNotice) -> None:
        """Send a notice. Raises NotTaken unless the target confirms that it has accepted the notice."""
        seconds = self.settings.timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                if self.settings.kind is AlertTargetKind.MAIL:
                    # A thread cannot be cancelled, but smtplib applies its timeout to each step.
                    await asyncio.to_thread(self._mail, notice)
                else:
                    await self._post(notice)
        except TimeoutError:
            raise NotTaken(f"no answer within {seconds:g} s") from None
        except smtplib.SMTPResponseException as error:
            said = error.smtp_error
            text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
            raise NotTaken(f"the mail server answered {error.smtp_code} {_shorten(text)}") from None
        except smtplib.SMTPException as error:
            raise NotTaken(_shorten(f"{type(error).__name__}: {error}")) from None
        except OSError as error:
            raise NotTaken(_shorten(error.strerror or type(error).__name__)) from None
        except UnicodeError as error:  # the host of the mail server cannot be looked up
            raise NotTaken(_shorten(str(error))) from None

    async def _post(self, notice: AlertNotice) -> None:
        import httpx

        target = self._push
        assert target is not None  # noqa: S101 - by the kind
        slack = self.settings.kind is AlertTargetKind.SLACK
        make_body = slack_body if slack else webhook_body
        body = make_body(notice, self._link, self._address)
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
                    raise NotTaken(_shorten(f"it answered {answer.status_code} {text}"))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise NotTaken(_shorten(str(error) or type(error).__name__)) from None

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
            server.send_message(mail_of(notice, self._link, said.sender, said.to, self._address))


def _shorten(text: str) -> str:
    line = one_line(text.strip().splitlines()[0] if text.strip() else "")
    return line if len(line) <= _LONGEST_PROBLEM else f"{line[:_LONGEST_PROBLEM]}…"


def summary_of_notice(notice: AlertNotice, address: str = "") -> str:
    """Summarise a notice in one line. `address` is used for brokers that have no name."""
    if notice.is_test:
        return "Hopback: a test notice, no action needed"
    alerts = (*notice.firing, *notice.resolved)
    if len(alerts) == 1 and not notice.more:
        word = "resolved: " if notice.resolved else ""
        return one_line(f"Hopback: {word}{alerts[0].rule} ({_where(alerts[0], address)})")
    parts = [
        f"{len(some)} {word}"
        for some, word in ((notice.firing, "firing"), (notice.resolved, "resolved"))
        if some
    ]
    places = list(dict.fromkeys(_where(each, address) for each in alerts))
    named = ", ".join(places[:_NAMED]) + (" and others" if len(places) > _NAMED else "")
    more = f", {notice.more} more" if notice.more else ""
    return one_line(f"Hopback: {', '.join(parts)}{more} ({named})")


def _where(alert: Alert, address: str) -> str:
    broker = alert.broker or address
    return f"{alert.queue} on {broker}" if broker else alert.queue


def webhook_body(notice: AlertNotice, link: str, address: str = "") -> bytes:
    """Write a notice as JSON. It contains the alerts as in the API, with absolute links."""
    document = to_json(notice)
    for group in ("firing", "resolved"):
        for each in document[group]:
            each["link"] = f"{link}{each['url']}" if link else ""
    document["text"] = summary_of_notice(notice, address)
    return json.dumps(document, ensure_ascii=False).encode()


def slack_body(notice: AlertNotice, link: str, address: str = "") -> bytes:
    """Write a notice as a chat message. Names are escaped, so that they cannot contain links or
    mentions.
    """
    lines = [f"*{_escape(summary_of_notice(notice, address))}*"]
    for alert, word in _alerts_of(notice):
        where = _escape(one_line(_where(alert, address)))
        where = f"<{link}{alert.url}|{where}>" if link else f"`{where}`"
        lines.append(f"• {word} {_escape(one_line(alert.rule))}: {where} {_escape(alert.text)}")
    lines += _describe_omitted(notice)
    return json.dumps({"text": "\n".join(lines)}, ensure_ascii=False).encode()


def mail_of(
    notice: AlertNotice, link: str, sender: str, to: Iterable[str], address: str = ""
) -> EmailMessage:
    """Write a notice as a mail. Its Message-ID contains the id of the notice, by which duplicates
    can be detected.
    """
    mail = EmailMessage()
    mail["From"], mail["To"] = sender, ", ".join(to)
    mail["Subject"] = summary_of_notice(notice, address)[:_LONGEST_SUBJECT]
    mail["Date"] = formatdate(notice.created_at)
    mail["Message-ID"] = f"<{notice.id}@{sender.rpartition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"
    lines = []
    for alert, word in _alerts_of(notice):
        lines += [
            f"{word}: {one_line(alert.rule)}",
            f"  {one_line(_where(alert, address))}: {alert.text}",
        ]
        lines += [f"  {link}{alert.url}", ""] if link else [""]
    lines += _describe_omitted(notice)
    mail.set_content("\n".join(lines) or "This is a test. No action is needed.\n")
    return mail


def _alerts_of(notice: AlertNotice) -> Iterator[tuple[Alert, str]]:
    for alert in notice.firing[:_LISTED]:
        yield alert, "Firing"
    for alert in notice.resolved[: max(_LISTED - len(notice.firing), 0)]:
        yield alert, "Resolved"


def _describe_omitted(notice: AlertNotice) -> list[str]:
    listed = min(len(notice.firing) + len(notice.resolved), _LISTED)
    left = len(notice.firing) + len(notice.resolved) + notice.more - listed
    return [f"and {left} more: see the page"] if left else []


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
