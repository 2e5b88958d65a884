"""Alerts over real HTTP and SMTP servers, and with two services on one store."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import ssl
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.policy import default
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest
from aiosmtpd.smtp import SMTP, AuthResult, LoginPassword

from hopback.clock import ManualClock
from hopback.endpoint import Endpoint, Response
from hopback.errors import LeaseLost
from hopback.ops.alerts.book import AlertBook
from hopback.ops.alerts.rules import AlertDecision
from hopback.ops.alerts.values import Alert, AlertKind, AlertNotice, AlertState
from hopback.ops.alerts.watch import Alerting, AlertReader
from hopback.ops.contract.surveys import ErrorGroup
from hopback.ops.contract.values import Depth, Moment, QueueSummary
from hopback.ops.http.settings import BadSettings, parse_settings
from hopback.ops.http.sweep import Sweep
from hopback.sql.sqlite import MemoryDatabase
from tests.integration.certificates import certificates
from tests.integration.database import sql_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from pathlib import Path

    from aiosmtpd.smtp import Envelope, Session

    from hopback.endpoint import Request
    from hopback.sql.database import SqlDatabase

__all__ = ["certificates", "sql_database"]

_NOW = 1_700_000_000.0
_SECRET = "a secret that two sides share"


@dataclass
class _Hook:
    """A webhook that records requests. `status` is its response, and `before` is awaited first."""

    url: str = ""
    status: int = 200
    posted: list[Request] = field(default_factory=list)
    before: Callable[[], Any] | None = None

    async def answer(self, request: Request) -> Response:
        """Keep it, then answer."""
        self.posted.append(request)
        if self.before is not None:
            await self.before()
        headers = {"Location": "http://127.0.0.1:9/"} if self.status == 302 else {}
        return Response(HTTPStatus(self.status), b"no such channel\n", headers=headers)

    @property
    def documents(self) -> list[dict[str, Any]]:
        """The posted documents, decoded from JSON."""
        return [json.loads(request.body) for request in self.posted]


@asynccontextmanager
async def _hook() -> AsyncIterator[_Hook]:
    hook = _Hook()
    endpoint = Endpoint(hook.answer, timeout=30, most_body=1_000_000)
    host, port = await endpoint.open("127.0.0.1", 0)
    hook.url = f"http://{host}:{port}/hooks/T0/secret"
    try:
        yield hook
    finally:
        await endpoint.close()


class _Queues:
    """One dead-letter queue as a sweep finds it."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.depth = 0
        self.errors: tuple[ErrorGroup, ...] = ()
        self.broken = False

    async def read(self) -> tuple[QueueSummary, ...]:
        if self.broken:
            raise OSError("the broker is away")
        depth = Depth(self.depth, 0, 0, "amqp", Moment(self._clock.now()))
        found = QueueSummary(
            queue="orders.dlq",
            main_queue="orders",
            origins=("orders",),
            label="",
            known_by="plan",
            depth=depth,
        )
        return (found,)

    async def no_jobs(self) -> tuple[()]:
        return ()

    async def remember_consumed(self, queues: Iterable[str]) -> frozenset[str]:
        return frozenset(queues)

    async def survey_results(self) -> dict[str, tuple[float, tuple[ErrorGroup, ...]]]:
        return {"orders.dlq": (self._clock.now(), self.errors)}


@dataclass
class _Setup:
    """A service of alerts over one queue, and its clock."""

    clock: ManualClock
    queues: _Queues
    book: AlertBook
    said: dict[str, Any]
    environment: dict[str, str]

    def service(self) -> Alerting:
        """Another service on the same book."""
        settings = parse_settings({"alerts": self.said}, self.environment, "test").alerts
        sweep = Sweep(self.queues.read, self.clock)
        source = AlertReader(
            "",
            sweep,
            self.queues.no_jobs,
            self.queues.survey_results,
            self.queues.remember_consumed,
        )
        return Alerting(
            settings, self.book, (source,), self.clock, self.environment, "mq.test/shop"
        )


_RULE = {"name": "orders fail", "kind": "depth", "above": 10}


def _set_up(book: AlertBook, *targets: dict[str, Any], **environment: str) -> _Setup:
    clock = ManualClock(_NOW)
    said = {
        "link": "https://hopback.example.com/",
        "wait_seconds": 0,
        "targets": list(targets),
        "rules": [_RULE],
    }
    return _Setup(clock, _Queues(clock), book, said, environment)


async def test_webhook_receives_firing_and_resolved_alerts() -> None:
    """Requests are signed and have an id and a link to the queue. Redirects are not followed."""
    async with _hook() as hook:
        target = {"name": "ops", "kind": "webhook", "url": hook.url, "secret_env": "HOOK_SECRET"}
        setup = _set_up(AlertBook(MemoryDatabase()), target, HOOK_SECRET=_SECRET)
        service = setup.service()
        for depth in (5, 11, 12, 3, 2):
            setup.queues.depth = depth
            setup.clock.advance(15)
            assert await service.look()
    fired, resolved = hook.documents
    assert [one["text"] for one in fired["firing"]] == ["11 dead letters, more than 10"]
    assert fired["firing"][0]["link"] == "https://hopback.example.com/queues/orders.dlq"
    assert resolved["firing"] == []
    assert resolved["resolved"][0]["state"] == "resolved"
    request = hook.posted[0]
    assert request.headers["x-message-id"] == fired["id"]
    moment, signed = (
        part.partition("=")[2] for part in request.headers["x-hopback-signature"].split(",")
    )
    content = f"{moment}.".encode() + request.body
    assert hmac.new(_SECRET.encode(), content, hashlib.sha256).hexdigest() == signed


async def test_slack_message_escapes_mentions() -> None:
    async with _hook() as hook:
        target = {"name": "chat", "kind": "slack", "url_env": "CHAT_URL"}
        setup = _set_up(AlertBook(MemoryDatabase()), target, CHAT_URL=hook.url)
        setup.said["rules"] = [{**_RULE, "name": "<!channel> & more"}]
        setup.queues.depth = 11
        await setup.service().look()
    (said,) = hook.documents
    assert said == {
        "text": "*Hopback: &lt;!channel&gt; &amp; more (orders.dlq on mq.test/shop)*\n"
        "• Firing &lt;!channel&gt; &amp; more:"
        " <https://hopback.example.com/queues/orders.dlq|orders.dlq on mq.test/shop>"
        " 11 dead letters, more than 10"
    }


class _Mailbox:
    """Keeps the mails that it is given, the TLS version by which each came, and who logged in."""

    def __init__(self) -> None:
        self.mails: list[Any] = []
        self.secured: list[str | None] = []
        self.logins: list[tuple[bytes, bytes]] = []

    def log_in(
        self, _server: SMTP, _session: Session, _envelope: Envelope, _mechanism: str, said: Any
    ) -> AuthResult:
        """Accept any login."""
        assert isinstance(said, LoginPassword)
        self.logins.append((said.login, said.password))
        return AuthResult(success=True)

    async def handle_DATA(  # noqa: N802  the server calls it so
        self, server: SMTP, _session: Session, envelope: Envelope
    ) -> str:
        assert isinstance(envelope.content, bytes)
        assert server.transport is not None
        secured = server.transport.get_extra_info("ssl_object")
        self.secured.append(secured.version() if secured is not None else None)
        self.mails.append(message_from_bytes(envelope.content, policy=default))
        return "250 OK"


@pytest.fixture
async def mailbox() -> AsyncIterator[tuple[_Mailbox, int]]:
    """Run a local mail server without TLS that still asks for passwords, and return its port."""
    kept = _Mailbox()

    def served() -> SMTP:
        return SMTP(kept, hostname="mail", auth_require_tls=False, authenticator=kept.log_in)

    server = await asyncio.get_running_loop().create_server(served, "127.0.0.1", 0)
    yield kept, server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


async def test_mail_contains_subject_link_and_stable_id(mailbox: tuple[_Mailbox, int]) -> None:
    kept, port = mailbox
    target = {
        "name": "mail",
        "kind": "mail",
        "host": "127.0.0.1",
        "port": port,
        "security": "none",
        "sender": "hopback@example.com",
        "to": ["ops@example.com", "ann@example.com"],
    }
    setup = _set_up(AlertBook(MemoryDatabase()), target)
    setup.queues.depth = 11
    await setup.service().look()
    (mail,) = kept.mails
    assert mail["Subject"] == "Hopback: orders fail (orders.dlq on mq.test/shop)"
    assert mail["To"] == "ops@example.com, ann@example.com"
    assert mail["Message-ID"].endswith("@example.com>")
    assert "https://hopback.example.com/queues/orders.dlq" in mail.get_content()


@pytest.fixture
async def secured_mailbox(certificates: Path) -> AsyncIterator[tuple[_Mailbox, int]]:
    """A mail server that takes neither a password nor a mail before STARTTLS, and its port."""
    kept = _Mailbox()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")

    def served() -> SMTP:
        return SMTP(
            kept,
            hostname="mail",
            tls_context=context,
            require_starttls=True,
            auth_required=True,
            authenticator=kept.log_in,
        )

    server = await asyncio.get_running_loop().create_server(served, "127.0.0.1", 0)
    yield kept, server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


def _by_starttls(port: int) -> _Setup:
    target = {
        "name": "mail",
        "kind": "mail",
        "host": "localhost",
        "port": port,
        "user": "hopback",
        "password_env": "MAIL_PASSWORD",
        "sender": "hopback@example.com",
        "to": ["ops@example.com"],
    }
    setup = _set_up(AlertBook(MemoryDatabase()), target, MAIL_PASSWORD=_SECRET)
    setup.queues.depth = 11
    return setup


async def test_mail_uses_starttls_and_verifies_certificate(
    secured_mailbox: tuple[_Mailbox, int], certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server with an unknown authority does not receive the password."""
    kept, port = secured_mailbox
    setup = _by_starttls(port)
    service = setup.service()
    await service.look()
    (refused,) = (await service.list_alerts()).targets
    assert "certificate verify failed" in refused.problem
    assert (refused.waiting, kept.logins, kept.mails) == (1, [], [])
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates / "ca.pem"))
    setup.clock.advance(60)
    await service.look()
    (taken,) = (await service.list_alerts()).targets
    assert (taken.waiting, taken.problem) == (0, "")
    assert kept.logins == [(b"hopback", _SECRET.encode())]
    (mail,) = kept.mails
    assert mail["Subject"] == "Hopback: orders fail (orders.dlq on mq.test/shop)"
    assert kept.secured == ["TLSv1.3"]


async def test_mail_server_without_starttls_gets_no_password_and_no_mail(
    mailbox: tuple[_Mailbox, int],
) -> None:
    """An attacker in between cannot disable STARTTLS."""
    kept, port = mailbox
    service = _by_starttls(port).service()
    await service.look()
    (refused,) = (await service.list_alerts()).targets
    assert "STARTTLS" in refused.problem
    assert (refused.waiting, kept.logins, kept.mails) == (1, [], [])


async def test_failing_target_is_retried_with_growing_delay(
    mailbox: tuple[_Mailbox, int],
) -> None:
    """Other targets do not wait. Its notices keep their order, and none is lost."""
    kept, port = mailbox
    mail = {
        "name": "mail",
        "kind": "mail",
        "host": "127.0.0.1",
        "port": port,
        "security": "none",
        "sender": "hopback@example.com",
        "to": ["ops@example.com"],
    }
    async with _hook() as hook:
        hook.status = 302
        setup = _set_up(
            AlertBook(MemoryDatabase()), {"name": "ops", "kind": "webhook", "url": hook.url}, mail
        )
        service = setup.service()
        for depth in (11, 0):
            setup.queues.depth = depth
            await service.look()
            setup.clock.advance(2)
        assert len(kept.mails) == 2
        assert len(hook.posted) == 1
        (waiting,) = [one for one in (await service.list_alerts()).targets if one.name == "ops"]
        assert (waiting.waiting, waiting.problem) == (2, "it answered 302 no such channel")
        assert "secret" not in waiting.problem
        hook.status = 204
        setup.clock.advance(5)
        await service.look()
    assert [len(one["firing"]) for one in hook.documents] == [1, 1, 0]
    assert hook.documents[0]["id"] == hook.documents[1]["id"]
    (done,) = [one for one in (await service.list_alerts()).targets if one.name == "ops"]
    assert (done.waiting, done.problem) == (0, "")


def _error(fingerprint: str, at: float, *, is_new: bool) -> ErrorGroup:
    moment = Moment(at)
    return ErrorGroup(
        fingerprint=fingerprint,
        error=fingerprint.title(),
        message="",
        reason="rejected",
        count=1,
        first=moment,
        last=moment,
        first_seen=moment,
        is_new=is_new,
    )


async def test_survey_result_fires_new_failure_and_age_alerts() -> None:
    async with _hook() as hook:
        setup = _set_up(
            AlertBook(MemoryDatabase()), {"name": "ops", "kind": "webhook", "url": hook.url}
        )
        setup.said["rules"] = [
            {"name": "new", "kind": "new-fingerprint", "within_seconds": 3600},
            {"name": "old", "kind": "oldest-age", "older_than_seconds": 3600},
        ]
        service = setup.service()
        setup.queues.depth = 2
        setup.queues.errors = (_error("keyerror", _NOW, is_new=False),)
        await service.look()
        assert hook.posted == []
        setup.clock.advance(120)
        setup.queues.errors += (_error("typeerror", setup.clock.now(), is_new=True),)
        await service.look()
        setup.clock.advance(3500)
        await service.look()
    texts = [one["text"] for said in hook.documents for one in said["firing"]]
    assert texts == [
        "new failure: Typeerror",
        "the oldest dead letter failed 60 min ago, more than 60 min",
    ]


async def test_unreachable_broker_resolves_no_alert() -> None:
    async with _hook() as hook:
        setup = _set_up(
            AlertBook(MemoryDatabase()), {"name": "ops", "kind": "webhook", "url": hook.url}
        )
        service = setup.service()
        setup.queues.depth = 11
        await service.look()
        setup.queues.broken = True
        setup.clock.advance(60)
        await service.look()
        assert [one.state for one in (await service.list_alerts()).items] == [AlertState.FIRING]
    assert len(hook.posted) == 1


async def test_two_services_on_one_store_send_each_notice_once(sql_database: SqlDatabase) -> None:
    """One of them leads. If it ends, the other leads and knows the sent notices."""
    async with _hook() as hook:
        target = {"name": "ops", "kind": "webhook", "url": hook.url}
        setup = _set_up(AlertBook(sql_database), target)
        first, second = setup.service(), setup.service()
        setup.queues.depth = 11
        looked = await asyncio.gather(*(each.look() for each in (first, second) * 3))
        assert True in looked
        assert False in looked
        assert len(hook.posted) == 1
        setup.clock.advance(3600)  # the former leader's lease has expired
        setup.queues.depth = 0
        again = await asyncio.gather(first.look(), second.look())
        assert sorted(again) == [False, True]
    assert [len(one["resolved"]) for one in hook.documents] == [0, 1]


async def test_service_that_dies_while_sending_loses_no_notice(sql_database: SqlDatabase) -> None:
    """The next service sends the notice with the same id."""
    async with _hook() as hook:
        target = {"name": "ops", "kind": "webhook", "url": hook.url}
        setup = _set_up(AlertBook(sql_database), target)
        asked = asyncio.Event()

        async def hang() -> None:
            asked.set()
            await asyncio.Event().wait()

        hook.before = hang
        setup.queues.depth = 11
        dying = asyncio.create_task(setup.service().look())
        await asked.wait()
        dying.cancel()
        await asyncio.gather(dying, return_exceptions=True)
        hook.before = None
        successor = setup.service()
        assert not await successor.look()
        setup.clock.advance(3600)
        assert await successor.look()
    assert [one["id"] for one in hook.documents] == [hook.documents[0]["id"]] * 2


async def test_service_without_lease_cannot_write(sql_database: SqlDatabase) -> None:
    """A service that was suspended beyond its lease fails at its first write."""
    book = AlertBook(sql_database)
    assert await book.lead("first", 100.0, 10.0)
    alert = Alert(
        id="a",
        rule="r",
        kind=AlertKind.DEPTH,
        queue="q",
        state=AlertState.FIRING,
        text="t",
        since=Moment(1),
    )
    notice = AlertNotice("n", "ops", Moment(101.0), firing=(alert,))
    await book.save("first", 101.0, AlertDecision((alert,), (), (notice,)))
    assert not await book.lead("second", 109.0, 10.0)
    assert await book.lead("second", 110.0, 10.0)
    with pytest.raises(LeaseLost):
        await book.save("first", 111.0, AlertDecision(forgotten=("a",)))
    with pytest.raises(LeaseLost):
        await book.end_notice("first", 1, 111.0)
    assert await book.alerts() == (alert,)
    assert [each.notice for each in await book.next_notices(111.0)] == [notice]
    await book.step_down("second")
    assert await book.lead("first", 111.0, 10.0)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"rules": [_RULE]}, "expected at least one target"),
        ({"targets": [{"name": "a", "kind": "webhook"}]}, "expected either url or url_env, got neither"),
        (
            {"targets": [{"name": "a", "kind": "slack", "url": "file:///etc/passwd"}]},
            "expected http://host/path or https://host/path, without credentials",
        ),
        ({"targets": [{"name": "a", "kind": "slack", "url_env": "NOT_SET"}]}, "it is not set"),
        (
            {"targets": [{"name": "a", "kind": "mail", "host": "h", "sender": "x", "to": ["b@c.d"]}]},
            "sender: expected an address",
        ),
        ({"quiet": ["at night"]}, "expected `22:00-06:00`"),
        ({"time_zone": "Mars/Olympus"}, "expected a name such as Europe/Berlin"),
    ],
)  # fmt: skip
def test_invalid_alert_settings_are_refused(said: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadSettings, match=problem):
        parse_settings({"alerts": said}, {}, "test")


async def test_test_notice_reports_response_of_target() -> None:
    async with _hook() as hook:
        setup = _set_up(
            AlertBook(MemoryDatabase()), {"name": "ops", "kind": "webhook", "url": hook.url}
        )
        assert (await setup.service().test("ops")).delivered
        hook.status = 403
        refused = await setup.service().test("ops")
    assert not refused.delivered
    assert refused.problem == "it answered 403 no such channel"
    assert hook.documents[0]["isTest"]
