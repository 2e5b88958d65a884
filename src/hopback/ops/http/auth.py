"""Who asks, whether the browser was tricked into asking, and how often they may.

A bearer token or key goes before a cookie. Where nobody is asked who they are, every caller is the local
admin, and the service is reachable from this machine only. A JWT is believed only if its signature, issuer,
audience and time are right; its algorithm is taken from the settings, never from the token.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import jwt

from hopback.ops.contract.roles import EVERYTHING, Grant, Principal, Role
from hopback.ops.http.keys import PREFIX
from hopback.ops.http.problems import Refused
from hopback.text import clipped, printable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from starlette.datastructures import Headers
    from starlette.requests import Request

    from hopback.clock import Clock
    from hopback.ops.http.keys import KeyRing
    from hopback.ops.http.settings import GrantSettings, JwtSettings
    from hopback.ops.oidc import OidcSignIn

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_EVERYTHING = (Grant(Role.ADMIN, broker="*"),)

LOCAL = Principal("local", "local", "local", _EVERYTHING)
"""The caller of a service that asks nobody who they are."""


def cookie_name(*, secure: bool) -> str:
    """The cookie's name; the prefix makes browsers bind it to this host over HTTPS."""
    return f"__Host-{COOKIE}" if secure else COOKIE


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


CALLBACK = "/login/oidc/callback"
"""Where a provider sends people back to; it is to be registered there."""

COOKIE = "hopback_session"
"""The cookie's name; on HTTPS it has the prefix `__Host-`, which binds it to this host."""

_AUDIENCE = "hopback-page"
_ID_BYTES = 16  # nobody meets another's session by chance
_ENDED_FRESH_S = 3.0  # as late as keys are: one small read for all requests of three seconds


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
        self,
        secret: str,
        keys: KeyRing,
        *,
        seconds: float,
        ended: EndedSessions | None = None,
        oidc: OidcSignIn | None = None,
    ) -> None:
        self._secret = secret
        self._keys = keys
        self._oidc = oidc
        self._store: EndedSessions = ended or _InThisProcess()
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
            return None if self._oidc is None else await self._oidc.known(claims["jti"], now)
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
        await self._store.add(claims["jti"], float(claims["exp"]), now)
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
            self._ended = await self._store.all()
            self._read_at = now
        return None if claims["jti"] in self._ended else claims


_KEYS_FRESH_S = 300.0  # issuers publish a new key long before they sign with it
_AGAIN_S = 10.0  # a token with an invented key id must not make us ask at every request
_FETCH_S = 5.0  # a request waits for it
_MOST_BYTES = 256 * 1024  # a hundred keys with their certificates
_LAST_MOMENT = 253_402_300_799  # the end of the year 9999: no calendar goes further
_ODD_TIME = "one of its times (exp, nbf, iat) is no moment that can be"


class BadToken(Exception):
    """A token is not believed; the text says why, without the token."""


class KeySource(Protocol):
    """Where the key of a token comes from."""

    async def key_for(self, kid: str | None) -> Any:
        """The key; BadToken if there is none."""


class SharedSecret:
    """One secret for all tokens."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    async def key_for(self, kid: str | None) -> Any:
        """The secret."""
        return self._secret


class Jwks:
    """The keys that an issuer publishes; `fetch` returns the document."""

    def __init__(self, fetch: Callable[[], Awaitable[Any]], clock: Clock) -> None:
        self._fetch = fetch
        self._clock = clock
        self._keys: dict[str | None, Any] = {}
        self._tried = float("-inf")
        self._lock = asyncio.Lock()

    async def key_for(self, kid: str | None) -> Any:
        """The key of that id; the document is read again if it is old or does not have it."""
        if self._is_due(kid):
            async with self._lock:
                if self._is_due(kid):
                    await self._refresh()
        found = self._keys.get(kid)
        if found is None and kid is None and len(self._keys) == 1:
            found = next(iter(self._keys.values()))
        if found is None:
            raise BadToken("it is signed with a key that the issuer does not publish")
        return found

    def _is_due(self, kid: str | None) -> bool:
        age = self._clock.now() - self._tried
        return age > _KEYS_FRESH_S or (kid not in self._keys and age > _AGAIN_S)

    async def _refresh(self) -> None:
        """Read the document; while the issuer does not answer, the keys that are known stay."""
        self._tried = self._clock.now()
        try:
            document = await self._fetch()
            keys = jwt.PyJWKSet.from_dict(document).keys
        except Exception as error:  # whatever the issuer answers, it is not our failure
            if not self._keys:
                raise BadToken("the issuer does not give out its keys now") from error
            return
        self._keys = {key.key_id: key for key in keys if key.public_key_use in (None, "sig")}


async def fetch_json(url: str, *, bearer: str = "") -> Any:
    """A JSON document from the net, bounded in time and size; `bearer` is shown to the server that has it.

    Redirects are not followed and proxies of the environment not used: who answers here says whom we
    believe.
    """
    import httpx

    headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
    async with (
        httpx.AsyncClient(timeout=_FETCH_S, follow_redirects=False, trust_env=False) as client,
        client.stream("GET", url, headers=headers) as answer,
    ):
        answer.raise_for_status()
        body = b""
        async for part in answer.aiter_bytes():
            body += part
            if len(body) > _MOST_BYTES:
                raise BadToken("the issuer's document is too large")
    return json.loads(body)


@dataclass(frozen=True, slots=True)
class Person:
    """Whom a token is about."""

    subject: str
    name: str
    roles: tuple[str, ...]


_LONGEST_SUBJECT = 255
"""Characters, as OpenID Connect has it. A token with a longer subject is refused."""
_LONGEST_NAME = 200
"""Bytes of a display name. The rest is cut off."""


def token_reader(
    settings: JwtSettings, grants: Sequence[GrantSettings], secret: str, clock: Clock
) -> TokenReader:
    """Check tokens with the shared secret, or with the issuer's published keys if there is no secret."""
    keys: KeySource = SharedSecret(secret)
    if not secret:
        keys = Jwks(partial(fetch_json, settings.jwks_url), clock)
    return TokenReader(settings, grants, keys)


class TokenReader:
    """Says who comes with a token."""

    def __init__(
        self, settings: JwtSettings, grants: Sequence[GrantSettings], keys: KeySource
    ) -> None:
        self._settings = settings
        self._grants = grants
        self._keys = keys

    @property
    def leeway_s(self) -> int:
        """By how much clocks may differ, in seconds."""
        return self._settings.leeway_seconds

    async def read(self, token: str) -> Principal:
        """Who it is; BadToken says why it is not believed."""
        claims = await self.claims(token)
        found = self.person(claims)
        return self.granted(
            "token", found.subject, found.name, found.roles, until=float(claims["exp"])
        )

    async def claims(self, token: str) -> dict[str, Any]:
        """What it says; BadToken says why it is not believed."""
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in self._settings.allowed:
                raise BadToken("it is signed with an algorithm that is not allowed")
            kid = header.get("kid")
            key = await self._keys.key_for(kid if isinstance(kid, str) else None)
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=list(self._settings.allowed),
                audience=self._settings.audience,
                issuer=self._settings.issuer,
                leeway=self._settings.leeway_seconds,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.PyJWTError as error:
            words = (words for kind, words in _WORDS if isinstance(error, kind))
            raise BadToken(next(words, "it is not a token that can be read")) from error
        except (ArithmeticError, TypeError, ValueError) as error:  # by a time that is no time
            raise BadToken(_ODD_TIME) from error
        for name in ("exp", "nbf", "iat"):
            value = claims.get(name, 0)
            if not isinstance(value, int | float) or not 0 <= value <= _LAST_MOMENT:
                raise BadToken(_ODD_TIME)
        return claims

    def person(self, claims: Mapping[str, Any]) -> Person:
        """Whom the claims are about, and what roles they name."""
        subject = str(claims["sub"])
        if not (subject.isprintable() and len(subject) <= _LONGEST_SUBJECT):
            raise BadToken(
                f"its `sub` is not a text of at most {_LONGEST_SUBJECT} printable characters"
            )
        name = claim_at(claims, self._settings.name_claim)
        found = claim_at(claims, self._settings.roles_claim)
        roles = [found] if isinstance(found, str) else found if isinstance(found, list) else []
        shown = name if isinstance(name, str) and name else subject
        # Names reach the audit, logs and terminals of others.
        return Person(subject, clipped(printable(shown), _LONGEST_NAME), tuple(map(str, roles)))

    def granted(
        self, kind: str, subject: str, name: str, roles: Iterable[str], *, until: float
    ) -> Principal:
        """Somebody with these roles, known by that kind of sign-in until then.

        The table of the settings says what a role may do; without one, our own role names mean themselves.
        """
        grants: list[Grant] = []
        for role in roles:
            if self._grants:
                grants += [each.grant for each in self._grants if each.claim == role]
            elif role in set(Role):
                grants.append(Grant(Role(role), EVERYTHING))
        return Principal(f"{kind}:{subject}", name, kind, tuple(grants), until)


def claim_at(claims: Mapping[str, Any], path: str) -> object:
    """The claim at a dotted path; a claim whose own name has dots goes first. None if there is none."""
    if path in claims:
        return claims[path]
    value: object = claims
    for step in path.split("."):
        if not isinstance(value, Mapping) or step not in value:
            return None
        value = value[step]
    return value


_WORDS: tuple[tuple[type[Exception], str], ...] = (
    (jwt.ExpiredSignatureError, "it has expired"),
    (jwt.ImmatureSignatureError, "it is not valid yet"),
    (jwt.InvalidAudienceError, "it is meant for another audience"),
    (jwt.InvalidIssuerError, "it comes from another issuer"),
    (jwt.MissingRequiredClaimError, "it lacks a claim that is needed: exp, iss, aud or sub"),
    (jwt.InvalidSignatureError, "its signature is wrong"),
)


_MOST_CALLERS = 10_000  # about 2 MB; an address that is forgotten begins with a full bucket
_IPV6_SITE = 64  # one site has 2^64 addresses: counting each alone would limit nobody


class TurnKeeper:
    """Gives each caller `rate` turns a second, and `burst` at once; forgets the longest silent."""

    def __init__(self, rate: float, burst: int, time: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._time = time
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> float:
        """0 if it is the caller's turn, else the seconds until it is."""
        now = self._time()
        left, since = self._left.pop(caller, (self._burst, now))
        # A clock may be set back: then nothing was gained, and nothing may be lost.
        left = min(left + max(now - since, 0.0) * self._rate, self._burst)
        taken = left >= 1.0
        self._left[caller] = (left - 1.0 if taken else left, now)
        if len(self._left) > _MOST_CALLERS:
            self._left.popitem(last=False)
        return 0.0 if taken else (1.0 - left) / self._rate


def address_of(request: Request) -> str:
    """Where a request comes from; of IPv6 the site (/64). Behind a proxy, what that says (`--proxied`)."""
    host = "unknown" if request.client is None else request.client.host
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 4 or address.is_loopback:
        return host
    return str(ipaddress.ip_network((address, _IPV6_SITE), strict=False))
