"""API keys: shown once when they are made, kept as a hash, limited in role, queues and time.

A key is 32 random bytes, so one round of SHA-256 hides it as well as any slow hash would.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.admin.roles import Grant, Principal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.admin.settings import KeySettings

__all__ = ["PREFIX", "ApiKey", "KeyRing", "hash_of", "new_key"]

PREFIX = "hbk_"
"""What every key begins with, so that scanners for leaked secrets can find it."""

_RANDOM_BYTES = 32


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as it is kept. `expires` is in seconds since 1970."""

    id: str
    name: str
    hash: str
    grant: Grant
    expires: float | None = None
    made_by: str = ""
    made_at: float | None = None

    def principal(self) -> Principal:
        """Who comes with this key."""
        return Principal(f"key:{self.id}", self.name, "key", (self.grant,), self.expires)

    def holds(self, now: float) -> bool:
        """Whether it has not ended."""
        return self.expires is None or now < self.expires


def hash_of(secret: str) -> str:
    """The hash by which a key is known."""
    return "sha256:" + hashlib.sha256(secret.encode()).hexdigest()


def new_key(
    name: str, grant: Grant, *, expires: float | None, made_by: str, now: float
) -> tuple[str, ApiKey]:
    """A new key: what to show once, and what to keep."""
    secret = PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    digest = hash_of(secret)
    return secret, ApiKey(digest[7:19], name, digest, grant, expires, made_by, now)


class KeyRing:
    """The keys that open. Those of the settings stay; others can be added and taken away."""

    def __init__(self, given: Iterable[KeySettings] = ()) -> None:
        self._keys: dict[str, ApiKey] = {}
        for each in given:
            grant = Grant(each.role, each.queues)
            self.add(ApiKey(each.hash[7:19], each.name, each.hash, grant, each.expires, "settings"))

    @property
    def keys(self) -> tuple[ApiKey, ...]:
        """Every key, in the order in which they were added."""
        return tuple(self._keys.values())

    def add(self, key: ApiKey) -> None:
        """Let this key open."""
        self._keys[key.id] = key

    def remove(self, ident: str) -> ApiKey | None:
        """Let that key open no more; the key, if there was one."""
        return self._keys.pop(ident, None)

    def get(self, ident: str, now: float) -> ApiKey | None:
        """The key of that id, if it opens now."""
        key = self._keys.get(ident)
        return key if key is not None and key.holds(now) else None

    def find(self, secret: str, now: float) -> ApiKey | None:
        """The key that was shown, if it opens now."""
        digest = hash_of(secret)
        key = self.get(digest[7:19], now)
        return key if key is not None and hmac.compare_digest(key.hash, digest) else None
