"""The cookies of the page: signed sessions that can be ended before they expire."""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING, Any

import jwt

from hopback.ops.contract.roles import Grant, Principal, Role

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopback.ops.http.keys import KeyRing
    from hopback.ops.oidc.sign_in import OidcSignIn
    from hopback.sql.database import Execute, SqlDatabase

COOKIE = "hopback_session"
"""The cookie's name; on HTTPS it has the prefix `__Host-`, which binds it to this host."""

_AUDIENCE = "hopback-page"
_ID_BYTES = 16  # nobody meets another's session by chance
_ENDED_FRESH_S = 3.0  # as late as keys are: one small read for all requests of three seconds


def cookie_name(*, secure: bool) -> str:
    """The cookie's name; the prefix makes browsers bind it to this host over HTTPS."""
    return f"__Host-{COOKIE}" if secure else COOKIE


class SessionCookies:
    """Makes and reads the cookies of the page."""

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
        """The value for someone who signed in, and how many seconds it is good for.

        `session` is the id under which something else is known of them already.
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
        """Who it is, or None if the cookie is not ours, has ended, or its key is gone."""
        claims = await self._claims(value, now)
        if claims is None:
            return None
        if claims["kind"] == "key":
            key = self._keys.get(claims["sub"].removeprefix("key:"), now)
            return None if key is None else key.principal()
        if claims["kind"] == "oidc":  # its roles are those of today, and it may have ended
            return None if self._oidc is None else await self._oidc.find(claims["jti"], now)
        said = claims["grants"]
        # A cookie from before there were several brokers names none.
        brokers = claims.get("brokers") or [""] * len(said)
        grants = tuple(
            Grant(Role(role), tuple(queues), broker)
            for (role, *queues), broker in zip(said, brokers, strict=True)
        )
        return Principal(
            claims["sub"], claims["name"], claims["kind"], grants, float(claims["exp"])
        )

    async def end(self, value: str, now: float) -> str:
        """Let this session open nothing any more; a value that is no session of ours is no error.

        Where to go to sign out at the provider as well; empty if there is none.
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
        """What the cookie says, if we wrote it and the session goes on."""
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
