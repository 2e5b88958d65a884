"""Signing in by the link of the dev mode, and signing out for good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hopback.broker.embedded import EmbeddedBroker
from hopback.broker.embedded.management import EmbeddedManagement
from hopback.clock import ManualClock
from hopback.errors import ConnectionFailed
from hopback.ops.contract.requests import AuditQuery
from hopback.ops.http.settings import BadSettings, parse_settings
from hopback.ops.jobs.journal import open_journal
from tests.unit.ops.admin_service import DLQ, NOW, SECRET, admin, dead_letter, settings
from tests.unit.ops.http.test_access import _bearer, _token

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from hopback.ops.http.settings import AdminSettings

_SAME = {"Sec-Fetch-Site": "same-origin"}
_COOKIE = "hopback_session"


async def _key(client: httpx.AsyncClient) -> str:
    body = {"name": "ops", "role": "admin"}
    made = await client.post("/admin/keys", json=body, headers=_bearer(_token()))
    return str(made.json()["secret"])


async def test_login_link_works_once() -> None:
    """The second use is refused as a link, in the form and as a bearer token."""
    async with admin(link="the-link", settings=settings()) as service:
        client = service.client
        assert (await client.get("/login?token=the-link")).status_code == 303
        assert (await client.get("/you")).status_code == 200
        client.cookies.clear()
        assert (await client.get("/login?token=the-link")).status_code == 401
        form = await client.post("/login", data={"secret": "the-link"}, headers=_SAME)
        assert form.status_code == 401
        assert (await client.get("/admin/me", headers=_bearer("the-link"))).status_code == 401


async def test_login_link_is_not_a_bearer_token() -> None:
    """The attempt does not use it up."""
    async with admin(link="the-link", settings=settings()) as service:
        bearer = await service.client.get("/admin/me", headers=_bearer("the-link"))
        opened = await service.client.get("/login?token=the-link")
    assert (bearer.status_code, opened.status_code) == (401, 303)


async def test_api_key_in_login_link_is_refused() -> None:
    """A key or a token works in the form and as a bearer token."""
    async with admin(link="the-link", settings=settings()) as service:
        for shown in (await _key(service.client), _token()):
            answer = await service.client.get(f"/login?token={shown}")
            assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
            assert shown not in answer.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate"}, 403),
        ({"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Sec-Purpose": "prefetch"}, 403),
        ({"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, 303),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "navigate"}, 303),
        ({}, 303),
    ],
)
async def test_cross_site_login_link_is_refused(headers: dict[str, str], status: int) -> None:
    """The refused attempt does not use it up."""
    async with admin(link="the-link", settings=settings()) as service:
        answer = await service.client.get("/login?token=the-link", headers=headers)
        assert answer.status_code == status
        if status == 403:
            assert (await service.client.get("/login?token=the-link")).status_code == 303


async def test_sign_out_ends_only_its_session() -> None:
    """The old cookie is refused. Another session of the same key continues."""
    async with admin(settings=settings()) as service:
        client, form = service.client, {"secret": await _key(service.client)}
        await client.post("/login", data=form, headers=_SAME)
        other = client.cookies[_COOKIE]
        await client.post("/login", data=form, headers=_SAME)
        old = client.cookies[_COOKIE]
        assert (await client.post("/logout", headers=_SAME)).status_code == 303
        client.cookies.clear()
        client.cookies.set(_COOKIE, old)
        assert (await client.get("/jobs")).status_code == 303
        assert (await client.get("/admin/me")).status_code == 401
        client.cookies.clear()
        client.cookies.set(_COOKIE, other)
        assert (await client.get("/jobs")).status_code == 200
        entries = await service.operations.audit(AuditQuery(action="access.sign-out"))
        assert [(entry.by, entry.details["address"]) for entry in entries] == [("ops", "127.0.0.1")]


def _shared() -> tuple[AdminSettings, dict[str, str]]:
    environment = {"JWT_SECRET": SECRET, "SESSIONS": "another secret of more than 32 bytes!"}
    jwt = {"issuer": "https://id.test", "audience": "hopback", "secret_env": "JWT_SECRET"}
    auth = {"jwt": jwt, "session_secret_env": "SESSIONS"}
    return parse_settings({"auth": auth}, environment, "test"), environment


async def test_sign_out_ends_session_in_other_processes(tmp_path: Path) -> None:
    """Two services share one database and one secret."""
    url, clock = f"sqlite:///{tmp_path / 'sessions.db'}", ManualClock(NOW)
    known, environment = _shared()
    options: dict[str, Any] = {"settings": known, "environment": environment}
    async with (
        open_journal(url, clock) as first,
        open_journal(url, clock) as second,
        admin(**options, journal=first) as one,
        admin(**options, journal=second) as two,
    ):
        await one.client.post("/login", data={"secret": _token()}, headers=_SAME)
        cookie = one.client.cookies[_COOKIE]
        two.client.cookies.set(_COOKIE, cookie)
        assert (await two.client.get("/jobs")).status_code == 200
        await one.client.post("/logout", headers=_SAME)
        two.clock.advance(5)
        assert (await two.client.get("/jobs")).status_code == 303
        # Expired sessions are removed, so the list stays small.
        one.clock.advance(9 * 3600)
        await one.client.post("/login", data={"secret": _token()}, headers=_SAME)
        await one.client.post("/logout", headers=_SAME)
        rows = await first.database.read(
            lambda execute: execute("SELECT id FROM hopback_ended_sessions")
        )
        assert len(rows) == 1


async def test_token_without_role_gets_403_on_every_page() -> None:
    """The API and the streams return 403 as well, except for `me`."""
    nothing = _bearer(_token(roles=["guest"]))
    async with admin(settings=settings()) as service:
        statuses = {
            path: (await service.client.get(path, headers=nothing)).status_code
            for path in ("/", "/jobs", "/live", "/topology", "/checks", "/admin/dlq/jobs")
        }
        me = await service.client.get("/admin/me", headers=nothing)
        you = await service.client.get("/you", headers=nothing)
    assert set(statuses.values()) == {403}, statuses
    assert (me.status_code, you.status_code) == (200, 200)


@pytest.mark.parametrize("name", ["a\0b", "a\x1b[31mb", "a\nb", "a\u202eb", "\t", "x" * 101])
async def test_unprintable_key_name_is_refused(name: str) -> None:
    boss = _bearer(_token())
    async with admin(settings=settings()) as service:
        made = await service.client.post(
            "/admin/keys", json={"name": name, "role": "viewer"}, headers=boss
        )
        form = await service.client.post(
            "/keys", data={"name": name, "role": "viewer"}, headers=boss
        )
        keys = await service.client.get("/admin/keys", headers=boss)
    assert {made.status_code, form.status_code} <= {400, 422}, (made.text, form.status_code)
    assert keys.json()["total"] == 0
    key = {"name": name, "hash": "sha256:" + "0" * 64, "role": "viewer"}
    if len(name) < 100:
        with pytest.raises(BadSettings, match="printable"):
            parse_settings({"auth": {"keys": [key]}}, {}, "admin.toml")


async def test_control_characters_of_display_name_are_escaped() -> None:
    """They reach neither the audit nor a terminal."""
    token = _token(preferred_username="eve\x1b[2J\u202e\r\nadmin" + "x" * 500)
    async with admin(settings=settings()) as service:
        me = (await service.client.get("/admin/me", headers=_bearer(token))).json()
    assert me["name"].startswith("eve\\x1b[2J\\u202e\\r\\nadmin")
    assert (me["name"].isprintable(), len(me["name"]) <= 200) == (True, True)


@pytest.mark.parametrize("subject", ["eve\x1b[2J", "eve\u202e", "e" * 256])
async def test_token_whose_subject_cannot_be_printed_is_refused(subject: str) -> None:
    async with admin(settings=settings()) as service:
        answer = await service.client.get("/admin/me", headers=_bearer(_token(sub=subject)))
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")


async def test_readiness_hides_broker_address_from_unauthenticated_callers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def away(_broker: EmbeddedBroker, _name: str = "") -> None:
        raise ConnectionFailed("mq.internal:5672 refused the connection")

    async with admin(settings=settings()) as service:
        good = await service.client.get("/readyz")
        monkeypatch.setattr(EmbeddedBroker, "connect", away)
        monkeypatch.setattr(EmbeddedManagement, "queues", away)
        service.clock.advance(60)
        bad = await service.client.get("/readyz")
        known = await service.client.get("/readyz", headers=_bearer(_token()))
    assert (good.status_code, good.json()["ready"], good.json()["broker"]) == (200, True, "")
    assert (bad.status_code, bad.json()["ready"], bad.json()["broker"]) == (503, False, "")
    assert "mq.internal" not in bad.text
    assert (known.json()["broker"] != "", "mq.internal" in known.text) == (True, True)


async def test_viewer_of_some_queues_sees_only_their_depths_on_map() -> None:
    """Names and routes of the whole broker are visible."""
    grants = [{"claim": "payments", "role": "viewer", "queues": ["payments*"]}]
    some = _bearer(_token(roles=["payments"]))
    async with admin(dead_letter(1), settings=settings(grants=grants)) as service:
        graph = (await service.client.get("/topology/graph.json", headers=some)).text
    async with admin(dead_letter(1), settings=settings()) as service:
        whole = (await service.client.get("/topology/graph.json", headers=_bearer(_token()))).text
    assert DLQ in graph
    assert graph != whole
    assert '"messages":1' in whole.replace(" ", "")
    assert '"messages":1' not in graph.replace(" ", "")
