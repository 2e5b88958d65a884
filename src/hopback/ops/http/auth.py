"""Who asks, whether the browser was tricked into asking, and how often they may.

A bearer token or key goes before a cookie. Where nobody is asked who they are, every caller is the local
admin, and the service is reachable from this machine only. A JWT is believed only if its signature, issuer,
audience and time are right; its algorithm is taken from the settings, never from the token.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hopback.ops.contract.roles import Grant, Principal, Role
from hopback.ops.http.keys import PREFIX
from hopback.ops.http.problems import Refused
from hopback.ops.http.session_cookies import cookie_name
from hopback.ops.http.tokens import BadToken
from hopback.ops.http.turns import address_of

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.requests import Request

    from hopback.clock import Clock
    from hopback.ops.http.keys import KeyRing
    from hopback.ops.http.session_cookies import SessionCookies
    from hopback.ops.http.tokens import TokenReader
    from hopback.ops.http.turns import TurnKeeper
    from hopback.ops.oidc.sign_in import OidcSignIn

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_EVERYTHING = (Grant(Role.ADMIN, broker="*"),)

LOCAL = Principal("local", "local", "local", _EVERYTHING)
"""The caller of a service that asks nobody who they are."""


class LoginLink:
    """The secret of the dev mode's login link: worth one session of an admin."""

    def __init__(self, secret: str) -> None:
        self._secret: str | None = secret

    def spend(self, shown: str) -> Principal | None:
        """Who comes with it, the first time."""
        if self._secret is None or not hmac.compare_digest(shown.encode(), self._secret.encode()):
            return None
        self._secret = None
        return Principal("link", "developer", "link", _EVERYTHING)


@dataclass(frozen=True, slots=True)
class Gate:
    """Decides who comes in. Without tokens, keys and link nobody is asked."""

    clock: Clock
    cookies: SessionCookies
    keys: KeyRing
    turns: TurnKeeper
    sign_ins: TurnKeeper
    failures: TurnKeeper
    tokens: TokenReader | None = None
    link: LoginLink | None = None
    oidc: OidcSignIn | None = None
    asks_who: bool = True

    async def identify(self, request: Request) -> Principal | None:
        """Who asks, None if nobody says; Refused if what they show is not believed.

        Somebody who is not known takes turns by address: before anything is checked, and from a much
        smaller number after it was wrong.
        """
        header = request.headers.get("authorization")
        if header is not None:
            self.take_turn(address_of(request))
            try:
                scheme, _, shown = header.partition(" ")
                if scheme.lower() != "bearer" or not shown.strip():
                    raise unauthorized("Expected the Authorization header to be `Bearer TOKEN`.")
                return await self.believe(shown.strip())
            except Refused:
                _wait(self.failures.take(address_of(request)))
                raise
        if not self.asks_who:
            self.refuse_foreign(request, strict=False)
            return LOCAL
        value = request.cookies.get(cookie_name(secure=request.url.scheme == "https"))
        if value is not None:
            await self.keys.refresh(self.clock.now())
        principal = None if value is None else await self.cookies.read(value, self.clock.now())
        if principal is None:
            self.take_turn(address_of(request))
        else:
            self.refuse_foreign(request, strict=True)
        return principal

    async def believe(self, shown: str) -> Principal:
        """Who shows this token or key; Refused if it is not believed."""
        now = self.clock.now()
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

    async def sign_in(self, shown: str) -> Principal:
        """Who signs in with the form: by the login link, a key or a token."""
        found = None if self.link is None else self.link.spend(shown)
        return found or await self.believe(shown)

    def follow_link(self, request: Request, shown: str) -> Principal:
        """Who signs in by the login link itself; never by a key, which has no place in an address.

        Only a person's own navigation, or one from our own page: another site must not sign anybody
        in, and a browser that loads ahead must not use the link up.
        """
        headers = request.headers
        site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
        ahead = "prefetch" in headers.get("sec-purpose", "") + headers.get("purpose", "")
        if site not in (None, "none", "same-origin") or mode not in (None, "navigate") or ahead:
            raise Refused(
                403, "foreign-origin", "Another site led here; paste the link into the address bar."
            )
        principal = None if self.link is None else self.link.spend(shown)
        if principal is None:
            raise unauthorized(
                "This login link is unknown or has been used; keys go into the form."
            )
        return principal

    def refuse_foreign(self, request: Request, *, strict: bool = True) -> None:
        """Refuse a changing request that another site made the browser send.

        `strict`: what says nothing of its origin is refused, too.
        """
        if request.method not in _SAFE and not is_same_origin(request.headers, silent=not strict):
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


def is_same_origin(headers: Headers, *, silent: bool) -> bool:
    """Whether a browser sent this from the page itself; `silent`: if nothing is said of it."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        return site == "same-origin"
    if origin is not None:
        try:
            return urlsplit(origin).netloc == headers.get("host")
        except ValueError:  # half an IPv6 address, say
            return False
    return silent


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
