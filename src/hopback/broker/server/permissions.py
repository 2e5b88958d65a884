"""Who may do what where: permissions on names and on topics, each for one user in one virtual host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.broker.embedded.rights import Right
from hopback.topology.policy_pattern import pattern_flaw, pattern_matches

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["EVERYTHING", "Permission", "Permissions", "TopicPermission", "UserRights"]


@dataclass(frozen=True, slots=True)
class Permission:
    """Three patterns for names of queues and exchanges; an empty one matches nothing.

    ValueError names a pattern that RabbitMQ would not take, or that is not evaluated here.
    """

    configure: str
    write: str
    read: str

    def __post_init__(self) -> None:
        for pattern in (self.configure, self.write, self.read):
            _check(pattern)


@dataclass(frozen=True, slots=True)
class TopicPermission:
    """Two patterns for routing keys of one topic exchange."""

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
    """All permissions of a broker. A user without one in a virtual host cannot enter it."""

    def __init__(self) -> None:
        self._named: dict[tuple[str, str], Permission] = {}
        self._topics: dict[tuple[str, str], dict[str, TopicPermission]] = {}

    def __iter__(self) -> Iterator[tuple[str, str, Permission]]:
        """User, virtual host and permission, of all."""
        return ((user, vhost, found) for (user, vhost), found in self._named.items())

    def get(self, user: str, vhost: str) -> Permission | None:
        """The permission of a user in a virtual host."""
        return self._named.get((user, vhost))

    def put(self, user: str, vhost: str, permission: Permission) -> bool:
        """Set it; whether it is new."""
        new = (user, vhost) not in self._named
        self._named[user, vhost] = permission
        return new

    def remove(self, user: str, vhost: str) -> bool:
        """Take it away; whether it was there."""
        return self._named.pop((user, vhost), None) is not None

    def topics(self) -> Iterator[tuple[str, str, TopicPermission]]:
        """User, virtual host and permission on a topic exchange, of all."""
        for (user, vhost), found in self._topics.items():
            for each in found.values():
                yield user, vhost, each

    def topic(self, user: str, vhost: str, exchange: str) -> TopicPermission | None:
        """The permission of a user on a topic exchange; None: every key is allowed."""
        return self._topics.get((user, vhost), {}).get(exchange)

    def put_topic(self, user: str, vhost: str, permission: TopicPermission) -> bool:
        """Set it; whether it is new."""
        known = self._topics.setdefault((user, vhost), {})
        new = permission.exchange not in known
        known[permission.exchange] = permission
        return new

    def remove_topics(self, user: str, vhost: str) -> bool:
        """Take all of the user's topic permissions there away; whether there was one."""
        return bool(self._topics.pop((user, vhost), None))

    def forget_user(self, user: str) -> None:
        """The user is gone."""
        self._named = {key: each for key, each in self._named.items() if key[0] != user}
        self._topics = {key: each for key, each in self._topics.items() if key[0] != user}

    def forget_vhost(self, vhost: str) -> None:
        """The virtual host is gone."""
        self._named = {key: each for key, each in self._named.items() if key[1] != vhost}
        self._topics = {key: each for key, each in self._topics.items() if key[1] != vhost}


class UserRights:
    """The rights of one user in one virtual host, as they are at the moment. Fills `Rights`."""

    __slots__ = ("_permissions", "_user", "_vhost")

    def __init__(self, permissions: Permissions, user: str, vhost: str) -> None:
        self._permissions = permissions
        self._user = user
        self._vhost = vhost

    def allows(self, right: Right, name: str) -> bool:
        """Whether the pattern of that right is found in the name."""
        permission = self._permissions.get(self._user, self._vhost)
        if permission is None:
            return False
        if right is Right.CONFIGURE:
            pattern = permission.configure
        else:
            pattern = permission.write if right is Right.WRITE else permission.read
        return _matches(pattern, name)

    def allows_topic(self, right: Right, exchange: str, key: str) -> bool:
        """Whether the key is allowed; every key is where nothing is said about the exchange."""
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
