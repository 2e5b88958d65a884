"""API keys: shown once when they are made, kept as a hash, limited in role, queues and time.

A key is 32 random bytes, so one round of SHA-256 hides it as well as any slow hash would.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

import msgspec

from hopback.errors import HopbackError
from hopback.ops.contract.roles import Grant, Principal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.ops.http.settings import KeySettings

PREFIX = "hbk_"
"""What every key begins with, so that scanners for leaked secrets can find it."""

_RANDOM_BYTES = 32  # as many as SHA-256 has: no key is guessed
_LONGEST_NAME = 100  # one line of a table
_FRESH_S = (
    3.0  # a key that was deleted elsewhere opens for so long; one small read for all requests
)


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


class BadKeyName(HopbackError):
    """A key's name would not be seen as it is: on the page, in the audit, on a terminal."""

    remedy: ClassVar[str] = "Give it a name without control characters."


def is_key_name(name: str) -> bool:
    """Whether a key may be called this."""
    return (
        1 <= len(name.strip()) <= _LONGEST_NAME
        and len(name) <= _LONGEST_NAME
        and name.isprintable()
    )


def hash_of(secret: str) -> str:
    """The hash by which a key is known."""
    return "sha256:" + hashlib.sha256(secret.encode()).hexdigest()


def new_key(
    name: str, grant: Grant, *, expires: float | None, made_by: str, now: float
) -> tuple[str, ApiKey]:
    """A new key: what to show once, and what to keep; BadKeyName if nobody could read its name."""
    if not is_key_name(name):
        raise BadKeyName(
            "expected a name for the key of 1 to 100 characters that can be printed, got another"
        )
    secret = PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    digest = hash_of(secret)
    return secret, ApiKey(digest[7:19], name, digest, grant, expires, made_by, now)


class KeyStore(Protocol):
    """Where keys are kept that were made while the service ran: documents by id."""

    async def all(self) -> dict[str, str]:
        """Every document, by the id of its key."""

    async def add(self, key_id: str, document: str) -> None:
        """Keep a document."""

    async def remove(self, key_id: str) -> None:
        """Forget a document; none there is no error."""


class MemoryKeys:
    """A store for one process; it ends with it."""

    def __init__(self) -> None:
        self._documents: dict[str, str] = {}

    async def all(self) -> dict[str, str]:
        """Every document, by the id of its key."""
        return dict(self._documents)

    async def add(self, key_id: str, document: str) -> None:
        """Keep a document."""
        self._documents[key_id] = document

    async def remove(self, key_id: str) -> None:
        """Forget a document."""
        self._documents.pop(key_id, None)


class KeyRing:
    """The keys that open: those of the settings, and those in the store, read again in a while."""

    def __init__(self, given: Iterable[KeySettings] = (), store: KeyStore | None = None) -> None:
        self._store: KeyStore = store or MemoryKeys()
        self.lasts: bool = store is not None
        """Whether a key that is made now outlives the process."""
        self._given = {
            said.hash[7:19]: ApiKey(
                said.hash[7:19],
                said.name,
                said.hash,
                Grant(said.role, said.queues, said.broker),
                said.expires,
                "settings",
            )
            for said in given
        }
        self._kept: dict[str, ApiKey] = {}
        self._read_at = float("-inf")

    @property
    def keys(self) -> tuple[ApiKey, ...]:
        """Every key: those of the settings first."""
        return (*self._given.values(), *self._kept.values())

    async def refresh(self, now: float) -> None:
        """Know what other processes have made and taken away, at most a few seconds late."""
        if now - self._read_at >= _FRESH_S:
            found = await self._store.all()
            self._kept = {
                key_id: msgspec.json.decode(document, type=ApiKey)
                for key_id, document in found.items()
            }
            self._read_at = now

    async def add(self, key: ApiKey) -> None:
        """Let this key open."""
        await self._store.add(key.id, msgspec.json.encode(key).decode())
        self._kept[key.id] = key

    def of(self, broker: str, *, is_first: bool) -> tuple[ApiKey, ...]:
        """The keys whose grants hold for that broker."""
        return tuple(key for key in self.keys if key.grant.holds_at(broker, is_first=is_first))

    async def remove(self, key_id: str) -> ApiKey | None:
        """Let that key open no more; the key, if there was one. Those of the settings stay."""
        found = self._kept.pop(key_id, None)
        await self._store.remove(key_id)
        return found

    def get(self, key_id: str, now: float) -> ApiKey | None:
        """The key of that id, if it opens now."""
        key = self._given.get(key_id) or self._kept.get(key_id)
        return key if key is not None and key.holds(now) else None

    def find(self, secret: str, now: float) -> ApiKey | None:
        """The key that was shown, if it opens now."""
        digest = hash_of(secret)
        key = self.get(digest[7:19], now)
        return key if key is not None and hmac.compare_digest(key.hash, digest) else None
