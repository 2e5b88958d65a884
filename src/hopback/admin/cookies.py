"""The session cookie of the page: signed, short-lived, and worth no more than what it came from.

A cookie that came from a key names the key: when that is taken away, the session is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jwt

from hopback.admin.roles import Grant, Principal, Role

if TYPE_CHECKING:
    from hopback.admin.keys import KeyRing

__all__ = ["COOKIE", "SessionCookies"]

COOKIE = "hopback_session"
"""The cookie's name; on HTTPS it has the prefix `__Host-`, which binds it to this host."""

_AUDIENCE = "hopback-page"


class SessionCookies:
    """Makes and reads the cookies of the page."""

    def __init__(self, secret: str, keys: KeyRing, *, seconds: float) -> None:
        self._secret = secret
        self._keys = keys
        self.seconds = seconds

    def write(self, principal: Principal, now: float) -> tuple[str, int]:
        """The value for someone who signed in, and how many seconds it is good for."""
        end = min(now + self.seconds, principal.until or float("inf"))
        claims: dict[str, Any] = {
            "aud": _AUDIENCE,
            "exp": int(end),
            "sub": principal.id,
            "name": principal.name,
            "kind": principal.kind,
            "grants": [[grant.role.value, *grant.queues] for grant in principal.grants],
        }
        return jwt.encode(claims, self._secret, algorithm="HS256"), max(int(end - now), 0)

    def read(self, value: str, now: float) -> Principal | None:
        """Who it is, or None if the cookie is not ours, has ended, or its key is gone."""
        try:
            claims = jwt.decode(
                value,
                self._secret,
                algorithms=["HS256"],
                audience=_AUDIENCE,
                options={"require": ["exp", "sub"], "verify_exp": False},
            )
        except jwt.PyJWTError:
            return None
        if now >= claims["exp"]:
            return None
        if claims["kind"] == "key":
            key = self._keys.get(claims["sub"].removeprefix("key:"), now)
            return None if key is None else key.principal()
        grants = tuple(Grant(Role(role), tuple(queues)) for role, *queues in claims["grants"])
        return Principal(
            claims["sub"], claims["name"], claims["kind"], grants, float(claims["exp"])
        )
