"""Users, virtual hosts and permissions in the management API.

`Caller` is the authenticated user. The tags of a user define which objects are visible, and the
permissions define which operations are allowed. This is the same as in RabbitMQ.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from hopback.broker.server.users import EVERYTHING, Account, Permission, TopicPermission

if TYPE_CHECKING:
    from hopback.broker.embedded.node import Node
    from hopback.broker.embedded.refusal import Refusal
    from hopback.broker.embedded.session import Session, SessionChannel
    from hopback.broker.embedded.stored import UnackedDelivery
    from hopback.broker.server.served import ServedBroker

NODE = "hopback@localhost"


def plain(value: object) -> object:
    """Convert the value of a field to JSON. Bytes are encoded as base64."""
    if isinstance(value, Mapping):
        return table(value)
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def table(value: Mapping[str, object]) -> dict[str, Any]:
    return {str(key): plain(inner) for key, inner in value.items()}


class Missing(Exception):
    """Raised when an object does not exist."""


class Denied(Exception):
    """Raised when the caller has no permission. The text is the same as RabbitMQ's."""


class _Nowhere:
    """The sink of a channel that is used for a single request. It has no consumers."""

    def deliver(self, taken: UnackedDelivery) -> None:
        """Never called."""

    def on_cancel(self, tag: str) -> None:
        """Never called."""

    def on_close(self, refusal: Refusal) -> None:
        """Does nothing, since the caller gets an exception."""


@dataclass(frozen=True, slots=True)
class VhostAccess:
    """The access of a caller to a virtual host. There is a new session for each request."""

    broker: ServedBroker
    node: Node
    user: str

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Open a session that is closed after the request."""
        rights = self.broker.rights(self.user, self.node.vhost)
        session = self.node.connect("management", self.user, rights)
        try:
            yield session
        finally:
            session.close()

    @contextmanager
    def channel(self) -> Iterator[SessionChannel]:
        """Open a channel that is closed after the request."""
        with self.session() as session:
            yield session.open_channel(_Nowhere())


class Caller:
    def __init__(self, broker: ServedBroker, name: str) -> None:
        self.broker = broker
        self.name = name
        account = broker.users.get(name)
        self.tags: tuple[()] | tuple[str, ...] = () if account is None else account.tags

    @property
    def _is_administrator(self) -> bool:
        return "administrator" in self.tags

    @property
    def is_monitor(self) -> bool:
        """Whether the caller can see all virtual hosts and connections."""
        return self._is_administrator or "monitoring" in self.tags

    def check_management(self) -> None:
        """Require any management tag."""
        if not self.is_monitor and not {"management", "policymaker"} & {*self.tags}:
            raise Denied("Not management user")

    def check_administrator(self) -> None:
        """Require the administrator tag."""
        if not self._is_administrator:
            raise Denied("Not administrator user")

    def check_monitor(self) -> None:
        if not self.is_monitor:
            raise Denied("Not monitor user")

    def check_policymaker(self) -> None:
        if not self._is_administrator and "policymaker" not in self.tags:
            raise Denied("User not authorised to access object")

    def check_own(self, user: str) -> None:
        if not self._is_administrator and user != self.name:
            raise Denied("User not authorised to access object")

    @property
    def visible(self) -> tuple[Node, ...]:
        """Return the virtual hosts that are visible to the caller."""
        return tuple(
            node for node in self.broker.nodes if self.is_monitor or self._may_enter(node.vhost)
        )

    def _may_enter(self, vhost: str) -> bool:
        return self.broker.permissions.get(self.name, vhost) is not None

    def access(self, vhost: str) -> VhostAccess:
        """Return the access to a virtual host. Raises `Missing` or `Denied` if there is none."""
        node = self.broker.vhosts.get(vhost)
        if node is None:
            raise Missing
        if not self._may_enter(vhost):
            if node.profile.passive_declare_needs_right:
                raise Missing("not_found")  # 4.3 does not reveal that the virtual host exists
            raise Denied("User not authorised to access virtual host")
        return VhostAccess(self.broker, node, self.name)


_Object: TypeAlias = dict[str, Any]
_Json: TypeAlias = Mapping[str, Any]
_MOST_VHOSTS = 1000
"""Stops programs that create virtual hosts in an endless loop."""


def users(broker: ServedBroker) -> list[_Object]:
    return [user(broker, name) for name in broker.users.names]


def user(broker: ServedBroker, name: str) -> _Object:
    """Return a user. Raises `Missing` if it does not exist."""
    found = broker.users.get(name)
    if found is None:
        raise Missing
    return {
        "name": name,
        "password_hash": found.password_hash,
        "hashing_algorithm": found.algorithm,
        "tags": list(found.tags),
        "limits": {},
    }


def permissions(broker: ServedBroker) -> list[_Object]:
    return [
        {
            "user": name,
            "vhost": place,
            "configure": each.configure,
            "write": each.write,
            "read": each.read,
        }
        for name, place, each in broker.permissions
    ]


def topic_permissions(broker: ServedBroker) -> list[_Object]:
    return [
        {
            "user": name,
            "vhost": place,
            "exchange": each.exchange,
            "write": each.write,
            "read": each.read,
        }
        for name, place, each in broker.permissions.topics()
    ]


def vhost(node: Node) -> _Object:
    described = "Default virtual host" if node.vhost == "/" else ""
    return {
        "name": node.vhost,
        "description": described,
        "tags": [],
        "metadata": {"description": described, "tags": []},
        "default_queue_type": "classic" if node.profile.version.major >= 4 else "undefined",
        "tracing": False,
        "cluster_state": {NODE: "running"},
    }


def put_vhost(broker: ServedBroker, name: str, creator: str) -> bool:
    """Create a virtual host and give its creator all permissions. Returns True if it was created."""
    if name not in broker.vhosts and len(broker.vhosts) >= _MOST_VHOSTS:
        raise ValueError(f"expected at most {_MOST_VHOSTS} virtual hosts, got more")
    new = broker.add_vhost(name)
    if new:
        broker.permissions.put(creator, name, EVERYTHING)
    return new


def put_user(broker: ServedBroker, name: str, asked: _Json) -> bool:
    """Create or replace a user. Returns True if it was created. A user that has no password cannot
    log in.
    """
    if "tags" not in asked:
        raise ValueError("tags_not_present")
    return broker.users.put(name, _account(asked))


def delete_users(broker: ServedBroker, asked: _Json) -> None:
    """Delete several users. Before 4.0, none of them are deleted if one does not exist."""
    if "users" not in asked:
        raise ValueError("[{key_missing,users}]")
    names = asked["users"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"expected users as a list of names, got {names!r}")
    if broker.settings.version.major < 4:
        for name in names:
            if broker.users.get(name) is None:
                raise ValueError(f"no_such_user: {name}")
    for name in names:
        broker.remove_user(name)


def _account(asked: _Json) -> Account:
    # Tags are a list, or a string separated by commas as in versions before 3.9.
    told = asked.get("tags", "")
    parts: Iterable[object] = told.split(",") if isinstance(told, str) else ()
    if isinstance(told, list):
        parts = told
    elif not isinstance(told, str):
        raise ValueError(f"expected tags as text or as a list, got {told!r}")
    found = []
    for part in parts:
        if not isinstance(part, str):
            raise ValueError(f"expected tags that are text, got {part!r}")
        if part.strip():
            found.append(part.strip())
    tags = tuple(found)
    hashed, password = asked.get("password_hash"), asked.get("password", "")
    if isinstance(hashed, str):
        algorithm = asked.get("hashing_algorithm", "rabbit_password_hashing_sha256")
        return Account(hashed, tags, str(algorithm))
    if not isinstance(password, str):
        raise ValueError("expected a password that is text")
    return Account.with_password(password, tags)


def put_permission(broker: ServedBroker, place: str, name: str, asked: _Json) -> bool:
    """Set the permissions of a user in a virtual host. Returns True if there were none."""
    configure, write, read = _patterns(asked, "configure", "write", "read")
    _check_both(broker, place, name)
    return broker.permissions.put(name, place, Permission(configure, write, read))


def put_topic_permission(broker: ServedBroker, place: str, name: str, asked: _Json) -> bool:
    """Set the permissions of a user for a topic exchange. Returns True if there were none."""
    exchange, write, read = _patterns(asked, "exchange", "write", "read")
    _check_both(broker, place, name)
    return broker.permissions.put_topic(name, place, TopicPermission(exchange, write, read))


def _patterns(asked: _Json, *names: str) -> tuple[str, ...]:
    missing = [name for name in names if name not in asked]
    if missing:
        raise ValueError(f"[{','.join(f'{{key_missing,{name}}}' for name in missing)}]")
    for name in names:
        if not isinstance(asked[name], str):
            raise ValueError(f"expected {name} as text, got {asked[name]!r}")
    return tuple(asked[name] for name in names)


def _check_both(broker: ServedBroker, place: str, name: str) -> None:
    if place not in broker.vhosts or broker.users.get(name) is None:
        raise ValueError("vhost_or_user_not_found")


def take_users(broker: ServedBroker, document: _Json, creator: str | None) -> None:
    """Import users, virtual hosts and permissions.

    If `creator` is None, the broker is starting. Users that were defined on the command line are
    kept in this case.
    """
    present = () if creator is not None else broker.users.names
    for entry in _entries(document, "vhosts"):
        name = _text(entry, "name", "vhosts")
        for owner in present:
            if name not in broker.vhosts:
                broker.permissions.put(owner, name, EVERYTHING)
        broker.add_vhost(name)
    for entry in _entries(document, "users"):
        name = _text(entry, "name", "users")
        bare = "password" not in entry and "password_hash" not in entry
        if name not in present and not (bare and broker.users.get(name) is not None):
            broker.users.put(name, _account(entry))
    for section, put in (
        ("permissions", put_permission),
        ("topic_permissions", put_topic_permission),
    ):
        for entry in _entries(document, section):
            name = _text(entry, "user", section)
            if name not in present:
                put(broker, _text(entry, "vhost", section), name, entry)


def _entries(document: _Json, section: str) -> list[_Json]:
    found = document.get(section, [])
    if not isinstance(found, list) or not all(isinstance(each, Mapping) for each in found):
        raise ValueError(f"expected {section} as a list of objects, got something else")
    return found


def _text(entry: _Json, key: str, section: str) -> str:
    found = entry.get(key)
    if not isinstance(found, str):
        raise ValueError(f"expected {section} with a {key} that is text, got {found!r}")
    return found
