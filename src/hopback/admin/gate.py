"""The gate: who asks, whether the browser was tricked into asking, and whether they may.

A bearer token or key goes before a cookie. Where nobody is asked who they are, whoever reaches the
service is the local admin, and the service is reachable from this machine only.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hopback.admin.cookies import COOKIE
from hopback.admin.keys import PREFIX
from hopback.admin.problems import Refused
from hopback.admin.roles import Grant, Principal, Role
from hopback.admin.tokens import BadToken

if TYPE_CHECKING:
    from starlette.requests import Request

    from hopback.admin.cookies import SessionCookies
    from hopback.admin.keys import KeyRing
    from hopback.admin.limiting import TurnKeeper
    from hopback.admin.tokens import TokenReader
    from hopback.clock import Clock

__all__ = ["LOCAL", "Gate", "cookie_name", "forbidden", "new_secret", "unauthorized"]

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_EVERYTHING = (Grant(Role.ADMIN),)

LOCAL = Principal("local", "local", "local", _EVERYTHING)
"""Whoever reaches a service that asks nobody who they are."""


def cookie_name(*, secure: bool) -> str:
    """The cookie's name; the prefix makes browsers bind it to this host over HTTPS."""
    return f"__Host-{COOKIE}" if secure else COOKIE


@dataclass(frozen=True, slots=True)
class Gate:
    """Decides who comes in. Without tokens, keys and link nobody is asked."""

    clock: Clock
    cookies: SessionCookies
    keys: KeyRing
    turns: TurnKeeper
    sign_ins: TurnKeeper
    tokens: TokenReader | None = None
    link: str | None = None
    asks_who: bool = True

    async def identify(self, request: Request) -> Principal | None:
        """Who asks, None if nobody says; Refused if what they show is not believed."""
        header = request.headers.get("authorization")
        if header is not None:
            scheme, _, shown = header.partition(" ")
            if scheme.lower() != "bearer" or not shown.strip():
                raise unauthorized("Expected the Authorization header to be `Bearer TOKEN`.")
            return await self.believe(shown.strip())
        if not self.asks_who:
            self._refuse_foreign(request, strict=False)
            return LOCAL
        value = request.cookies.get(cookie_name(secure=request.url.scheme == "https"))
        if value is not None:
            await self.keys.refresh(self.clock.now())
        principal = None if value is None else self.cookies.read(value, self.clock.now())
        if principal is not None:
            self._refuse_foreign(request, strict=True)
        return principal

    async def believe(self, shown: str) -> Principal:
        """Who shows this token or key; Refused if it is not believed."""
        now = self.clock.now()
        if self.link is not None and hmac.compare_digest(shown.encode(), self.link.encode()):
            return Principal("link", "developer", "link", _EVERYTHING)
        if shown.startswith(PREFIX):
            await self.keys.refresh(now)
            key = self.keys.find(shown, now)
            if key is None:
                raise unauthorized("This key is unknown, or has expired or been taken away.")
            return key.principal()
        if self.tokens is None:
            raise unauthorized("Expected an API key; tokens are not configured here.")
        try:
            return await self.tokens.read(shown)
        except BadToken as error:
            raise unauthorized(f"The token is not believed: {error}.") from error

    def refuse_foreign(self, request: Request) -> None:
        """Refuse a changing request that another site made the browser send."""
        self._refuse_foreign(request, strict=True)

    def _refuse_foreign(self, request: Request, *, strict: bool) -> None:
        """`strict`: what says nothing of its origin is refused, too."""
        if request.method in _SAFE:
            return
        site = request.headers.get("sec-fetch-site")
        origin = request.headers.get("origin")
        if site is not None:
            same = site == "same-origin"
        elif origin is not None:
            same = urlsplit(origin).netloc == request.headers.get("host")
        else:
            same = not strict
        if not same:
            raise Refused(
                403,
                "foreign-origin",
                "A changing request with a cookie must come from this page itself.",
            )

    def take_turn(self, caller: str) -> None:
        """Refuse a caller who asks too often."""
        _wait(self.turns.take(caller))

    def take_sign_in(self, address: str) -> None:
        """Refuse an address that tries to sign in too often."""
        _wait(self.sign_ins.take(address))


def unauthorized(detail: str) -> Refused:
    """The answer to someone who is not known."""
    return Refused(401, "unauthorized", detail, headers={"WWW-Authenticate": "Bearer"})


def forbidden(detail: str = "Insufficient role to access this resource.") -> Refused:
    """The answer to someone who is known and may not."""
    return Refused(403, "forbidden", detail)


def _wait(seconds: float) -> None:
    if seconds > 0:
        after = str(max(int(seconds + 0.999), 1))
        raise Refused(
            429, "too-many-requests", f"Too many requests; again in {after} s.",
            headers={"Retry-After": after},
        )  # fmt: skip


def new_secret() -> str:
    """A secret that nobody can guess."""
    return secrets.token_urlsafe(32)
