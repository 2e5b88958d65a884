"""Bearer tokens: a JWT is believed only if its signature, issuer, audience and time are right.

The algorithm is taken from the settings, never from the token; the key is found by the token's `kid`
among those that the issuer publishes, which are fetched at most once in a while.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import jwt

from hopback.admin.roles import EVERYTHING, Grant, Principal, Role

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from hopback.admin.settings import GrantSettings, JwtSettings
    from hopback.clock import Clock

__all__ = ["BadToken", "Jwks", "KeySource", "SharedSecret", "TokenReader", "claim_at", "fetch_json"]

_FRESH_S = 300.0
_AGAIN_S = 10.0
_FETCH_S = 5.0
_MOST_BYTES = 256 * 1024
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
        return age > _FRESH_S or (kid not in self._keys and age > _AGAIN_S)

    async def _refresh(self) -> None:
        """Read the document; while it cannot be had, the keys that are known stay."""
        self._tried = self._clock.now()
        try:
            document = await self._fetch()
            keys = jwt.PyJWKSet.from_dict(document).keys
        except Exception as error:  # whatever the issuer answers, it is not our failure
            if not self._keys:
                raise BadToken("the keys of the issuer cannot be had now") from error
            return
        self._keys = {key.key_id: key for key in keys if key.public_key_use in (None, "sig")}


async def fetch_json(url: str) -> Any:
    """A JSON document from the net, bounded in time and size.

    Redirects are not followed and proxies of the environment not used: who answers here says whom we
    believe.
    """
    import httpx

    async with (
        httpx.AsyncClient(timeout=_FETCH_S, follow_redirects=False, trust_env=False) as client,
        client.stream("GET", url) as answer,
    ):
        answer.raise_for_status()
        body = b""
        async for part in answer.aiter_bytes():
            body += part
            if len(body) > _MOST_BYTES:
                raise BadToken("the issuer's document is too large")
    return json.loads(body)


class TokenReader:
    """Says who comes with a token."""

    def __init__(
        self, settings: JwtSettings, grants: Sequence[GrantSettings], keys: KeySource
    ) -> None:
        self._settings = settings
        self._grants = grants
        self._keys = keys

    async def read(self, token: str) -> Principal:
        """Who it is; BadToken says why it is not believed."""
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in self._settings.allowed:
                raise BadToken("it is signed with an algorithm that is not allowed")
            kid = header.get("kid")
            key = await self._keys.key_for(kid if isinstance(kid, str) else None)
            claims = self._decoded(token, key)
        except jwt.PyJWTError as error:
            raise BadToken(_in_words(error)) from error
        except (ArithmeticError, TypeError, ValueError) as error:  # by a time that is no time
            raise BadToken(_ODD_TIME) from error
        for name in ("exp", "nbf", "iat"):
            value = claims.get(name, 0)
            if not isinstance(value, int | float) or not 0 <= value <= _LAST_MOMENT:
                raise BadToken(_ODD_TIME)
        return self._principal(claims)

    def _decoded(self, token: str, key: Any) -> dict[str, Any]:
        settings = self._settings
        return jwt.decode(
            token,
            key,
            algorithms=list(settings.allowed),
            audience=settings.audience,
            issuer=settings.issuer,
            leeway=settings.leeway_seconds,
            options={"require": ["exp", "iss", "aud", "sub"]},
        )

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        subject = str(claims["sub"])
        name = claim_at(claims, self._settings.name_claim)
        found = claim_at(claims, self._settings.roles_claim)
        roles = [found] if isinstance(found, str) else found if isinstance(found, list) else []
        grants = tuple(self._granted(str(role) for role in roles))
        shown = name if isinstance(name, str) and name else subject
        return Principal(f"token:{subject}", shown, "token", grants, float(claims["exp"]))

    def _granted(self, roles: Iterable[str]) -> Iterable[Grant]:
        """By the table of the settings; without one, our own role names mean themselves."""
        for role in roles:
            if self._grants:
                yield from (each.grant for each in self._grants if each.claim == role)
            elif role in set(Role):
                yield Grant(Role(role), EVERYTHING)


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


def _in_words(error: Exception) -> str:
    found = (words for kind, words in _WORDS if isinstance(error, kind))
    return next(found, "it is not a token that can be read")
