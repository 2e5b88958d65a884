"""API keys. They are shown once and stored as a hash. Each has a role, queues and an expiry time.

Keys are random and have 32 bytes, so a single round of SHA-256 is as secure as a slow hash.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import msgspec

from hopback.errors import HopbackError
from hopback.ops.contract.roles import Grant, Principal
from hopback.sql.sqlite import MemoryDatabase

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.ops.http.settings import KeySettings
    from hopback.sql.database import SqlDatabase

PREFIX = "hbk_"
"""The prefix of all keys, which scanners for leaked secrets can find."""

_RANDOM_BYTES = 32  # random bytes in a key, which equals the output size of SHA-256
_LONGEST_NAME = 100  # characters, to fit in a line of a table. Longer names are refused.
_FRESH_S = 3.0
"""Seconds until keys are read again. A key that another process has revoked is accepted for this time."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key as it is stored. `expires` is in seconds since 1970."""

    id: str
    name: str
    hash: str
    grant: Grant
    expires: float | None = None
    made_by: str = ""
    made_at: float | None = None

    def principal(self) -> Principal:
        """Return the caller that uses this key."""
        return Principal(f"key:{self.id}", self.name, "key", (self.grant,), self.expires)

    def holds(self, now: float) -> bool:
        """Return True if the key has not expired."""
        return self.expires is None or now < self.expires


class BadKeyName(HopbackError):
    """A key name contains characters that the page, the audit or a terminal cannot show."""

    remedy: ClassVar[str] = "Give it a name without control characters."


def is_key_name(name: str) -> bool:
    return (
        1 <= len(name.strip()) <= _LONGEST_NAME
        and len(name) <= _LONGEST_NAME
        and name.isprintable()
    )


def hash_of(secret: str) -> str:
    return "sha256:" + hashlib.sha256(secret.encode()).hexdigest()


def new_key(
    name: str, grant: Grant, *, expires: float | None, made_by: str, now: float
) -> tuple[str, ApiKey]:
    """Generate a key, and return the secret to show and the key to store.

    Raises BadKeyName if the name is invalid.
    """
    if not is_key_name(name):
        raise BadKeyName("expected a key name of 1 to 100 printable characters")
    secret = PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    digest = hash_of(secret)
    return secret, ApiKey(digest[7:19], name, digest, grant, expires, made_by, now)


class KeyRing:
    """All keys, from the settings and those created at run time."""

    def __init__(self, given: Iterable[KeySettings], database: SqlDatabase) -> None:
        self._database = database
        self.lasts: bool = not isinstance(database, MemoryDatabase)
        """Whether new keys are still valid after a restart."""
        self._given = {
            setting.hash[7:19]: ApiKey(
                setting.hash[7:19],
                setting.name,
                setting.hash,
                Grant(setting.role, setting.queues, setting.broker),
                setting.expires,
                "settings",
            )
            for setting in given
        }
        self._kept: dict[str, ApiKey] = {}
        self._read_at = float("-inf")

    @property
    def keys(self) -> tuple[ApiKey, ...]:
        """All keys, starting with those from the settings."""
        return (*self._given.values(), *self._kept.values())

    async def refresh(self, now: float) -> None:
        """Read the keys from the database if the last time was some seconds ago."""
        if now - self._read_at >= _FRESH_S:
            found = await self._database.read(
                lambda execute: execute("SELECT id, document FROM hopback_api_keys ORDER BY id")
            )
            self._kept = {
                key_id: msgspec.json.decode(document, type=ApiKey) for key_id, document in found
            }
            self._read_at = now

    async def add(self, key: ApiKey) -> None:
        """Store a key, which makes it valid."""
        row = {"id": key.id, "document": msgspec.json.encode(key).decode()}
        await self._database.write(
            lambda execute: execute(
                "INSERT INTO hopback_api_keys (id, document) VALUES (:id, :document)", row
            )
        )
        self._kept[key.id] = key

    def of(self, broker: str, *, is_first: bool) -> tuple[ApiKey, ...]:
        """Return the keys that grant access to a broker."""
        return tuple(key for key in self.keys if key.grant.holds_at(broker, is_first=is_first))

    async def remove(self, key_id: str) -> ApiKey | None:
        """Revoke and return a key. Returns None if it does not exist or is defined in the settings."""
        found = self._kept.pop(key_id, None)
        await self._database.write(
            lambda execute: execute("DELETE FROM hopback_api_keys WHERE id = :id", {"id": key_id})
        )
        return found

    def get(self, key_id: str, now: float) -> ApiKey | None:
        """Return the key with this id if it is valid."""
        key = self._given.get(key_id) or self._kept.get(key_id)
        return key if key is not None and key.holds(now) else None

    def find(self, secret: str, now: float) -> ApiKey | None:
        """Return the key with this secret if it is valid."""
        digest = hash_of(secret)
        key = self.get(digest[7:19], now)
        return key if key is not None and hmac.compare_digest(key.hash, digest) else None
