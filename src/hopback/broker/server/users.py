"""Users and permissions.

A user has a name, a password and tags. `guest` can only log in from the same machine. Permissions
apply to a virtual host and consist of patterns for names or routing keys.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.broker.embedded.rights import Right
from hopback.endpoint import is_loopback
from hopback.topology.policy_pattern import pattern_flaw, pattern_matches
from hopback.wire.tables import decode_entries

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


@dataclass(frozen=True, slots=True)
class Permission:
    """Patterns for the names of queues and exchanges. An empty pattern does not match any name.

    Raises:
        ValueError: If RabbitMQ would reject a pattern, or if it is too complex for this broker.
    """

    configure: str
    write: str
    read: str

    def __post_init__(self) -> None:
        for pattern in (self.configure, self.write, self.read):
            _check(pattern)


@dataclass(frozen=True, slots=True)
class TopicPermission:
    """Patterns for the routing keys of a topic exchange."""

    exchange: str
    write: str
    read: str

    def __post_init__(self) -> None:
        for pattern in (self.write, self.read):
            _check(pattern)


def _check(pattern: str) -> None:
    flaw = pattern_flaw(pattern)
    if flaw is not None:
        raise ValueError(f"invalid_regexp: {pattern!r}: {flaw}")


EVERYTHING = Permission(".*", ".*", ".*")


class Permissions:
    """All permissions of a broker. A user that has no permissions in a virtual host cannot connect
    to it.
    """

    def __init__(self) -> None:
        self._named: dict[tuple[str, str], Permission] = {}
        self._topics: dict[tuple[str, str], dict[str, TopicPermission]] = {}

    def __iter__(self) -> Iterator[tuple[str, str, Permission]]:
        """Return the user, virtual host and permission of each entry."""
        return ((user, vhost, found) for (user, vhost), found in self._named.items())

    def get(self, user: str, vhost: str) -> Permission | None:
        return self._named.get((user, vhost))

    def put(self, user: str, vhost: str, permission: Permission) -> bool:
        """Set a permission. Returns True if there was none."""
        new = (user, vhost) not in self._named
        self._named[user, vhost] = permission
        return new

    def remove(self, user: str, vhost: str) -> bool:
        """Remove a permission. Returns True if there was one."""
        return self._named.pop((user, vhost), None) is not None

    def topics(self) -> Iterator[tuple[str, str, TopicPermission]]:
        """Return the user, virtual host and topic permission of each entry."""
        for (user, vhost), found in self._topics.items():
            for each in found.values():
                yield user, vhost, each

    def topic(self, user: str, vhost: str, exchange: str) -> TopicPermission | None:
        """Return the permission of a user for a topic exchange. None means that all routing keys
        are allowed.
        """
        return self._topics.get((user, vhost), {}).get(exchange)

    def put_topic(self, user: str, vhost: str, permission: TopicPermission) -> bool:
        """Set a topic permission. Returns True if there was none."""
        known = self._topics.setdefault((user, vhost), {})
        new = permission.exchange not in known
        known[permission.exchange] = permission
        return new

    def remove_topics(self, user: str, vhost: str) -> bool:
        """Remove all topic permissions of a user in a virtual host. Returns True if there were any."""
        return bool(self._topics.pop((user, vhost), None))

    def forget_user(self, user: str) -> None:
        self._named = {key: each for key, each in self._named.items() if key[0] != user}
        self._topics = {key: each for key, each in self._topics.items() if key[0] != user}

    def forget_vhost(self, vhost: str) -> None:
        self._named = {key: each for key, each in self._named.items() if key[1] != vhost}
        self._topics = {key: each for key, each in self._topics.items() if key[1] != vhost}


class UserRights:
    """Checks the current permissions of a user in a virtual host."""

    __slots__ = ("_permissions", "_user", "_vhost")

    def __init__(self, permissions: Permissions, user: str, vhost: str) -> None:
        self._permissions = permissions
        self._user = user
        self._vhost = vhost

    def allows(self, right: Right, name: str) -> bool:
        """Return True if the pattern for this permission matches the name."""
        permission = self._permissions.get(self._user, self._vhost)
        if permission is None:
            return False
        if right is Right.CONFIGURE:
            pattern = permission.configure
        else:
            pattern = permission.write if right is Right.WRITE else permission.read
        return _matches(pattern, name)

    def allows_topic(self, right: Right, exchange: str, key: str) -> bool:
        """Check a routing key. If there is no topic permission, all keys are allowed."""
        permission = self._permissions.topic(self._user, self._vhost, exchange)
        if permission is None:
            return True
        pattern = permission.write if right is Right.WRITE else permission.read
        pattern = pattern.replace("{username}", self._user).replace("{vhost}", self._vhost)
        return _matches(pattern, key)


def _matches(pattern: str, name: str) -> bool:
    if pattern == ".*":
        return True
    return pattern_matches(pattern or "^$", name) is True


MECHANISMS = "PLAIN AMQPLAIN"
"""The supported SASL mechanisms. AMQPLAIN is like PLAIN, but encoded as a table. It is common in
PHP clients.
"""

TAGS = ("administrator", "monitoring", "policymaker", "management")
"""Tags that are used by the management API. All others are ignored."""

_SALT_BYTES = 4  # RabbitMQ's format: the salt, followed by the hash of the salt and the password
_ALGORITHMS = {
    "rabbit_password_hashing_sha256": hashlib.sha256,
    "rabbit_password_hashing_sha512": hashlib.sha512,
}
_SHA256 = "rabbit_password_hashing_sha256"


@dataclass(frozen=True, slots=True)
class Account:
    """A user with its tags. The password hash is empty if the user cannot log in."""

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
        """Create a user with a password. If the password is empty, the user cannot log in."""
        if not password:
            return cls("", tuple(tags))
        salt = secrets.token_bytes(_SALT_BYTES)
        made = salt + hashlib.sha256(salt + password.encode()).digest()
        return cls(base64.b64encode(made).decode(), tuple(tags))

    def accepts(self, password: bytes) -> bool:
        raw = base64.b64decode(self.password_hash)
        if len(raw) <= _SALT_BYTES or not password:
            return False
        salt, known = raw[:_SALT_BYTES], raw[_SALT_BYTES:]
        return hmac.compare_digest(known, _ALGORITHMS[self.algorithm](salt + password).digest())


class Users:
    """Authenticates users. The methods return the name of the user, or None to refuse the login."""

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
        return tuple(self._accounts)

    def get(self, name: str) -> Account | None:
        return self._accounts.get(name)

    def put(self, name: str, account: Account) -> bool:
        """Create or replace a user. Returns True if it was created."""
        new = name not in self._accounts
        self._accounts[name] = account
        return new

    def remove(self, name: str) -> bool:
        """Delete a user. Returns True if it existed."""
        return self._accounts.pop(name, None) is not None

    def sasl(self, mechanism: str, response: bytes, peer: str) -> str | None:
        """Check the response of a client during the handshake."""
        match mechanism:
            case "PLAIN":
                parts = response.split(b"\0")
                return self._check(parts[1], parts[2], peer) if len(parts) == 3 else None
            case "AMQPLAIN":
                told = decode_entries(response).headers
                name, password = told.get("LOGIN"), told.get("PASSWORD")
                if isinstance(name, str) and isinstance(password, str):
                    return self._check(name.encode(), password.encode(), peer)
        return None

    def basic(self, header: str, peer: str) -> str | None:
        """Check the `Authorization` header of an HTTP request."""
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "basic":
            return None
        try:
            name, colon, password = base64.b64decode(token.strip(), validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return None
        return self._check(name, password, peer) if colon else None

    def _check(self, name: bytes, password: bytes, peer: str) -> str | None:
        try:
            user = name.decode()
        except UnicodeDecodeError:
            return None
        known = self._accounts.get(user)
        if known is None or not known.accepts(password):
            return None
        return None if user == "guest" and not is_loopback(peer) else user
