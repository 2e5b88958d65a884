"""Signed session cookies of the page. Sessions can be ended before they expire."""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING, Any

import jwt

from hopback.ops.contract.roles import Grant, Principal, Role

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.responses import Response

    from hopback.ops.http.keys import KeyRing
    from hopback.ops.oidc.sign_in import OidcSignIn
    from hopback.sql.database import Execute, SqlDatabase

COOKIE = "hopback_session"
"""The name of the session cookie. It has the prefix `__Host-` if HTTPS is used."""

_AUDIENCE = "hopback-page"
_ID_BYTES = 16  # random bytes in a session id, so that it cannot be guessed
_ENDED_FRESH_S = 3.0
"""Seconds until the list of ended sessions is read again. A session that another process has ended
is accepted for this time.
"""


def cookie_name(*, secure: bool) -> str:
    """Return the name of the session cookie. Browsers only accept the prefix `__Host-` for HTTPS
    and bind the cookie to this host.
    """
    return f"__Host-{COOKIE}" if secure else COOKIE


def set_cookie(answer: Response, name: str, value: str, seconds: int, *, secure: bool) -> None:
    """Set a cookie that is not available to scripts or in requests from other sites."""
    answer.set_cookie(name, value, max_age=seconds, httponly=True, secure=secure, samesite="lax")


class SessionCookies:
    """Create and verify session cookies."""

    def __init__(
        self,
        secret: str,
        keys: KeyRing,
        *,
        seconds: float,
        database: SqlDatabase,
        oidc: OidcSignIn | None = None,
    ) -> None:
        self._secret = secret
        self._keys = keys
        self._oidc = oidc
        self._database = database
        self._ended: dict[str, float] = {}
        self._read_at = float("-inf")
        self.seconds = seconds

    def write(self, principal: Principal, now: float, session: str = "") -> tuple[str, int]:
        """Return the cookie of a signed-in user and its lifetime in seconds.

        `session` is the id of the OIDC session, if there is one.
        """
        end = min(now + self.seconds, principal.until or float("inf"))
        granted = (*principal.grants, *principal.elsewhere)
        claims: dict[str, Any] = {
            "aud": _AUDIENCE,
            "exp": int(end),
            "jti": session or secrets.token_urlsafe(_ID_BYTES),
            "sub": principal.id,
            "name": principal.name,
            "kind": principal.kind,
            "grants": [[grant.role.value, *grant.queues] for grant in granted],
            "brokers": [grant.broker for grant in granted],
        }
        return jwt.encode(claims, self._secret, algorithm="HS256"), max(int(end - now), 0)

    async def read(self, value: str, now: float) -> Principal | None:
        """Return the signed-in user. Returns None if the cookie is invalid or expired, or if the
        session or key is no longer valid.
        """
        claims = await self._claims(value, now)
        if claims is None:
            return None
        if claims["kind"] == "key":
            key = self._keys.get(claims["sub"].removeprefix("key:"), now)
            return None if key is None else key.principal()
        if claims["kind"] == "oidc":  # its roles may have changed, or it may have ended
            return None if self._oidc is None else await self._oidc.find(claims["jti"], now)
        grants = tuple(
            Grant(Role(role), tuple(queues), broker)
            for (role, *queues), broker in zip(claims["grants"], claims["brokers"], strict=True)
        )
        return Principal(
            claims["sub"], claims["name"], claims["kind"], grants, float(claims["exp"])
        )

    async def end(self, value: str, now: float) -> str:
        """End a session. Does nothing if the cookie is invalid.

        Returns the address for signing out at the provider, or an empty string if there is none.
        """
        claims = await self._claims(value, now)
        if claims is None:
            return ""
        self._ended[claims["jti"]] = float(claims["exp"])
        row = {"id": claims["jti"], "end": float(claims["exp"]), "now": now}
        await self._database.write(partial(_add_ended, row))
        if claims["kind"] == "oidc" and self._oidc is not None:
            return await self._oidc.end(claims["jti"])
        return ""

    async def _claims(self, value: str, now: float) -> dict[str, Any] | None:
        """Return the claims of a valid cookie, unless its session has ended."""
        try:
            claims: dict[str, Any] = jwt.decode(
                value,
                self._secret,
                algorithms=["HS256"],
                audience=_AUDIENCE,
                options={"require": ["exp", "jti", "sub"], "verify_exp": False},
            )
        except jwt.PyJWTError:
            return None
        if now >= claims["exp"]:
            return None
        if not 0 <= now - self._read_at < _ENDED_FRESH_S:
            found = await self._database.read(
                lambda execute: execute("SELECT id, expires_at FROM hopback_ended_sessions")
            )
            self._ended = dict(found)
            self._read_at = now
        return None if claims["jti"] in self._ended else claims


def _add_ended(row: Mapping[str, object], execute: Execute) -> None:
    execute("DELETE FROM hopback_ended_sessions WHERE expires_at <= :now", row)
    execute(
        "INSERT INTO hopback_ended_sessions (id, expires_at) VALUES (:id, :end)"
        " ON CONFLICT (id) DO NOTHING",
        row,
    )
