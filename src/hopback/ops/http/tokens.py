"""Verify bearer tokens, which are JSON Web Tokens of the issuer in the settings.

Signature, issuer, audience and times of a token must be valid. The settings define the allowed
algorithms, so the algorithm in the header of a token does not have to be trusted.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias
from urllib.parse import urlsplit

import jwt
from msgspec import Meta, Struct

from hopback.ops.contract.roles import EVERYTHING, Grant, Principal, Role
from hopback.text import clip, printable

if TYPE_CHECKING:
    from hopback.clock import Clock

ASYMMETRIC = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
_SHARED = ("HS256", "HS384", "HS512")
_Text = Annotated[str, Meta(min_length=1, max_length=500)]


class JwtSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How bearer tokens are verified: with published keys (`jwks_url`) or with a shared secret
    (`secret_env`).
    """

    issuer: _Text
    audience: _Text
    jwks_url: str = ""
    secret_env: str = ""
    algorithms: tuple[str, ...] = ()
    roles_claim: _Text = "roles"
    name_claim: _Text = "preferred_username"
    leeway_seconds: Annotated[int, Meta(ge=0, le=300)] = 30

    @property
    def usable_algorithms(self) -> tuple[str, ...]:
        """The accepted algorithms. They are all asymmetric or all use the shared secret. `none` is
        never accepted.
        """
        return self.algorithms or (("HS256",) if self.secret_env else ("RS256", "ES256"))

    def problem(self) -> str | None:
        """Return the first problem in these settings, or None."""
        if bool(self.jwks_url) == bool(self.secret_env):
            return "auth.jwt: expected either jwks_url or secret_env, got " + (
                "both" if self.jwks_url else "neither"
            )
        if self.jwks_url and not is_safe_address(self.jwks_url):
            return f"auth.jwt.jwks_url: expected an https:// address, got {self.jwks_url!r}"
        usable = _SHARED if self.secret_env else ASYMMETRIC
        wrong = [name for name in self.usable_algorithms if name not in usable]
        if wrong:
            return f"auth.jwt.algorithms: expected some of {', '.join(usable)}, got {wrong[0]!r}"
        return None


class GrantSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Grants access to callers whose tokens contain a role."""

    claim: _Text
    role: Role
    queues: tuple[_Text, ...] = EVERYTHING
    broker: str = ""
    """The name of a broker or a pattern. If it is empty, it refers to the first broker."""

    @property
    def grant(self) -> Grant:
        """The grant for callers with this role."""
        return Grant(self.role, self.queues, self.broker)


def is_safe_address(url: str) -> bool:
    """Return True if the URL uses HTTPS, or HTTP with a loopback address."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        if parts.scheme == "https":
            return bool(host)
        return parts.scheme == "http" and ipaddress.ip_address(host).is_loopback
    except ValueError:  # not a URL, or HTTP with a host name
        return False


_KEYS_FRESH_S = 300.0
"""Seconds until published keys are read again. Issuers publish new keys long before they use them."""
_AGAIN_S = 10.0
"""Seconds between requests for unknown key ids. Without this, every forged id would cause a request."""
_FETCH_S = 5.0
"""Seconds to wait for the issuer, because a caller is waiting for the result."""
_MOST_BYTES = 256 * 1024
"""Maximum size of the issuer's document in bytes, enough for a hundred keys with certificates."""
_LAST_MOMENT = 253_402_300_799
"""The end of the year 9999, in seconds since 1970. Python does not support later dates."""
_ODD_TIME = "one of its times (exp, nbf, iat) is not a valid time"


class BadToken(Exception):
    """A token was refused. The message is the reason and does not contain the token."""


KeySource: TypeAlias = Callable[[str | None], Awaitable[Any]]
"""A function that returns the key with an id. Raises BadToken if there is none."""


class Jwks:
    """The published keys of an issuer. `fetch` downloads them."""

    def __init__(self, fetch: Callable[[], Awaitable[Any]], clock: Clock) -> None:
        self._fetch = fetch
        self._clock = clock
        self._keys: dict[str | None, Any] = {}
        self._tried = float("-inf")
        self._lock = asyncio.Lock()

    async def __call__(self, kid: str | None) -> Any:
        """Return the key with this id. The keys are downloaded again if they are old or do not
        include it.
        """
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
        """Download the keys. If the issuer does not respond, the known keys stay valid."""
        self._tried = self._clock.now()
        try:
            document = await self._fetch()
            keys = jwt.PyJWKSet.from_dict(document).keys
        except Exception as error:  # the response of the issuer can be anything
            if not self._keys:
                raise BadToken("the keys of the issuer cannot be read now") from error
            return
        self._keys = {key.key_id: key for key in keys if key.public_key_use in (None, "sig")}


async def fetch_json(url: str, *, bearer: str = "") -> Any:
    """Download a JSON document from a trusted server, with limits for time and size.

    `bearer` is the token sent to the server. Redirects and proxies from the environment are not
    used, because the document decides which tokens are accepted.
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
    """The user that a token belongs to."""

    subject: str
    name: str
    roles: tuple[str, ...]


_LONGEST_SUBJECT = 255
"""Characters. OpenID Connect specifies this limit. A token with a longer subject is refused."""
_LONGEST_NAME = 200
"""Bytes of a display name. The rest is cut off."""


def token_reader(
    settings: JwtSettings, grants: Sequence[GrantSettings], secret: str, clock: Clock
) -> TokenReader:
    """Create a token reader that uses the shared secret, or published keys if there is no secret."""

    async def share(_kid: str | None) -> str:
        return secret

    keys = share if secret else Jwks(partial(fetch_json, settings.jwks_url), clock)
    return TokenReader(settings, grants, keys)


class TokenReader:
    """Verify tokens and identify callers."""

    def __init__(
        self, settings: JwtSettings, grants: Sequence[GrantSettings], keys: KeySource
    ) -> None:
        self._settings = settings
        self._grants = grants
        self._keys = keys

    @property
    def leeway_s(self) -> int:
        """Allowed clock difference in seconds."""
        return self._settings.leeway_seconds

    async def read(self, token: str) -> Principal:
        """Return the caller of a token. Raises BadToken if it is refused."""
        claims = await self.claims(token)
        found = self.person(claims)
        return self.principal_of(
            "token", found.subject, found.name, found.roles, until=float(claims["exp"])
        )

    async def claims(self, token: str) -> dict[str, Any]:
        """Return the claims of a token. Raises BadToken if it is refused."""
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in self._settings.usable_algorithms:
                raise BadToken("it is signed with an algorithm that is not allowed")
            kid = header.get("kid")
            key = await self._keys(kid if isinstance(kid, str) else None)
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=list(self._settings.usable_algorithms),
                audience=self._settings.audience,
                issuer=self._settings.issuer,
                leeway=self._settings.leeway_seconds,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.PyJWTError as error:
            words = (words for kind, words in _WORDS if isinstance(error, kind))
            raise BadToken(next(words, "it cannot be read")) from error
        except (ArithmeticError, TypeError, ValueError) as error:  # a claim is not a valid time
            raise BadToken(_ODD_TIME) from error
        for name in ("exp", "nbf", "iat"):
            value = claims.get(name, 0)
            if not isinstance(value, int | float) or not 0 <= value <= _LAST_MOMENT:
                raise BadToken(_ODD_TIME)
        return claims

    def person(self, claims: Mapping[str, Any]) -> Person:
        """Return the user that the claims describe, with the user's roles."""
        subject = str(claims["sub"])
        if not (subject.isprintable() and len(subject) <= _LONGEST_SUBJECT):
            raise BadToken(
                f"its `sub` is not a text of at most {_LONGEST_SUBJECT} printable characters"
            )
        name = claim_at(claims, self._settings.name_claim)
        found = claim_at(claims, self._settings.roles_claim)
        roles = [found] if isinstance(found, str) else found if isinstance(found, list) else []
        shown = name if isinstance(name, str) and name else subject
        # Names are written to the audit, to logs and to terminals.
        return Person(subject, clip(printable(shown), _LONGEST_NAME), tuple(map(str, roles)))

    def principal_of(
        self, kind: str, subject: str, name: str, roles: Iterable[str], *, until: float
    ) -> Principal:
        """Return a caller with these roles. `kind` is how the caller has signed in, and `until` is
        the expiry time.

        The settings can define grants for roles. If they don't, Hopback's own role names are used.
        """
        grants: list[Grant] = []
        for role in roles:
            if self._grants:
                grants += [each.grant for each in self._grants if each.claim == role]
            elif role in set(Role):
                grants.append(Grant(Role(role), EVERYTHING))
        return Principal(f"{kind}:{subject}", name, kind, tuple(grants), until)


def claim_at(claims: Mapping[str, Any], path: str) -> object:
    """Return the claim at a dotted path, or None if it is missing.

    A claim whose name contains dots takes precedence.
    """
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
    (jwt.MissingRequiredClaimError, "it lacks a required claim: exp, iss, aud or sub"),
    (jwt.InvalidSignatureError, "its signature is wrong"),
)
