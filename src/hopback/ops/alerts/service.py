"""Alerts: looked for from time to time, told to people, and shown in the API and on the page.

Of several services on one database one leads: it alone decides and sends. What is to be told is written down
with the decision and sent afterwards, so a service that is killed in between loses nothing; the next one
sends what waits. A message may come twice then, under the same id.
"""

from __future__ import annotations

import asyncio
import json
import logging
import smtplib
import ssl
from collections import deque
from email.message import EmailMessage
from email.utils import formatdate
from secrets import token_hex
from typing import TYPE_CHECKING

from msgspec import structs

from hopback.errors import HopbackError, LeaseLost, NoSuch
from hopback.ops.alerts.book import list_alerts, read_alerts
from hopback.ops.alerts.rules import (
    AlertKind,
    AlertList,
    AlertNotice,
    AlertState,
    AlertTestResult,
    BrokerSeen,
    FingerprintSeen,
    QueueSeen,
    decide_alerts,
)
from hopback.ops.contract import endpoints
from hopback.ops.contract.codec import encode, from_json, to_json
from hopback.ops.contract.queue_rules import EVERY_QUEUE, VISIBLE_QUEUES
from hopback.ops.contract.roles import Role
from hopback.ops.contract.values import Moment
from hopback.ops.http.api import ApiTable, Call
from hopback.ops.http.auth import forbidden
from hopback.ops.http.settings import AlertTargetKind
from hopback.ops.page.pages import Pages
from hopback.policy.backoff import BackoffWaits, delay
from hopback.runtime.push import SIGNATURE, push_client
from hopback.text import one_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from starlette.responses import Response

    from hopback.clock import Clock
    from hopback.ops.alerts.book import AlertBook, WaitingNotice
    from hopback.ops.alerts.rules import Alert
    from hopback.ops.contract.endpoints import Empty
    from hopback.ops.contract.requests import AlertTestRequest
    from hopback.ops.contract.surveys import ErrorGroup
    from hopback.ops.contract.values import Job
    from hopback.ops.http.overview import Sweep
    from hopback.ops.http.settings import AlertSettings, AlertTargetSettings
    from hopback.ops.page.pages import Visit

_LOG = logging.getLogger("hopback.ops.http")

_SAMPLES = 60  # of the time that the longest growth rule looks back: each is at most 2 % of it late
_AGAIN = BackoffWaits(first=5.0, factor=2.0, cap=300.0)
_ERRORS_FRESH_S = 60.0  # surveys take minutes; reading all of them at each look would be felt
_AGE_FRESH_S = 3600.0  # what was the oldest an hour ago may have been sent back since
_GIVEN_UP_S = 3 * 86_400.0  # a long weekend: older news is on the page
_KEPT_S = 7 * 86_400.0  # what was sent is kept for a week: somebody may ask whether it was


_BY_SURVEYS = frozenset({AlertKind.NEW_FINGERPRINT, AlertKind.OLDEST_AGE})


class AlertSource:
    """What alerts are about, of one broker."""

    def __init__(
        self,
        broker: str,
        sweep: Sweep,
        jobs: Callable[[], Awaitable[Sequence[Job]]],
        errors: Callable[[], Awaitable[Mapping[str, tuple[float, Sequence[ErrorGroup]]]]],
        remember_consumed: Callable[[Iterable[str]], Awaitable[frozenset[str]]],
    ) -> None:
        self.broker = broker
        self._remember_consumed = remember_consumed
        self._consumed: frozenset[str] | None = None
        self._sweep = sweep
        self._jobs = jobs
        self._errors = errors
        self._known: Mapping[str, tuple[float, Sequence[ErrorGroup]]] = {}
        self._known_at = float("-inf")
        self._past: dict[str, deque[tuple[float, int]]] = {}

    async def see(self, now: float, back_s: float, *, errors: bool = True) -> BrokerSeen:
        """How it is now, with depths of `back_s` seconds back; raises what the broker says.

        `errors`: with what surveys found in the queues.
        """
        if errors and not 0 <= now - self._known_at < _ERRORS_FRESH_S:
            self._known, self._known_at = await self._errors(), now
        swept = await self._sweep.get()
        jobs = await self._jobs()
        consumed = frozenset(name for each in swept.queues for name in each.consumed or ())
        if self._consumed is None or not consumed <= self._consumed:
            self._consumed = await self._remember_consumed(consumed)
        for gone in self._past.keys() - {each.queue for each in swept.queues}:
            del self._past[gone]
        queues = []
        for found in (each for each in swept.queues if each.exists):
            past = self._past.setdefault(found.queue, deque(maxlen=_SAMPLES + 1))
            earlier = tuple(past)
            depth = found.depth.total
            if depth is not None and (not past or now - past[-1][0] >= back_s / _SAMPLES):
                past.append((now, depth))
            surveyed_at, groups = self._known.get(found.queue, (0.0, ()))
            is_fresh = now - surveyed_at <= _AGE_FRESH_S
            firsts = [group.first for group in groups if group.first is not None and is_fresh]
            new = tuple(
                FingerprintSeen(one.fingerprint, one.error or one.message, one.first_seen or 0.0)
                for one in groups
                if one.is_new
            )
            held_back = sum(each.messages for each in found.held_back)
            oldest = min(firsts, default=None)
            unconsumed = found.unconsumed
            if unconsumed is not None:  # a queue that never had a consumer has not lost one
                unconsumed = tuple(name for name in unconsumed if name in self._consumed)
            queues.append(
                QueueSeen(found.queue, depth, earlier, oldest, new, held_back, unconsumed)
            )
        return BrokerSeen(self.broker, tuple(queues), tuple(jobs))


class Alerting:
    """Runs the rules. `senders` tell the targets, by name; `sources` are asked each time."""

    def __init__(
        self,
        settings: AlertSettings,
        book: AlertBook,
        sources: Iterable[AlertSource],
        senders: Mapping[str, AlertSender],
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._book = book
        self._sources = tuple(sources)
        self._senders = dict(senders)
        self._clock = clock
        self._owner = token_hex(8)
        self._turn = asyncio.Lock()
        longest = max((one.settings.timeout_seconds for one in self._senders.values()), default=0)
        # Longer than a look and a message together may take: who is alive keeps it.
        self._lease_s = 2 * settings.every_seconds + 2 * longest
        self._wants_errors = any(rule.kind in _BY_SURVEYS for rule in settings.rules)
        growing = (rule for rule in settings.rules if rule.kind is AlertKind.GROWTH)
        self._back_s = max((rule.within_seconds for rule in growing), default=0.0)

    @property
    def has_rules(self) -> bool:
        """Whether there is anything to look for, or to send still."""
        return bool(self._settings.rules or self._settings.targets)

    async def run(self) -> None:
        """Look and tell until cancelled; whatever goes wrong, the next look comes."""
        try:
            while True:
                try:
                    await self.look()
                except Exception as error:  # a database or broker that is away today is tried again
                    _LOG.warning("alerts could not be looked after", exc_info=error)
                await asyncio.sleep(self._settings.every_seconds)
        finally:
            try:
                await self._book.step_down(self._owner)
            except HopbackError:
                _LOG.debug("the lease of the alerts ends by itself")

    async def look(self) -> bool:
        """Look once, write down what follows and send what is due; False if another service leads."""
        async with self._turn:
            now = self._clock.now()
            seen = await self._see(now)
            if not await self._book.lead(self._owner, now, self._lease_s):
                return False
            rules, manners = self._settings.rules, self._settings.manners
            known, served = await read_alerts(self._book), [one.broker for one in self._sources]
            decision = decide_alerts(rules, seen, known, now, manners, served)
            try:
                if decision.changed or decision.forgotten or decision.notices:
                    await self._book.save(
                        self._owner,
                        now,
                        documents={each.id: encode(each).decode() for each in decision.changed},
                        forgotten=decision.forgotten,
                        notices=[(each.target, encode(each).decode()) for each in decision.notices],
                    )
                # Send what is due, each target in its order, several targets at a time.
                while waiting := await self._book.next_notices(self._clock.now()):
                    if not await self._book.lead(self._owner, self._clock.now(), self._lease_s):
                        raise LeaseLost("another service looks after the alerts now")
                    await asyncio.gather(*map(self._send, waiting))
                await self._book.forget(now - _KEPT_S)
            except LeaseLost:
                return False
            return True

    async def _see(self, now: float) -> list[BrokerSeen]:
        """The brokers that answer, asked all at once: those that are away do not add up."""
        seen = await asyncio.gather(
            *(source.see(now, self._back_s, errors=self._wants_errors) for source in self._sources),
            return_exceptions=True,
        )
        found = []
        for source, one in zip(self._sources, seen, strict=True):
            if isinstance(one, Exception):  # its alerts stay as they are until it answers
                _LOG.info("alerts: broker %s was not seen: %s", source.broker or "", one)
            elif isinstance(one, BaseException):
                raise one
            else:
                found.append(one)
        return found

    async def _send(self, waiting: WaitingNotice) -> None:
        number, target, document, made_at, attempts = waiting
        sender = self._senders.get(target)
        problem = "the settings have no such target any more"
        if sender is not None:
            try:
                await sender.send(from_json(AlertNotice, document))
            except NotTaken as error:
                problem = str(error)
            else:
                await self._book.ended(self._owner, number, self._clock.now())
                return
        now = self._clock.now()
        if sender is None or now - made_at > _GIVEN_UP_S:
            _LOG.error("an alert for %s is given up: %s", target, problem)
            await self._book.ended(self._owner, number, now, problem)
            return
        wait = delay(attempts + 1, _AGAIN, 0.0)
        _LOG.warning("an alert for %s was not taken: %s; again in %g s", target, problem, wait)
        await self._book.failed(self._owner, number, now, now + wait, problem)

    async def listed(self) -> AlertList:
        """Everything about alerts that may be shown."""
        kinds = {name: one.settings.kind.value for name, one in self._senders.items()}
        found = await list_alerts(self._book, kinds)
        return structs.replace(found, rules=self._settings.rules)

    async def test(self, target: str) -> AlertTestResult:
        """Send a target something harmless, now; NoSuch if it is not in the settings."""
        sender = self._senders.get(target)
        if sender is None:
            known = ", ".join(self._senders) or "none"
            raise NoSuch("alert target", target, f"the settings have {known}")
        now = Moment(self._clock.now())
        try:
            await sender.send(AlertNotice(f"n-test-{token_hex(8)}", target, now, is_test=True))
        except NotTaken as error:
            return AlertTestResult(target, delivered=False, problem=str(error))
        return AlertTestResult(target, delivered=True)


#
# A webhook, a chat, a mail. Who is told stands in the settings file alone, never in a request or a message,
# and is asked as push targets are: redirects are not followed, proxies of the environment not used, no text
# of a message becomes a header.

_LISTED = 20  # alerts of one message to people; the page has them all
_NAMED = 3  # queues that the subject of several alerts names
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
            server.send_message(mail_of(notice, self._link, said.sender, said.to, self._address))


def _shortened(text: str) -> str:
    line = one_line(text.strip().splitlines()[0] if text.strip() else "")
    return line if len(line) <= _LONGEST_PROBLEM else f"{line[:_LONGEST_PROBLEM]}…"


def summary_of_notice(notice: AlertNotice, address: str = "") -> str:
    """The notice in one line; `address` is that of a broker without a name."""
    if notice.is_test:
        return "Hopback: a test, nothing is wrong"
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
    """The notice for a program: the alerts as the API has them, each with a whole link."""
    document = to_json(notice)
    for group in ("firing", "resolved"):
        for each in document[group]:
            each["link"] = f"{link}{each['url']}" if link else ""
    document["text"] = summary_of_notice(notice, address)
    return json.dumps(document, ensure_ascii=False).encode()


def slack_body(notice: AlertNotice, link: str, address: str = "") -> bytes:
    """The notice for a chat. What it says of others is escaped: it cannot make links or call people."""
    lines = [f"*{_escaped(summary_of_notice(notice, address))}*"]
    for alert, word in _alerts_of(notice):
        where = _escaped(one_line(_where(alert, address)))
        where = f"<{link}{alert.url}|{where}>" if link else f"`{where}`"
        lines.append(f"• {word} {_escaped(one_line(alert.rule))}: {where} {_escaped(alert.text)}")
    lines += _left_out(notice)
    return json.dumps({"text": "\n".join(lines)}, ensure_ascii=False).encode()


def mail_of(
    notice: AlertNotice, link: str, sender: str, to: Iterable[str], address: str = ""
) -> EmailMessage:
    """The notice as a mail; its Message-ID is the notice's, so that a copy can be told."""
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
    lines += _left_out(notice)
    mail.set_content("\n".join(lines) or "This is a test. Nothing is wrong.\n")
    return mail


def _alerts_of(notice: AlertNotice) -> Iterator[tuple[Alert, str]]:
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


ALERTS = ApiTable()
"""The rows of this part, each above what answers it."""


async def visible_alerts(call: Call[Empty, None]) -> AlertList:
    """The alerts of queues that the caller may see; rules and targets are for admins."""
    found, principal = await call.services.alerting.listed(), call.principal
    items = tuple(
        one
        for one in found.items
        if call.services.has(one.broker) and principal.allows(Role.VIEWER, one.queue)
    )
    if not call.services.manages(principal):
        return AlertList(items, len(items))
    return structs.replace(found, items=items, total=len(items))


@ALERTS.answer(endpoints.ALERTS)
async def _list_alerts(call: Call[Empty, None]) -> AlertList:
    """List alerts that fire, are pending, or were resolved within a week."""
    return await visible_alerts(call)


@ALERTS.answer(endpoints.TEST_ALERT)
async def _test_alert(call: Call[Empty, AlertTestRequest]) -> AlertTestResult:
    """Send a test message to an alert target and report whether it was accepted."""
    if not call.services.manages(call.principal):
        raise forbidden()
    found = await call.services.alerting.test(call.body.target)
    details = {"target": found.target, "problem": found.problem}
    result = "ok" if found.delivered else "failed"
    await call.operations.note("alert.test", result=result, details=details)
    return found


ALERT_PAGES = Pages()
"""The rows of this part."""


@ALERT_PAGES.get("/alerts", Role.VIEWER, VISIBLE_QUEUES)
async def _alerts(visit: Visit) -> Response:
    return await _page(visit, None)


@ALERT_PAGES.post("/alerts/test", Role.ADMIN, EVERY_QUEUE)
async def _test(visit: Visit) -> Response:
    if not visit.services.manages(visit.principal):
        raise forbidden()
    tested = await visit.services.alerting.test(visit.field("target"))
    details = {"target": tested.target, "problem": tested.problem}
    result = "ok" if tested.delivered else "failed"
    await visit.operations.note("alert.test", result=result, details=details)
    return await _page(visit, tested)


async def _page(visit: Visit, tested: AlertTestResult | None) -> Response:
    found = await visit.services.alerting.listed()
    seen = [
        one
        for one in found.items
        if visit.services.has(one.broker) and visit.principal.allows(Role.VIEWER, one.queue)
    ]
    by_state = {state: [one for one in seen if one.state is state] for state in AlertState}
    firing = by_state[AlertState.FIRING]
    word = "alert fires" if len(firing) == 1 else "alerts fire"
    return visit.page(
        "alerts.html",
        headline=f"{len(firing)} {word}" if firing else "No alert fires",
        firing=firing,
        pending=by_state[AlertState.PENDING],
        resolved=by_state[AlertState.RESOLVED],
        manages=visit.services.manages(visit.principal),
        rules=found.rules,
        targets=found.targets,
        # What is told after a target took something for the last time still waits for it.
        taken={one.name: one.sent_at or 0.0 for one in found.targets},
        tested=tested,
    )
