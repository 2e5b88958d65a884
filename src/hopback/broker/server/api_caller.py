"""Who calls the management API: what its tags let it see, what its permissions let it do, in JSON."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.broker.embedded.node import Node
    from hopback.broker.embedded.refusal import Refusal
    from hopback.broker.embedded.session import Session, SessionChannel
    from hopback.broker.embedded.stored import Taken
    from hopback.broker.server.served import ServedBroker

__all__ = ["NODE", "Caller", "Denied", "Missing", "VhostAccess", "plain", "table"]

NODE = "hopback@localhost"
"""The name of the only node."""


def plain(value: object) -> object:
    """A field value as JSON has it; bytes that are no text in base64."""
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
    """A field table as JSON has it."""
    return {str(key): plain(inner) for key, inner in value.items()}


class Missing(Exception):
    """There is no such thing here."""


class Denied(Exception):
    """The caller may not do that; in RabbitMQ's words."""


class _Nowhere:
    """Nobody listens to a channel that lasts for one request."""

    def deliver(self, taken: Taken) -> None:
        """There is no consumer."""

    def cancelled(self, tag: str) -> None:
        """There is no consumer."""

    def closed(self, refusal: Refusal) -> None:
        """Whoever asked is told by the exception."""


@dataclass(frozen=True, slots=True)
class VhostAccess:
    """One caller in one virtual host: what it does is done as by a connection of its own."""

    broker: ServedBroker
    node: Node
    user: str

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A connection that lasts for one request."""
        rights = self.broker.rights(self.user, self.node.vhost)
        session = self.node.connect("management", self.user, rights)
        try:
            yield session
        finally:
            session.close()

    @contextmanager
    def channel(self) -> Iterator[SessionChannel]:
        """A channel that lasts for one request."""
        with self.session() as session:
            yield session.open_channel(_Nowhere())


class Caller:
    """Somebody who has logged in."""

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
        """Whether it sees all virtual hosts and everybody's connections."""
        return self._is_administrator or "monitoring" in self.tags

    def check_management(self) -> None:
        """Only users with a tag that means something may ask anything."""
        if not self.is_monitor and not {"management", "policymaker"} & {*self.tags}:
            raise Denied("Not management user")

    def check_administrator(self) -> None:
        """For users, permissions, virtual hosts and the definitions of all."""
        if not self._is_administrator:
            raise Denied("Not administrator user")

    def check_monitor(self) -> None:
        """For nodes."""
        if not self.is_monitor:
            raise Denied("Not monitor user")

    def check_policymaker(self) -> None:
        """For policies."""
        if not self._is_administrator and "policymaker" not in self.tags:
            raise Denied("User not authorised to access object")

    def check_own(self, user: str) -> None:
        """For connections."""
        if not self._is_administrator and user != self.name:
            raise Denied("User not authorised to access object")

    @property
    def visible(self) -> tuple[Node, ...]:
        """The virtual hosts that it sees in lists."""
        return tuple(
            node for node in self.broker.nodes if self.is_monitor or self._may_enter(node.vhost)
        )

    def _may_enter(self, vhost: str) -> bool:
        return self.broker.permissions.get(self.name, vhost) is not None

    def access(self, vhost: str) -> VhostAccess:
        """What it reaches in a virtual host; `Missing` or `Denied` where that is nothing."""
        node = self.broker.vhosts.get(vhost)
        if node is None:
            raise Missing
        if not self._may_enter(vhost):
            if node.profile.passive_declare_needs_right:
                raise Missing("not_found")  # 4.3 does not say that it is there
            raise Denied("User not authorised to access virtual host")
        return VhostAccess(self.broker, node, self.name)
