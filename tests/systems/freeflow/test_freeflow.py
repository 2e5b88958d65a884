"""FreeFlow: seven domains, three waits, the dead-letter queue and the audit."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from hopback.message import Message, Properties
from hopback.systems.freeflow.api import create_api
from hopback.systems.freeflow.consumers import create_consumers
from hopback.systems.freeflow.domains import HANDLERS, DomainEvent, MissingYet
from hopback.systems.freeflow.settings import FreeFlowSettings
from hopback.systems.settings import SettingsError
from hopback.systems.web import opened
from hopback.testing import AppTest, in_virtual_time
from hopback.testing.kit import Producer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

_FORMS = pytest.mark.parametrize("hardened", [False, True], ids=["faithful", "hardened"])
_DOCUMENTS, _DLQ = "freeflow.documents.queue", "freeflow.events.dlq"


@dataclass(frozen=True, slots=True)
class _RunningSystem:
    test: AppTest
    client: httpx.AsyncClient

    async def publish(self, routing_key: str, **data: Any) -> None:
        answer = await self.client.post(f"/events/{routing_key}", json=data)
        assert answer.status_code == 202, answer.text

    async def view(self, name: str) -> list[dict[str, Any]]:
        answer = await self.client.get(f"/{name}")
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()
        return found

    async def arrivals(self) -> dict[str, int]:
        """Return the number of arrivals of each event at the audit, by routing key."""
        return {row["routing_key"]: row["arrivals"] for row in await self.view("audit")}


@asynccontextmanager
async def _run_system(
    folder: Path, *, hardened: bool = False, audit: str = "audit.*"
) -> AsyncIterator[_RunningSystem]:
    settings = FreeFlowSettings(
        f"sqlite:///{folder}/freeflow.db", hardened, audit_keys=tuple(audit.split(","))
    )
    async with (
        AppTest(create_consumers(settings)) as test,
        opened(create_api(settings, test.broker)) as web,
        httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://f") as client,
    ):
        yield _RunningSystem(test, client)


@_FORMS
@in_virtual_time
async def test_events_of_every_domain_are_handled_and_audited(
    tmp_path: Path, hardened: bool
) -> None:
    """The handlers' own events are published and handled as well. The audit is bound to `#`."""
    async with _run_system(tmp_path, hardened=hardened, audit="#") as system:
        await system.publish("user.registered", id="u1", name="Una")
        await system.publish("document.created", id="d1", title="Minutes", text="all agreed")
        await system.publish("workflow.started", id="w1", owner="una@example.org", steps=1)
        await system.publish("audit.checked", by="Una")
        await system.test.drain()
        await system.publish("document.archived", id="d1")
        await system.publish("workflow.advanced", id="w1")
        await system.publish("auth.succeeded", user="u1")
        await system.test.drain()
        for _ in range(3):
            await system.publish("auth.failed", user="u1")
        tally = await system.test.drain()
        assert (tally.retried, tally.parked) == (0, 0)

        assert await system.view("users") == [
            {"id": "u1", "name": "Una", "logins": 1, "failures": 3}
        ]
        assert await system.view("documents") == [
            {"id": "d1", "title": "Minutes", "words": 2, "archived": True}
        ]
        (workflow,) = await system.view("workflows")
        assert workflow["done"] == 1
        (note,) = await system.view("notifications")
        assert (note["recipient"], note["text"]) == ("una@example.org", "workflow w1 is done")
        (alarm,) = await system.view("alarms")
        assert alarm["text"] == "3 failed logins of Una"
        assert {row["routing_key"] for row in await system.view("audit")} == {
            "user.registered",
            "document.created",
            "document.archived",
            "workflow.started",
            "workflow.advanced",
            "auth.succeeded",
            "auth.failed",
            "alarm.raised",
            "notification.requested",
            "audit.checked",
        }


@in_virtual_time
async def test_alarm_is_raised_again_after_it_was_cleared(tmp_path: Path) -> None:
    """Three more failed logins of the same user."""
    async with _run_system(tmp_path) as system:
        await system.publish("user.registered", id="u1", name="Una")
        for is_cleared in (False, True, False):
            if is_cleared:
                await system.publish("alarm.cleared", id="login-u1")
                await system.publish("auth.succeeded", user="u1")
            else:
                for _ in range(3):
                    await system.publish("auth.failed", user="u1")
            await system.test.drain()
            (alarm,) = await system.view("alarms")
            assert alarm["cleared"] is is_cleared


@in_virtual_time
async def test_document_without_text_has_no_words(tmp_path: Path) -> None:
    async with _run_system(tmp_path) as system:
        await system.publish("document.created", id="d1", title="Minutes")
        await system.publish("document.created", id="d2", title="Minutes", text=None)
        await system.test.drain()
        assert [one["words"] for one in await system.view("documents")] == [0, 0]


@_FORMS
@in_virtual_time
async def test_early_event_waits_30_s_5_min_30_min_then_goes_to_the_dlq(
    tmp_path: Path, hardened: bool
) -> None:
    """Four runs with the original routing key. The dead letter names the queue.

    An audit of all keys receives every retry in the documented form and none in the hardened form.
    """
    async with _run_system(tmp_path, hardened=hardened, audit="#") as system:
        await system.publish("document.archived", id="never")
        tally = await system.test.drain()
        assert (tally.retried, tally.parked) == (3, 1)
        tiers = [one.fields["tier"] for one in system.test.find_events("delivery.retried")]
        assert tiers == ["30s", "5m", "30m"]
        system.test.assert_parked(_DOCUMENTS, times=1, reason="not created yet")
        (dead_letter,) = system.test.broker.snapshot().queue(_DLQ).messages
        headers = dead_letter.properties.headers
        assert headers["x-retry-count"] == 3
        assert headers["x-original-routing-key"] == "document.archived"
        assert await system.arrivals() == {"document.archived": 1 if hardened else 4}


@_FORMS
@in_virtual_time
async def test_early_event_is_handled_after_its_row_exists(tmp_path: Path, hardened: bool) -> None:
    """A login precedes the registration. `auth` retries return to the users' queue."""
    async with _run_system(tmp_path, hardened=hardened) as system:
        await system.publish("auth.succeeded", user="u1")
        await system.test.advance(1)
        await system.publish("user.registered", id="u1", name="Una")
        tally = await system.test.drain()
        assert (tally.retried, tally.parked) == (1, 0)
        assert (await system.view("users"))[0]["logins"] == 1


@in_virtual_time
async def test_retry_after_300_s_uses_the_tier_of_5_minutes(tmp_path: Path) -> None:
    async with _run_system(tmp_path) as system:
        await system.publish("notification.requested", to="busy@example.org", text="lunch")
        await system.test.advance(10)
        assert system.test.broker.snapshot().queue("freeflow.notification.retry.5m").messages
        system.test.assert_retried("freeflow.notifications.queue", times=1, tier="5m")


@pytest.mark.parametrize(
    ("routing_key", "data"),
    [
        ("document.created", {"id": "d1"}),
        ("notification.requested", {"to": "nobody", "text": "x"}),
        ("workflow.started", {"id": "w1", "owner": "a@b", "steps": 0}),
        ("workflow.started", {"id": "w1", "owner": "a@b", "steps": True}),
        ("user.registered", {"name": 7}),
    ],
)
@in_virtual_time
async def test_non_recoverable_event_is_parked_at_once(
    tmp_path: Path, routing_key: str, data: dict[str, Any]
) -> None:
    """No tier is used, and no row changes. By default the audit only has its own domain."""
    async with _run_system(tmp_path) as system:
        await system.publish(routing_key, **data)
        tally = await system.test.drain()
        assert (tally.done, tally.retried, tally.parked) == (0, 0, 1)
        (dead,) = system.test.broker.snapshot().queue("freeflow.events.dlq").messages
        assert dead.properties.headers["x-first-death-reason"] == "rejected"
        assert await system.arrivals() == {}


@pytest.mark.parametrize(
    ("routing_key", "data"),
    [
        ("user.deleted", {"id": "ghost", "name": "Ghost"}),
        ("auth.logout", {"user": "u1"}),
        ("alarm.snoozed", {"id": "a1", "text": "x"}),
        ("document.read", {"id": "d1", "title": "x"}),
        ("workflow.paused", {"id": "w1", "owner": "a@b.c", "steps": 1}),
        ("notification.read", {"to": "a@b.c", "text": "x"}),
    ],
)
@in_virtual_time
async def test_unknown_event_of_a_domain_is_parked(
    tmp_path: Path, routing_key: str, data: dict[str, Any]
) -> None:
    """It is not handled as another event and not acked."""
    async with _run_system(tmp_path) as system:
        await system.publish("user.registered", id="u1", name="Una")
        await system.test.drain()
        for _ in range(3):
            await system.publish(routing_key, **data)
        tally = await system.test.drain()
        assert (tally.done, tally.retried, tally.parked) == (0, 0, 3)
        assert len(await system.view("users")) == 1
        assert await system.view("alarms") == await system.view("notifications") == []


@in_virtual_time
async def test_retry_without_original_key_is_parked_with_the_reason(tmp_path: Path) -> None:
    """The headers are only recommended, so another program may omit them."""
    async with _run_system(tmp_path) as system:
        await system.test.publish(
            "document.30s", {"id": "f1", "title": "F"}, exchange="freeflow.events.retry"
        )
        tally = await system.test.drain()
        assert (tally.done, tally.parked) == (0, 1)
        system.test.assert_parked(_DOCUMENTS, times=1, reason="without x-original-routing-key")
        assert await system.view("documents") == []


@in_virtual_time
async def test_event_of_another_domain_is_parked_with_the_known_events(tmp_path: Path) -> None:
    """`x-original-routing-key` of another program may contain any text."""
    async with _run_system(tmp_path) as system:
        await system.test.publish(
            "document.created",
            {"id": "f1"},
            exchange="freeflow.events",
            headers={"x-original-routing-key": "invoice.sent"},
        )
        await system.test.drain()
        system.test.assert_parked(
            _DOCUMENTS, times=1, reason="invoice.sent: expected one of user.registered"
        )


@in_virtual_time
async def test_event_sent_twice_with_idempotency_key_has_one_effect(tmp_path: Path) -> None:
    """`Idempotency-Key` becomes the message ID, which the inbox of a queue recognises."""
    async with _run_system(tmp_path) as system:
        await system.publish("user.registered", id="u1", name="Una")
        await system.test.drain()
        for _ in range(2):
            answer = await system.client.post(
                "/events/auth.succeeded",
                json={"user": "u1"},
                headers={"idempotency-key": "login-1"},
            )
            assert answer.json() == {"id": "login-1"}
        await system.test.drain()
        assert (await system.view("users"))[0]["logins"] == 1


def test_domains_tiers_and_audit_are_read_from_the_environment() -> None:
    """Domains without handlers and invalid tiers are refused."""
    assert FreeFlowSettings.read({}) == FreeFlowSettings()
    given = {
        "FREEFLOW_DOMAINS": "user,document",
        "FREEFLOW_TIERS": "1s,1m",
        "FREEFLOW_AUDIT_KEYS": "#",
    }
    settings = FreeFlowSettings.read(given)
    assert [queue.name for queue in settings.topology().queues] == [
        "freeflow.users.queue",
        "freeflow.user.retry.1s",
        "freeflow.user.retry.1m",
        "freeflow.events.dlq",
        "freeflow.documents.queue",
        "freeflow.document.retry.1s",
        "freeflow.document.retry.1m",
    ]
    assert list(create_consumers(settings).handlers) == [
        "freeflow.users.queue",
        "freeflow.documents.queue",
    ]
    with pytest.raises(SettingsError, match=r"FREEFLOW_TIERS: expected a dur.*'soon'"):
        FreeFlowSettings.read({"FREEFLOW_TIERS": "soon"})
    with pytest.raises(SettingsError, match="FREEFLOW_TIERS: expected each tier once"):
        FreeFlowSettings.read({"FREEFLOW_TIERS": "30s,30s"})
    with pytest.raises(SettingsError, match="FREEFLOW_TIERS: expected domains of one word"):
        FreeFlowSettings.read({"FREEFLOW_DOMAINS": "us er"})
    with pytest.raises(SettingsError, match="FREEFLOW_AUDIT_KEYS"):
        FreeFlowSettings.read({"FREEFLOW_AUDIT_KEYS": "user.*"})
    with pytest.raises(SettingsError, match="a handler"):
        create_consumers(FreeFlowSettings.read({"FREEFLOW_DOMAINS": "user,billing"}))


@in_virtual_time
async def test_new_domain_of_readme_is_published_and_handled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its module has the web part as well: the one of FreeFlow has no handler for the domain."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOPBACK_BROKER", "embedded")
    readme = files("hopback.systems.freeflow").joinpath("README.md").read_text(encoding="utf-8")
    module: dict[str, Any] = {}
    exec(readme.partition("```python\n")[2].partition("```")[0], module)
    transport = httpx.ASGITransport(module["web"])
    async with (
        opened(module["web"]),
        httpx.AsyncClient(transport=transport, base_url="http://f") as client,
        AppTest(module["domains"]) as test,
    ):
        answer = await client.post("/events/billing.charged", json={"user": "u1"})
        assert answer.status_code == 202, answer.text
        await test.publish("billing.charged", {"user": "u1"}, exchange="freeflow.events")
        assert (await test.drain()).done == 1
        assert capsys.readouterr().out == "charged u1\n"


@in_virtual_time
async def test_redelivered_event_has_one_effect(tmp_path: Path) -> None:
    """The inbox of a queue recognises its message ID."""
    async with _run_system(tmp_path) as system:
        await system.publish("user.registered", id="u1", name="Una")
        await system.test.drain()
        for _ in range(2):
            await system.test.publish(
                "auth.succeeded", {"user": "u1"}, exchange="freeflow.events", message_id="login-1"
            )
        await system.test.drain()
        assert (await system.view("users"))[0]["logins"] == 1


@in_virtual_time
async def test_equal_events_without_message_id_are_handled_each(tmp_path: Path) -> None:
    async with _run_system(tmp_path) as system:
        await system.publish("user.registered", id="u1", name="Una")
        await system.test.drain()
        for key in ("auth.succeeded", "auth.succeeded", "auth.failed"):
            body, properties = b'{"user": "u1"}', Properties(delivery_mode=2)
            Producer(system.test.broker.node).send(
                Message("freeflow.events", key, body, properties)
            )
            await system.test.drain()
        (user,) = await system.view("users")
        assert (user["logins"], user["failures"]) == (2, 1)
        assert not system.test.find_events("inbox.duplicate")


@pytest.mark.parametrize("path", ["/events/cooking.done", "/events/user", "/events/user.a.b"])
@in_virtual_time
async def test_event_of_unknown_domain_returns_404(tmp_path: Path, path: str) -> None:
    """The error lists the domains."""
    async with _run_system(tmp_path) as system:
        answer = await system.client.post(path, json={})
        assert answer.status_code == 404
        assert "workflow" in answer.json()["error"]
        assert (await system.client.get("/nothing")).status_code == 404


@in_virtual_time
async def test_two_equal_steps_without_message_id_both_count_and_notify_once(
    tmp_path: Path,
) -> None:
    async with _run_system(tmp_path) as system:
        await system.publish("workflow.started", id="w1", owner="una@example.org", steps=2)
        await system.test.drain()
        for _ in range(2):
            step = Message(
                "freeflow.events", "workflow.advanced", b'{"id": "w1"}', Properties(delivery_mode=2)
            )
            Producer(system.test.broker.node).send(step)
        await system.test.drain()
        (workflow,) = await system.view("workflows")
        assert workflow["done"] == 2
        await system.test.advance(1)
        await system.test.drain()
        assert len(await system.view("notifications")) == 1


@in_virtual_time
async def test_further_event_of_failed_transaction_is_not_published(tmp_path: Path) -> None:
    """The handler sends an event and fails twice. Its third run commits one event."""
    runs: list[int] = []

    async def fail_twice(event: DomainEvent) -> None:
        await event.send("notification.requested", {"to": "una@example.org", "text": "done"})
        runs.append(1)
        if len(runs) < 3:
            raise MissingYet("not yet")

    settings = FreeFlowSettings(f"sqlite:///{tmp_path}/freeflow.db")
    handlers = {**HANDLERS, "document.created": fail_twice}
    async with AppTest(create_consumers(settings, handlers)) as test:
        await test.publish("document.created", {}, exchange="freeflow.events")
        await test.drain()
        await test.advance(1)
        await test.drain()
        done = [one for one in test.find_events("delivery.done") if "notif" in one.fields["queue"]]
        assert (len(runs), len(done)) == (3, 1)
