"""Bearer tokens: JSON Web Tokens of an issuer that the settings name.

A token is accepted if its signature, issuer, audience and times are right. The settings specify the allowed
algorithms. The algorithm of the token's header is never trusted.
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
    """The check of bearer tokens, by published keys (`jwks_url`) or by a shared secret (`secret_env`)."""

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
        """The accepted algorithms, either asymmetric or shared-secret ones, never `none`."""
        return self.algorithms or (("HS256",) if self.secret_env else ("RS256", "ES256"))

    def problem(self) -> str | None:
        """Return the first error, or None if there is none."""
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
    """The grant for a role of a token."""

    claim: _Text
    role: Role
    queues: tuple[_Text, ...] = EVERYTHING
    broker: str = ""
    """Name or pattern of brokers. Empty means the first broker."""

    @property
    def grant(self) -> Grant:
        """The grant for callers with this role."""
        return Grant(self.role, self.queues, self.broker)


def is_safe_address(url: str) -> bool:
    """Whether an address is HTTPS, or plain HTTP on a loopback address."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        if parts.scheme == "https":
            return bool(host)
        return parts.scheme == "http" and ipaddress.ip_address(host).is_loopback
    except ValueError:  # not a URL, or a host name with plain HTTP
        return False


_KEYS_FRESH_S = 300.0
"""Seconds that published keys are used. Issuers publish a key long before they sign with it."""
_AGAIN_S = 10.0
"""Seconds between two requests for an unknown key id, so that forged ids do not cause a request each."""
_FETCH_S = 5.0
"""Seconds for the issuer's answer, because a caller waits for it."""
_MOST_BYTES = 256 * 1024
"""Bytes of the issuer's document: a hundred keys with certificates. A larger one is refused."""
_LAST_MOMENT = 253_402_300_799
"""The end of the year 9999 in seconds, beyond which Python has no dates."""
_ODD_TIME = "one of its times (exp, nbf, iat) is not a valid time"


class BadToken(Exception):
    """A token is refused. The text has the reason, without the token."""


KeySource: TypeAlias = Callable[[str | None], Awaitable[Any]]
"""Returns the key of an id that verifies tokens. Raises BadToken if there is none."""


class Jwks:
    """The published keys of an issuer. `fetch` returns their document."""

    def __init__(self, fetch: Callable[[], Awaitable[Any]], clock: Clock) -> None:
        self._fetch = fetch
        self._clock = clock
        self._keys: dict[str | None, Any] = {}
        self._tried = float("-inf")
        self._lock = asyncio.Lock()

    async def __call__(self, kid: str | None) -> Any:
        """Return the key of that id. Read the document again if it is old or lacks the key."""
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
        """Read the document. While the issuer does not answer, the known keys stay valid."""
        self._tried = self._clock.now()
        try:
            document = await self._fetch()
            keys = jwt.PyJWKSet.from_dict(document).keys
        except Exception as error:  # the issuer may answer anything
            if not self._keys:
                raise BadToken("the keys of the issuer cannot be read now") from error
            return
        self._keys = {key.key_id: key for key in keys if key.public_key_use in (None, "sig")}


async def fetch_json(url: str, *, bearer: str = "") -> Any:
    """Return a JSON document of a trusted server, bounded in time and size. `bearer` is its credential.

    Redirects are not followed and proxies of the environment are not used, because the document decides
    which tokens are accepted.
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
    """The user of a token."""

    subject: str
    name: str
    roles: tuple[str, ...]


_LONGEST_SUBJECT = 255
"""Characters, as OpenID Connect specifies. A token with a longer subject is refused."""
_LONGEST_NAME = 200
"""Bytes of a display name. The rest is cut off."""


def token_reader(
    settings: JwtSettings, grants: Sequence[GrantSettings], secret: str, clock: Clock
) -> TokenReader:
    """Check tokens with the shared secret, or with the issuer's published keys if there is no secret."""

    async def share(_kid: str | None) -> str:
        return secret

    keys = share if secret else Jwks(partial(fetch_json, settings.jwks_url), clock)
    return TokenReader(settings, grants, keys)


class TokenReader:
    """Identifies callers by their tokens."""

    def __init__(
        self, settings: JwtSettings, grants: Sequence[GrantSettings], keys: KeySource
    ) -> None:
        self._settings = settings
        self._grants = grants
        self._keys = keys

    @property
    def leeway_s(self) -> int:
        """Allowed difference between clocks, in seconds."""
        return self._settings.leeway_seconds

    async def read(self, token: str) -> Principal:
        """Return the caller of a token. Raises BadToken."""
        claims = await self.claims(token)
        found = self.person(claims)
        return self.principal_of(
            "token", found.subject, found.name, found.roles, until=float(claims["exp"])
        )

    async def claims(self, token: str) -> dict[str, Any]:
        """Return the claims of a token. Raises BadToken."""
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
        """Return the user and the roles of the claims."""
        subject = str(claims["sub"])
        if not (subject.isprintable() and len(subject) <= _LONGEST_SUBJECT):
            raise BadToken(
                f"its `sub` is not a text of at most {_LONGEST_SUBJECT} printable characters"
            )
        name = claim_at(claims, self._settings.name_claim)
        found = claim_at(claims, self._settings.roles_claim)
        roles = [found] if isinstance(found, str) else found if isinstance(found, list) else []
        shown = name if isinstance(name, str) and name else subject
        # Names appear in the audit, in logs and on terminals.
        return Person(subject, clip(printable(shown), _LONGEST_NAME), tuple(map(str, roles)))

    def principal_of(
        self, kind: str, subject: str, name: str, roles: Iterable[str], *, until: float
    ) -> Principal:
        """Return a caller with these roles who is signed in by `kind` until the given time.

        The grants of the settings define the roles. Without grants, Hopback's role names are used.
        """
        grants: list[Grant] = []
        for role in roles:
            if self._grants:
                grants += [each.grant for each in self._grants if each.claim == role]
            elif role in set(Role):
                grants.append(Grant(Role(role), EVERYTHING))
        return Principal(f"{kind}:{subject}", name, kind, tuple(grants), until)


def claim_at(claims: Mapping[str, Any], path: str) -> object:
    """Return the claim at a dotted path, or None if it is missing. A claim with dots in its name takes
    precedence.
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
