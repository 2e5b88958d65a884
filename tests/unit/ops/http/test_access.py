"""Authentication and authorisation: tokens, keys, cookies, roles, origins and limits."""

from __future__ import annotations

import base64
import json
import time
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from hopback.clock import ManualClock
from hopback.ops.http.settings import BadSettings, parse_settings
from hopback.ops.http.tokens import BadToken, Jwks, TokenReader, claim_at
from hopback.ops.jobs.journal import open_journal
from tests.unit.ops.admin_service import DLQ, NOW, SECRET, admin, dead_letter, settings

if TYPE_CHECKING:
    from pathlib import Path

_SAME = {"Sec-Fetch-Site": "same-origin"}


def _token(secret: str = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    whole = {
        "iss": "https://id.test",
        "aud": "hopback",
        "sub": "u-1",
        "preferred_username": "ada",
        "roles": ["admin"],
        "exp": 9e9,
        **claims,
    }
    present = {name: value for name, value in whole.items() if value is not None}
    return jwt.encode(present, secret, algorithm=algorithm)


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _unsigned() -> str:
    """A token with the algorithm `none`."""
    parts = (
        {"alg": "none", "typ": "JWT"},
        {"iss": "https://id.test", "aud": "hopback", "sub": "u", "roles": ["admin"], "exp": 9e9},
    )
    return (
        ".".join(
            base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
            for part in parts
        )
        + "."
    )


async def test_valid_token_gives_name_role_and_expiry() -> None:
    async with admin(settings=settings()) as service:
        me = (await service.client.get("/admin/me", headers=_bearer(_token()))).json()
    assert (me["name"], me["role"], me["kind"]) == ("ada", "admin", "token")


@pytest.mark.parametrize(
    ("token", "words"),
    [
        (_token(exp=1), "expired"),
        (_token(exp=None), "lacks"),
        (_token(aud="another"), "audience"),
        (_token(iss="https://evil.test"), "issuer"),
        (_token(nbf=8e9), "not valid yet"),
        (_token(secret="another secret that is also long enough"), "signature"),
        (_token(algorithm="HS512"), "algorithm"),
        (_unsigned(), "algorithm"),
        ("not.a.token", "cannot be read"),
        ("", "Bearer"),
        ("hbk_unknown", "unknown"),
    ],
)
async def test_invalid_token_is_401_with_reason(token: str, words: str) -> None:
    """The response never repeats the token."""
    async with admin(settings=settings()) as service:
        answer = await service.client.get("/admin/me", headers=_bearer(token))
    assert (answer.status_code, words in answer.json()["detail"]) == (401, True), answer.text
    assert not token or token not in answer.text


async def test_hs256_token_signed_with_public_key_is_refused() -> None:
    """The service chooses the algorithms, not the token."""
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    jwk = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(private.public_key()))
    document = {"keys": [{**jwk, "kid": "k1", "use": "sig"}]}
    auth = {"issuer": "https://id.test", "audience": "hopback", "jwks_url": "https://id.test/keys"}
    known = parse_settings({"auth": {"jwt": auth}}, {}, "test").auth.jwt
    assert known is not None
    asked = []

    async def fetch() -> Any:
        asked.append(1)
        return document

    clock = ManualClock(NOW)
    reader = TokenReader(known, (), Jwks(fetch, clock))
    claims = {"iss": "https://id.test", "aud": "hopback", "sub": "u", "exp": time.time() + 60}
    good = jwt.encode(claims, private, algorithm="RS256", headers={"kid": "k1"})
    assert (await reader.read(good)).id == "token:u"
    forged = jwt.encode(claims, jwk["n"], algorithm="HS256", headers={"kid": "k1"})
    with pytest.raises(BadToken, match="algorithm"):
        await reader.read(forged)
    stranger = jwt.encode(claims, private, algorithm="RS256", headers={"kid": "k2"})
    for _ in range(5):
        with pytest.raises(BadToken, match="does not publish"):
            await reader.read(stranger)
    assert len(asked) == 1, "unknown key ids must not make us ask the issuer again and again"


def test_roles_claim_is_found_by_dotted_path() -> None:
    """A claim whose name contains dots takes precedence."""
    claims = {"realm_access": {"roles": ["x"]}, "https://x.y/roles": ["y"], "a": "text"}
    assert claim_at(claims, "realm_access.roles") == ["x"]
    assert claim_at(claims, "https://x.y/roles") == ["y"]
    assert claim_at(claims, "a.b.c") is None


async def test_grant_holds_only_for_its_queues() -> None:
    grants = [{"claim": "team-orders", "role": "operator", "queues": ["orders*"]}]
    headers = _bearer(_token(roles=["team-orders", "admin"]))
    async with admin(dead_letter(1), settings=settings(grants=grants)) as service:
        own = await service.client.get(f"/admin/dlq/queues/{DLQ}", headers=headers)
        other = await service.client.get("/admin/dlq/queues/payments.dlq", headers=headers)
        audit = await service.client.get("/admin/audit", headers=headers)
    assert (own.status_code, other.status_code, audit.status_code) == (200, 403, 403)


async def test_viewer_gets_403_for_payloads_jobs_and_keys() -> None:
    """The audit records each refused change with its caller and address."""
    viewer, boss = _bearer(_token(roles=["viewer"])), _bearer(_token(sub="boss"))
    order = {"kind": "re-drive", "queue": DLQ, "reason": "x"}
    async with admin(dead_letter(1), settings=settings()) as service:
        assert (await service.client.get("/admin/dlq/overview", headers=viewer)).status_code == 200
        for path, body in [
            (f"/admin/dlq/queues/{DLQ}/sessions", {}),
            ("/admin/dlq/jobs", order),
            ("/admin/keys", {"name": "k", "role": "admin"}),
        ]:
            answer = await service.client.post(path, json=body, headers=viewer)
            assert answer.status_code == 403, path
        nobody = await service.client.post("/admin/dlq/jobs", json=order)
        assert (nobody.status_code, nobody.json()["detail"]) == (
            401,
            "Missing Authorization header.",
        )
        audit = await service.client.get("/admin/audit?action=access.denied", headers=boss)
    entries = audit.json()["items"]
    assert [entry["by"] for entry in entries] == ["nobody", "ada", "ada", "ada"]
    assert {entry["result"] for entry in entries} == {"refused"}


async def test_operator_controls_only_own_jobs() -> None:
    """An admin controls all jobs."""
    one = _bearer(_token(sub="one", roles=["operator"]))
    two = _bearer(_token(sub="two", roles=["operator"]))
    order = {"kind": "re-drive", "queue": DLQ, "reason": "x", "pace": {"rate": 0.1}}
    async with admin(dead_letter(1), dead_letter(2), settings=settings()) as service:
        job = (await service.client.post("/admin/dlq/jobs", json=order, headers=one)).json()
        assert (await service.client.post(f"{job['url']}/cancel", headers=two)).status_code == 403
        boss = _bearer(_token())
        assert (await service.client.post(f"{job['url']}/pause", headers=boss)).status_code == 200
        assert (await service.client.post(f"{job['url']}/cancel", headers=one)).status_code == 200


async def test_key_secret_is_shown_once_and_key_expires() -> None:
    """A key has its role until it expires or is revoked."""
    boss = _bearer(_token())
    async with admin(settings=settings()) as service:
        body = {"name": "ci", "role": "viewer", "days": 1}
        made = (await service.client.post("/admin/keys", json=body, headers=boss)).json()
        secret = made["secret"]
        listed = await service.client.get("/admin/keys", headers=boss)
        assert secret not in listed.text
        assert "hash" not in listed.text
        me = await service.client.get("/admin/me", headers=_bearer(secret))
        assert (me.json()["name"], me.json()["role"]) == ("ci", "viewer")
        assert (
            await service.client.get("/admin/audit", headers=_bearer(secret))
        ).status_code == 403
        service.clock.advance(86_401)
        assert (await service.client.get("/admin/me", headers=_bearer(secret))).status_code == 401
        gone = await service.client.delete(f"/admin/keys/{made['key']['id']}", headers=boss)
        assert gone.status_code == 204


async def test_session_cookie_ends_when_its_key_is_revoked() -> None:
    """The cookie is HttpOnly and SameSite."""
    boss = _bearer(_token())
    async with admin(settings=settings()) as service:
        client = service.client
        body = {"name": "ops", "role": "admin"}
        made = (await client.post("/admin/keys", json=body, headers=boss)).json()
        away = await client.get("/jobs")
        assert away.headers["location"] == "/login?next=%2Fjobs"
        form = {"secret": made["secret"], "next": "//evil.test/"}
        answer = await client.post("/login", data=form, headers=_SAME)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=lax" in cookie
        assert (await client.get("/jobs")).status_code == 200
        await client.delete(f"/admin/keys/{made['key']['id']}", headers=boss)
        assert (await client.get("/jobs")).status_code == 303


async def test_cross_site_request_with_cookie_is_refused() -> None:
    """Unknown and missing origins are refused as well.

    The page and requests with a token are not.
    """
    async with admin(dead_letter(1), link="the-link", settings=settings()) as service:
        client = service.client
        assert (await client.get("/login?token=the-link")).status_code == 303
        path = f"/admin/dlq/queues/{DLQ}/sessions"
        for headers, status in [
            ({"Sec-Fetch-Site": "cross-site"}, 403),
            ({"Sec-Fetch-Site": "same-site"}, 403),
            ({"Origin": "https://evil.test"}, 403),
            ({"Origin": "null"}, 403),
            ({"Origin": "http://["}, 403),
            ({}, 403),
            ({"Origin": "http://127.0.0.1"}, 201),
            (_SAME, 201),
        ]:
            answer = await client.post(path, json={"limit": 1}, headers=headers)
            assert answer.status_code == status, headers


async def test_forged_cookie_redirects_to_login() -> None:
    claims = {"aud": "hopback-page", "exp": 9e9, "sub": "x", "name": "x", "kind": "link"}
    forged = jwt.encode({**claims, "grants": [["admin", "*"]]}, SECRET, algorithm="HS256")
    async with admin(settings=settings()) as service:
        service.client.cookies.set("hopback_session", forged)
        assert (await service.client.get("/")).status_code == 303


async def test_service_without_sign_in_serves_only_loopback() -> None:
    """Other host names are refused, which prevents DNS rebinding."""
    async with admin() as service:
        assert (await service.client.get("/")).status_code == 200
        bent = await service.client.get("/", headers={"Host": "evil.test"})
        assert bent.status_code == 421
        foreign = await service.client.post(
            f"/admin/dlq/queues/{DLQ}/sessions", json={}, headers={"Origin": "https://evil.test"}
        )
        assert foreign.status_code == 403


async def test_requests_beyond_size_or_rate_are_413_or_429() -> None:
    limits = {"limits": {"request_bytes": 1000, "requests_per_second": 1, "burst": 3}}
    async with admin(settings=parse_settings(limits, {}, "test")) as service:
        large = await service.client.post("/admin/dlq/jobs", content=b" " * 1001)
        assert (large.status_code, large.json()["code"]) == (413, "too-large")
        answers = [await service.client.get("/admin/me") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert int(answers[-1].headers["retry-after"]) >= 1


async def test_responses_have_correlation_id_and_strict_csp() -> None:
    """An invalid id is replaced."""
    async with admin() as service:
        own = await service.client.get("/admin/me", headers={"X-Correlation-ID": "abc-1"})
        odd = await service.client.get("/admin/me", headers={"X-Correlation-ID": "a\tb<script>"})
        lost = await service.client.get("/admin/nothing")
    assert own.headers["x-correlation-id"] == "abc-1"
    assert "<" not in odd.headers["x-correlation-id"]
    assert lost.json()["correlationId"] == lost.headers["x-correlation-id"]
    policy = own.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy


@pytest.mark.parametrize(
    ("auth", "words"),
    [
        ({"issuer": "i", "audience": "a"}, "neither"),
        ({"issuer": "i", "audience": "a", "jwks_url": "https://x", "secret_env": "S"}, "both"),
        ({"issuer": "i", "audience": "a", "jwks_url": "http://x"}, "https"),
        ({"issuer": "i", "audience": "a", "secret_env": "S", "algorithms": ["none"]}, "none"),
        (
            {"issuer": "i", "audience": "a", "jwks_url": "https://x", "algorithms": ["HS256"]},
            "HS256",
        ),
        ({"issuer": "i", "audience": "a", "secret_env": "SHORT"}, "32 bytes"),
        ({"issuer": "i", "audience": "a", "secret_env": "ABSENT"}, "not set"),
        ({"issuer": "i", "audiance": "a", "secret_env": "S"}, "audiance"),
        ({"audience": "a", "secret_env": "S"}, "issuer"),
    ],
)
def test_unsafe_settings_are_refused_without_secret(auth: dict[str, Any], words: str) -> None:
    environment = {"S": SECRET, "SHORT": "short"}
    with pytest.raises(BadSettings, match=words) as caught:
        parse_settings({"auth": {"jwt": auth}}, environment, "admin.toml")
    assert SECRET not in str(caught.value)


async def test_keys_in_database_are_shared_by_processes(tmp_path: Path) -> None:
    """A revocation reaches the other process. The database does not contain the secret."""
    url, clock = f"sqlite:///{tmp_path / 'keys.db'}", ManualClock(NOW)
    boss = _bearer(_token())
    async with (
        open_journal(url, clock) as first,
        open_journal(url, clock) as second,
        admin(settings=settings(), journal=first) as one,
    ):
        body = {"name": "ci", "role": "operator", "queues": ["orders*"]}
        made = (await one.client.post("/admin/keys", json=body, headers=boss)).json()
        own = _bearer(made["secret"])
        async with admin(settings=settings(), journal=second) as two:
            me = (await two.client.get("/admin/me", headers=own)).json()
            assert (me["name"], me["grants"]) == (
                "ci",
                [{"role": "operator", "queues": ["orders*"]}],
            )
            await one.client.delete(f"/admin/keys/{made['key']['id']}", headers=boss)
            two.clock.advance(5)
            assert (await two.client.get("/admin/me", headers=own)).status_code == 401
    kept = b"".join(path.read_bytes() for path in sorted(tmp_path.iterdir()))  # noqa: ASYNC240
    assert made["secret"].encode() not in kept
