"""Who may come in: names, passwords and tags, and `guest` from this machine alone."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.endpoint import is_loopback
from hopback.wire.tables import decode_entries

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["MECHANISMS", "TAGS", "Account", "Users"]

MECHANISMS = "PLAIN AMQPLAIN"
"""What clients may choose from; the second is PLAIN in a field table, and PHP's favourite."""

TAGS = ("administrator", "monitoring", "policymaker", "management")
"""Those that mean something to the management API; others may be given and mean nothing."""

_SALT_BYTES = 4  # as RabbitMQ writes its hashes: the salt, then the hash of salt and password
_ALGORITHMS = {
    "rabbit_password_hashing_sha256": hashlib.sha256,
    "rabbit_password_hashing_sha512": hashlib.sha512,
}
_SHA256 = "rabbit_password_hashing_sha256"


@dataclass(frozen=True, slots=True)
class Account:
    """A user: the hash of its password, empty for one that cannot log in, and its tags."""

    password_hash: str
    tags: tuple[str, ...] = ()
    algorithm: str = _SHA256

    def __post_init__(self) -> None:
        if self.algorithm not in _ALGORITHMS:
            known = ", ".join(_ALGORITHMS)
            raise ValueError(f"expected a hashing_algorithm of {known}, got {self.algorithm!r}")
        try:
            base64.b64decode(self.password_hash, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError("expected a password_hash in base64, got something else") from error

    @classmethod
    def with_password(cls, password: str, tags: Iterable[str] = ()) -> Account:
        """A user with that password; an empty one lets nobody in."""
        if not password:
            return cls("", tuple(tags))
        salt = secrets.token_bytes(_SALT_BYTES)
        made = salt + hashlib.sha256(salt + password.encode()).digest()
        return cls(base64.b64encode(made).decode(), tuple(tags))

    def accepts(self, password: bytes) -> bool:
        """Whether it is the password of this user."""
        raw = base64.b64decode(self.password_hash)
        if len(raw) <= _SALT_BYTES or not password:
            return False
        salt, known = raw[:_SALT_BYTES], raw[_SALT_BYTES:]
        return hmac.compare_digest(known, _ALGORITHMS[self.algorithm](salt + password).digest())


class Users:
    """Checks who somebody claims to be; every answer is a name, or None to refuse."""

    def __init__(
        self, passwords: Mapping[str, str], tags: Mapping[str, Iterable[str]] | None = None
    ) -> None:
        given = tags or {}
        self._accounts = {
            name: Account.with_password(password, given.get(name, ("administrator",)))
            for name, password in passwords.items()
        }

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(self._accounts)

    def get(self, name: str) -> Account | None:
        """The user of that name."""
        return self._accounts.get(name)

    def put(self, name: str, account: Account) -> bool:
        """Make or replace a user; whether it is new."""
        new = name not in self._accounts
        self._accounts[name] = account
        return new

    def remove(self, name: str) -> bool:
        """Take a user away; whether it was there."""
        return self._accounts.pop(name, None) is not None

    def sasl(self, mechanism: str, response: bytes, peer: str) -> str | None:
        """Check the response of a client's handshake."""
        match mechanism:
            case "PLAIN":
                parts = response.split(b"\0")
                return self._checked(parts[1], parts[2], peer) if len(parts) == 3 else None
            case "AMQPLAIN":
                told = decode_entries(response).headers
                name, password = told.get("LOGIN"), told.get("PASSWORD")
                if isinstance(name, str) and isinstance(password, str):
                    return self._checked(name.encode(), password.encode(), peer)
        return None

    def basic(self, header: str, peer: str) -> str | None:
        """Check an HTTP `Authorization` header."""
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "basic":
            return None
        try:
            name, colon, password = base64.b64decode(token.strip(), validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return None
        return self._checked(name, password, peer) if colon else None

    def _checked(self, name: bytes, password: bytes, peer: str) -> str | None:
        try:
            user = name.decode()
        except UnicodeDecodeError:
            return None
        known = self._accounts.get(user)
        if known is None or not known.accepts(password):
            return None
        return None if user == "guest" and not is_loopback(peer) else user
