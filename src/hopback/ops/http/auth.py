"""Identify callers, refuse cross-site requests and limit the rate of requests.

A bearer token or key takes precedence over a cookie. If no sign-in is configured, every caller is
the local admin, and the service only listens on this machine.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hopback.ops.contract.roles import Grant, Principal, Role
from hopback.ops.http.keys import PREFIX, KeyRing
from hopback.ops.http.problems import Refused
from hopback.ops.http.session_cookies import SessionCookies, cookie_name
from hopback.ops.http.tokens import BadToken, TokenReader
from hopback.ops.http.turns import TurnKeeper, address_of

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.requests import Request

    from hopback.clock import Clock
    from hopback.ops.oidc.sign_in import OidcSignIn

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_EVERYTHING = (Grant(Role.ADMIN, broker="*"),)

LOCAL = Principal("local", "local", "local", _EVERYTHING)
"""The caller of a service that does not require a sign-in."""


class LoginLink:
    """The login link of the dev mode. Its secret can be used once to sign in as admin."""

    def __init__(self, secret: str) -> None:
        self._secret: str | None = secret

    def spend(self, shown: str) -> Principal | None:
        """Return the developer if the secret is correct and has not been used before."""
        if self._secret is None or not hmac.compare_digest(shown.encode(), self._secret.encode()):
            return None
        self._secret = None
        return Principal("link", "developer", "link", _EVERYTHING)


@dataclass(frozen=True, slots=True)
class Gate:
    """Identify callers. `asks_who` is False for a service without tokens, keys and login link."""

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
        """Return the caller, or None if the request does not have any credentials.

        The rate of unidentified requests is limited by address. This happens before the credentials
        are checked. After wrong credentials, a much lower rate applies. Raises Refused if the
        credentials are wrong.
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
        """Return the caller with this token or key. Raises Refused if it is not valid."""
        now = self.clock.now()
        if shown.startswith(PREFIX):
            await self.keys.refresh(now)
            key = self.keys.find(shown, now)
            if key is None:
                raise unauthorized("This key is unknown, expired or revoked.")
            return key.principal()
        if self.tokens is None:
            raise unauthorized("Expected an API key. Tokens are not configured here.")
        try:
            return await self.tokens.read(shown)
        except BadToken as error:
            raise unauthorized(f"The token is refused: {error}.") from error

    async def sign_in(self, shown: str) -> Principal:
        """Return the caller who has entered a login secret, key or token in the form."""
        found = None if self.link is None else self.link.spend(shown)
        return found or await self.believe(shown)

    def follow_link(self, request: Request, shown: str) -> Principal:
        """Return the caller who has opened the login link. Keys are not accepted in a URL.

        The user must have opened it directly or from this page. Other sites must not be able to
        sign users in, and a prefetch must not use up the link.
        """
        headers = request.headers
        site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
        ahead = "prefetch" in headers.get("sec-purpose", "") + headers.get("purpose", "")
        if site not in (None, "none", "same-origin") or mode not in (None, "navigate") or ahead:
            raise Refused(
                403,
                "foreign-origin",
                "The link was opened from another site. Paste it into the address bar.",
            )
        principal = None if self.link is None else self.link.spend(shown)
        if principal is None:
            raise unauthorized(
                "This login link is unknown or has been used. Enter a key in the form."
            )
        return principal

    def refuse_foreign(self, request: Request, *, strict: bool = True) -> None:
        """Refuse a request to change something if another site caused the browser to send it.

        If `strict` is True, requests without a header that shows their origin are also refused.
        """
        if request.method not in _SAFE and not is_same_origin(request.headers, silent=not strict):
            raise Refused(
                403,
                "foreign-origin",
                "A request with a cookie that changes something must come from this page.",
            )

    def take_turn(self, caller: str) -> None:
        """Refuse a request if the caller has exceeded the request rate."""
        _wait(self.turns.take(caller))

    def take_sign_in(self, address: str) -> None:
        """Refuse a sign-in if the address has exceeded the rate of sign-ins."""
        _wait(self.sign_ins.take(address))


def is_same_origin(headers: Headers, *, silent: bool) -> bool:
    """Return True if a browser sent the request from the service's own page.

    `silent` is returned for requests without the headers that show this.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        return site == "same-origin"
    if origin is not None:
        try:
            return urlsplit(origin).netloc == headers.get("host")
        except ValueError:  # for example an incomplete IPv6 address
            return False
    return silent


def unauthorized(detail: str) -> Refused:
    return Refused(401, "unauthorized", detail, headers={"WWW-Authenticate": "Bearer"})


def forbidden(detail: str = "Insufficient role to access this resource.") -> Refused:
    return Refused(403, "forbidden", detail)


def _wait(seconds: float) -> None:
    if seconds > 0:
        after = str(max(int(seconds + 0.999), 1))
        raise Refused(
            429, "too-many-requests", f"Too many requests. Try again in {after} s.",
            headers={"Retry-After": after},
        )  # fmt: skip


def new_secret() -> str:
    """Generate a random secret of 32 bytes."""
    return secrets.token_urlsafe(32)
