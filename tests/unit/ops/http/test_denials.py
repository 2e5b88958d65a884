"""Abuse by unauthenticated callers: too many requests, audit floods and oversized numbers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from hopback.broker.embedded import EmbeddedBroker
from hopback.ops.contract.requests import AuditQuery
from hopback.ops.http.settings import BadSettings, parse_settings
from hopback.ops.http.turns import TurnKeeper
from tests.unit.ops.admin_service import DLQ, SECRET, admin, dead_letter, settings
from tests.unit.ops.http.test_access import _bearer, _token

if TYPE_CHECKING:
    from hopback.ops.http.settings import AdminSettings

_SAME = {"Sec-Fetch-Site": "same-origin"}
_DENIED = AuditQuery(action="access.denied", limit=500)


def _limited(**limits: int) -> AdminSettings:
    jwt = {"issuer": "https://id.test", "audience": "hopback", "secret_env": "JWT_SECRET"}
    document = {"auth": {"jwt": jwt}, "limits": limits}
    return parse_settings(document, {"JWT_SECRET": SECRET}, "test")


async def test_wrong_credentials_are_429_after_10_attempts() -> None:
    """A valid token from the same address is still accepted."""
    async with admin(settings=_limited(failures_per_minute=10)) as service:
        wrong = [
            await service.client.get("/admin/me", headers=_bearer(f"hbk_{n}")) for n in range(30)
        ]
        good = await service.client.get("/admin/me", headers=_bearer(_token()))
        service.clock.advance(6)
        later = await service.client.get("/admin/me", headers=_bearer("hbk_again"))
    statuses = [answer.status_code for answer in wrong]
    assert statuses == [401] * 10 + [429] * 20
    assert int(wrong[-1].headers["retry-after"]) >= 1
    assert (good.status_code, later.status_code) == (200, 401)


async def test_unauthenticated_requests_are_limited_before_verification() -> None:
    async with admin(settings=_limited(requests_per_second=1, burst=3)) as service:
        answers = [await service.client.get("/admin/me", headers=_bearer("no")) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [401, 401, 401, 429]


@pytest.mark.parametrize("way", ["bearer", "nothing", "sign-in"])
async def test_repeated_refusals_of_address_are_one_audit_row_with_count(way: str) -> None:
    """The second row with the count is written when the minute is over."""

    async def ask(client: Any) -> int:
        if way == "sign-in":
            form = {"secret": "hbk_wrong"}
            return int((await client.post("/login", data=form, headers=_SAME)).status_code)
        headers = _bearer("hbk_wrong") if way == "bearer" else {}
        return int((await client.post("/admin/dlq/jobs", json={}, headers=headers)).status_code)

    async with admin(
        settings=_limited(failures_per_minute=500, sign_ins_per_minute=500)
    ) as service:
        statuses = [await ask(service.client) for _ in range(600)]
        during = await service.operations.audit(_DENIED)
        service.clock.advance(61)
        await ask(service.client)
        after = await service.operations.audit(_DENIED)
    refused = statuses.count(401)
    assert refused >= 500
    assert len(during) == 1
    assert during[0].details["address"] == "127.0.0.1"
    assert [entry.details.get("times", 1) for entry in reversed(after)] == [1, refused - 1, 1]


async def test_requests_refused_with_429_are_not_audited() -> None:
    async with admin(settings=_limited(sign_ins_per_minute=1)) as service:
        form = {"secret": "hbk_wrong"}
        answers = [await service.client.post("/login", data=form, headers=_SAME) for _ in range(50)]
        service.clock.advance(30)
        await service.client.post("/login", data=form, headers=_SAME)
        entries = await service.operations.audit(_DENIED)
    assert [answer.status_code for answer in answers] == [401] + [429] * 49
    assert [entry.details["code"] for entry in entries] == ["unauthorized"]


async def test_refused_changes_of_viewer_are_counted_after_limit() -> None:
    viewer = _bearer(_token(roles=["viewer"]))
    async with admin(settings=settings()) as service:
        for number in range(100):
            await service.client.post(
                f"/admin/dlq/queues/q{number}/sessions", json={}, headers=viewer
            )
        service.clock.advance(61)
        await service.client.post("/admin/dlq/queues/last/sessions", json={}, headers=viewer)
        entries = await service.operations.audit(_DENIED)
    counted = [int(str(entry.details.get("times", 1))) for entry in entries]
    assert (len(entries), sum(counted)) == (22, 101)


def test_clock_set_back_does_not_block_callers() -> None:
    moments = iter([1000.0, 10.0, 11.0])
    turns = TurnKeeper(1.0, 1, lambda: next(moments))
    assert [turns.take("a") for _ in range(3)] == [0.0, 1.0, 0.0]


_DIGITS = "9" * 5000


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"/audit?cursor={_DIGITS}"),
        ("GET", f"/queues/{DLQ}/re-drive?limit={_DIGITS}"),
        ("POST", f"/queues/{DLQ}/look?limit={_DIGITS}"),
        ("POST", f"/keys?name=k&role=viewer&days={_DIGITS}"),
        ("GET", f"/admin/audit?cursor={_DIGITS}"),
        ("GET", f"/admin/dlq/jobs?limit={_DIGITS}"),
        ("POST", f"/queues/{DLQ}/re-drive?rate={_DIGITS}"),
    ],
    ids=lambda value: value[:40],
)
async def test_number_of_5000_digits_is_bad_request(method: str, path: str) -> None:
    """The response does not repeat all digits."""
    async with admin(dead_letter(1), raising=False) as service:
        answer = await service.client.request(method, path, headers=_SAME)
    assert answer.status_code in {400, 422}, answer.status_code
    assert _DIGITS not in answer.text


@pytest.mark.parametrize("claim", ["exp", "nbf", "iat"])
@pytest.mark.parametrize(
    "value", [10**400, 1e300, -(10**400), 10**13, "9" * 5000, [1]], ids=lambda value: str(value)[:6]
)
async def test_token_with_invalid_time_claim_is_401(claim: str, value: Any) -> None:
    async with admin(settings=settings(), raising=False) as service:
        token = _token(**{claim: value})
        answer = await service.client.get("/admin/me", headers=_bearer(token))
    assert answer.status_code == 401, answer.text


async def test_content_length_with_transfer_encoding_is_refused() -> None:
    """Two servers in a row could disagree about the end of the request."""
    headers = {"Content-Length": "2", "Transfer-Encoding": "chunked"}
    async with admin() as service:
        answer = await service.client.post("/admin/dlq/search", content=b"{}", headers=headers)
    assert (answer.status_code, answer.headers["connection"]) == (400, "close")
    assert answer.json()["detail"].startswith("Expected either Content-Length or")


@pytest.mark.parametrize(("scheme", "expected"), [("https", "max-age=31536000"), ("http", None)])
async def test_https_responses_have_strict_transport_security(
    scheme: str, expected: str | None
) -> None:
    async with admin() as service:
        for path in ("/", "/no/such/path", "/healthz"):
            answer = await service.client.get(f"{scheme}://127.0.0.1{path}")
            assert answer.headers.get("strict-transport-security") == expected


async def test_content_length_of_5000_digits_is_bad_request() -> None:
    async with admin(raising=False) as service:
        answer = await service.client.get("/admin/me", headers={"Content-Length": _DIGITS})
    assert answer.status_code in {400, 413}


@pytest.mark.parametrize(
    ("path", "accept", "media"),
    [
        ("/admin/me", "text/html", "application/problem+json"),
        ("/you", "text/html,application/xhtml+xml", "text/html"),
        ("/you", "application/json", "application/problem+json"),
    ],
)
async def test_unexpected_error_is_500_with_correlation_id_of_log(
    path: str, accept: str, media: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """An API client gets a problem document, a browser gets a page."""

    def address(_broker: object) -> str:
        raise ZeroDivisionError("nobody expected this")

    async with admin(raising=False) as service:
        if path == "/you":
            monkeypatch.setattr(EmbeddedBroker, "address", property(address))
        else:
            monkeypatch.setattr("hopback.ops.http.auth.LOCAL", 7)
        headers = {"X-Correlation-ID": "findme-1", "Accept": accept}
        with caplog.at_level(logging.ERROR, logger="hopback.ops.http"):
            answer = await service.client.get(path, headers=headers)
    assert answer.status_code == 500
    assert answer.headers["content-type"].partition(";")[0] == media
    assert "findme-1" in answer.text
    assert "nobody expected this" not in answer.text
    assert [record for record in caplog.records if "findme-1" in record.getMessage()]


@pytest.mark.parametrize(
    ("value", "words"), [("x", "at least 32 bytes"), ("", "at least 32 bytes")]
)
def test_weak_session_secret_is_refused_without_showing_it(value: str, words: str) -> None:
    """The error names the setting and the variable."""
    document = {"auth": {"session_secret_env": "SESSIONS"}}
    with pytest.raises(BadSettings, match=words) as caught:
        parse_settings(document, {"SESSIONS": value}, "admin.toml")
    assert "auth.session_secret_env" in str(caught.value)
    assert "SESSIONS" in str(caught.value)


async def test_missing_session_secret_is_random_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, logger="hopback.ops.http"):
        async with admin(settings=settings()):
            pass
    assert [line for line in caplog.messages if "auth.session_secret_env" in line]


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1.evil.com/keys", "http://127.0.0.1@evil.com/", "http://evil.com", "https://"],
)
def test_remote_issuer_without_https_is_refused(url: str) -> None:
    """Names that only begin like a loopback address are remote."""
    jwt = {"issuer": "i", "audience": "a", "jwks_url": url}
    with pytest.raises(BadSettings, match="https"):
        parse_settings({"auth": {"jwt": jwt}}, {}, "admin.toml")


@pytest.mark.parametrize(
    "url", ["https://id.test/keys", "http://127.0.0.1:8000/keys", "http://[::1]/keys"]
)
def test_issuer_on_loopback_may_use_http(url: str) -> None:
    jwt = {"issuer": "i", "audience": "a", "jwks_url": url}
    parsed = parse_settings({"auth": {"jwt": jwt}}, {}, "admin.toml")
    assert parsed.auth.jwt is not None
