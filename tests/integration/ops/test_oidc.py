"""Sign-in by an OIDC provider: accepted and refused responses, and the life of a session."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from html import unescape
from secrets import token_hex
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx
import pytest

from hopback.broker.embedded import EmbeddedBroker
from hopback.broker.embedded.management import EmbeddedManagement
from hopback.clock import SystemClock
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.contract.requests import AuditQuery
from hopback.ops.http import create_app
from hopback.ops.http.settings import BadSettings, parse_settings
from hopback.ops.jobs.journal import Journal
from hopback.ops.operations import Operations
from tests.harness.oidc import SECRET, OidcProvider, oidc_provider, oidc_settings
from tests.integration.database import sql_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from hopback.sql.database import SqlDatabase

__all__ = ["sql_database"]

pytestmark = [pytest.mark.clients, pytest.mark.xdist_group("oidc")]

# no server listens there, the client calls the application directly
_PAGE = "http://127.0.0.1:9090"
_SAME = {"Sec-Fetch-Site": "same-origin"}


class _LaterClock(SystemClock):
    """The time of this machine, moved on by hand."""

    def __init__(self) -> None:
        self.later = 0.0

    def now(self) -> float:
        return super().now() + self.later


@pytest.fixture(scope="module")
def provider() -> Iterator[OidcProvider]:
    """The provider."""
    with oidc_provider(_PAGE) as running:
        yield running


@asynccontextmanager
async def _service(
    provider: OidcProvider, clock: SystemClock, journal: Journal | None = None
) -> AsyncIterator[tuple[httpx.AsyncClient, Operations]]:
    """A browser in front of a service and of the provider."""
    settings = parse_settings(
        oidc_settings(provider.issuer, _PAGE), {"OIDC_SECRET": SECRET}, "test"
    )
    broker = EmbeddedBroker()
    environment = {"OIDC_SECRET": SECRET}
    async with Operations(
        ManagedBroker(broker, management=EmbeddedManagement(broker), clock=clock), journal=journal
    ) as operations:
        app = create_app(operations, settings=settings, environment=environment, first_read_s=None)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(
            mounts={_PAGE: transport}, base_url=_PAGE, follow_redirects=False, timeout=20
        ) as browser:
            yield browser, operations


async def _follow(browser: httpx.AsyncClient, answer: httpx.Response) -> httpx.Response:
    """Follow redirects up to the provider's form or our page."""
    while answer.is_redirect:
        where = str(answer.next_request.url) if answer.next_request else ""
        if where.startswith(_PAGE):
            return answer
        answer = await browser.get(where)
    return answer


async def _give_form(browser: httpx.AsyncClient, page: httpx.Response, **typed: str) -> Any:
    """Fill in the form of the provider's page."""
    action = unescape(re.findall(r'action="([^"]+)"', page.text)[0])
    hidden = re.findall(r'name="(\w+)" value="([^"]*)"', page.text)
    where = str(page.url.join(action))
    return await _follow(browser, await browser.post(where, data={**dict(hidden), **typed}))


async def _come_back(browser: httpx.AsyncClient, name: str, onward: str = "/you") -> str:
    """Sign in at the provider and return its redirect address."""
    begun = await browser.get("/login/oidc", params={"next": onward})
    assert begun.status_code == 303, begun.text
    page = await _follow(browser, await browser.get(begun.headers["location"]))
    for typed in ({"login": name, "password": "x"}, {}, {}):
        if page.is_redirect:
            break
        page = await _give_form(browser, page, **typed)
    return str(page.headers["location"])


async def _sign_in(browser: httpx.AsyncClient, name: str, onward: str = "/you") -> httpx.Response:
    return await browser.get(await _come_back(browser, name, onward))


async def test_sign_in_grants_roles_of_claim(provider: OidcProvider) -> None:
    """The browser is redirected to the requested page. The audit records the sign-in."""
    async with _service(provider, SystemClock()) as (browser, operations):
        login = await browser.get("/login")
        assert "/login/oidc" in login.text
        back = await _sign_in(browser, "operator", "/you?a=1")
        assert (back.status_code, back.headers["location"]) == (303, "/you?a=1")
        cookie = next(
            value
            for value in back.headers.get_list("set-cookie")
            if value.startswith("hopback_session=")
        )
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        me = (await browser.get("/admin/me")).json()
        assert (me["kind"], me["name"], me["role"]) == ("oidc", "operator", "operator")
        (entry,) = await operations.audit(AuditQuery(action="access.sign-in"))
    assert (entry.by, entry.details["by"]) == ("operator", "oidc")


async def test_sign_in_without_role_gets_403_page(provider: OidcProvider) -> None:
    async with _service(provider, SystemClock()) as (browser, _):
        await _sign_in(browser, "intern")
        assert (await browser.get("/admin/me")).json()["role"] is None
        assert (await browser.get("/")).status_code == 403


def _change_address(url: str, **more: str | None) -> str:
    parts = urlsplit(url)
    said = {**dict(parse_qsl(parts.query)), **more}
    query = urlencode({name: value for name, value in said.items() if value is not None})
    return parts._replace(query=query).geturl()


async def test_forged_oidc_response_is_refused(provider: OidcProvider) -> None:
    """Wrong state, no cookie, other issuer, no code, code of another sign-in, repeated code."""
    async with _service(provider, SystemClock()) as (browser, operations):
        back = await _come_back(browser, "admin")
        kept = browser.cookies.get("hopback_oidc", path="/", domain="127.0.0.1") or ""
        wrong = {
            "state": _change_address(back, state="another"),
            "issuer": _change_address(back, iss="https://evil.example"),
            "nothing": _change_address(back, code=None),
            "code": _change_address(back, code="another"),
        }
        found = {}
        for what, url in wrong.items():
            browser.cookies.set("hopback_oidc", kept, domain="127.0.0.1", path="/")
            answer = await browser.get(url)
            found[what] = answer.status_code
            assert "hopback_session" not in browser.cookies
        browser.cookies.clear()
        found["no cookie"] = (await browser.get(back)).status_code
        denied = await operations.audit(AuditQuery(action="access.denied"))
    assert found == {"state": 400, "issuer": 401, "nothing": 401, "code": 401, "no cookie": 400}
    assert denied[0].result == "refused"


async def test_authorization_code_works_once_and_only_with_its_verifier(
    provider: OidcProvider,
) -> None:
    """PKCE protects a stolen code."""
    async with _service(provider, SystemClock()) as (browser, _):
        back = await _come_back(browser, "admin")
        stolen = dict(parse_qsl(urlsplit(back).query))["code"]
        browser.cookies.clear()
        own = await _come_back(browser, "viewer")
        assert (await browser.get(_change_address(own, code=stolen))).status_code == 401
        assert "hopback_session" not in browser.cookies


async def test_refreshed_token_updates_roles_and_ends_locked_session(
    provider: OidcProvider, sql_database: SqlDatabase
) -> None:
    """Any service with the store refreshes it. The stored tokens are encrypted."""
    clock, ann = _LaterClock(), f"ann-{token_hex(4)}"
    async with _service(provider, clock, Journal(sql_database, clock)) as (browser, _):
        provider.give(ann, "viewer")
        await _sign_in(browser, ann)
        assert (await browser.get("/admin/me")).json()["role"] == "viewer"
        provider.give(ann, "admin")
        clock.later += 30
        assert (await browser.get("/admin/me")).json()["role"] == "viewer"
        clock.later += 60
        assert (await browser.get("/admin/me")).json()["role"] == "admin"
        provider.lock(ann)
        clock.later += 61
        assert (await browser.get("/admin/me")).status_code == 401
        query = "SELECT * FROM hopback_oidc_sessions"
        rows = await sql_database.read(lambda execute: execute(query))
    assert ann not in str(rows)


async def test_sign_out_ends_session_and_links_to_provider(
    provider: OidcProvider,
) -> None:
    """A form may not redirect to another host, so a page links there.

    A copied cookie is refused.
    """
    async with _service(provider, SystemClock()) as (browser, _):
        await _sign_in(browser, "viewer")
        copied = browser.cookies["hopback_session"]
        left = await browser.post("/logout", headers=_SAME)
        where = unescape(re.findall(r'content="0;url=([^"]+)"', left.text)[0])
        assert where.startswith(f"{provider.issuer}/session/end?")
        assert "id_token_hint=" in where
        browser.cookies.clear()
        browser.cookies.set("hopback_session", copied, domain="127.0.0.1", path="/")
        assert (await browser.get("/admin/me")).status_code == 401


async def test_unreachable_provider_keeps_sessions_for_a_while() -> None:
    """New sign-ins fail with a reason."""
    clock = _LaterClock()
    with oidc_provider(_PAGE) as provider:
        async with _service(provider, clock) as (browser, _):
            await _sign_in(browser, "viewer")
            provider.process.kill()
            provider.process.wait()
            clock.later += 100
            assert (await browser.get("/admin/me")).status_code == 200
            clock.later += 1000
            # The first request asks the provider, the next ones find that claim taken.
            for later in (0, 1, 5, 3600, 1):
                clock.later += later
                assert (await browser.get("/admin/me")).status_code == 401, clock.later
            begun = await browser.get("/login/oidc")
    assert begun.status_code == 502
    assert "cannot be used now" in begun.text


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"issuer": "http://id.example.com"}, "auth.oidc.issuer: expected an https:// address"),
        ({"page": "hopback.example.com"}, "auth.oidc.page: expected an https:// address"),
        ({"scopes": ["profile"]}, "expected openid among them"),
        ({"algorithms": ["none"]}, "auth.oidc.algorithms: expected some of RS256"),
        ({"client_secret_env": "NOT_SET"}, "expected a secret in NOT_SET, it is not set"),
    ],
)
def test_unsafe_oidc_settings_are_refused(more: dict[str, Any], problem: str) -> None:
    said = oidc_settings("https://id.example.com", "https://hopback.example.com", **more)
    with pytest.raises(BadSettings, match=problem):
        parse_settings(said, {"OIDC_SECRET": SECRET}, "test")
