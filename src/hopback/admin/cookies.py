"""The session cookie of the page: signed, short-lived, and worth no more than what it came from.

A cookie that came from a key names the key: when that is taken away, the session is over. Signing out
writes the session into a list of those that have ended; where several processes serve, they share it.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Protocol

import jwt

from hopback.admin.roles import Grant, Principal, Role

if TYPE_CHECKING:
    from hopback.admin.keys import KeyRing

__all__ = ["COOKIE", "EndedSessions", "SessionCookies"]

COOKIE = "hopback_session"
"""The cookie's name; on HTTPS it has the prefix `__Host-`, which binds it to this host."""

_AUDIENCE = "hopback-page"
_ID_BYTES = 16  # nobody meets another's session by chance
_FRESH_S = 3.0  # as late as keys are: one small read for all requests of three seconds


class EndedSessions(Protocol):
    """Where sessions are kept that were ended before their time, by id with that time."""

    async def all(self) -> dict[str, float]:
        """The ids, each with the moment at which it would have ended by itself."""

    async def add(self, session: str, until: float, now: float) -> None:
        """Keep an id; those whose time is over now are forgotten."""


class _InThisProcess:
    """Ended sessions of one process."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    async def all(self) -> dict[str, float]:
        return dict(self._until)

    async def add(self, session: str, until: float, now: float) -> None:
        self._until = {each: end for each, end in self._until.items() if end > now}
        self._until[session] = until


class SessionCookies:
    """Makes and reads the cookies of the page."""

    def __init__(
        self, secret: str, keys: KeyRing, *, seconds: float, ended: EndedSessions | None = None
    ) -> None:
        self._secret = secret
        self._keys = keys
        self._store: EndedSessions = ended or _InThisProcess()
        self._ended: dict[str, float] = {}
        self._read_at = float("-inf")
        self.seconds = seconds

    def write(self, principal: Principal, now: float) -> tuple[str, int]:
        """The value for someone who signed in, and how many seconds it is good for."""
        end = min(now + self.seconds, principal.until or float("inf"))
        claims: dict[str, Any] = {
            "aud": _AUDIENCE,
            "exp": int(end),
            "jti": secrets.token_urlsafe(_ID_BYTES),
            "sub": principal.id,
            "name": principal.name,
            "kind": principal.kind,
            "grants": [[grant.role.value, *grant.queues] for grant in principal.grants],
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
        grants = tuple(Grant(Role(role), tuple(queues)) for role, *queues in claims["grants"])
        return Principal(
            claims["sub"], claims["name"], claims["kind"], grants, float(claims["exp"])
        )

    async def end(self, value: str, now: float) -> None:
        """Let this session open nothing any more; a value that is no session of ours is no error."""
        claims = await self._claims(value, now)
        if claims is not None:
            self._ended[claims["jti"]] = float(claims["exp"])
            await self._store.add(claims["jti"], float(claims["exp"]), now)

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
        if not 0 <= now - self._read_at < _FRESH_S:
            self._ended = await self._store.all()
            self._read_at = now
        return None if claims["jti"] in self._ended else claims
