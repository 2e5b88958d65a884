"""The permissions of a user in a virtual host. They apply to names of queues and exchanges."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from hopback.broker.embedded.refusal import Refusal, access_refused, where

DEFAULT_EXCHANGE = "amq.default"
"""Permission checks use this name for the default exchange."""


class Right(StrEnum):
    """The permissions of RabbitMQ."""

    CONFIGURE = "configure"
    WRITE = "write"
    READ = "read"


class Rights(Protocol):
    """Checks the current permissions of a user in a virtual host."""

    def allows(self, right: Right, name: str) -> bool:
        """Return True if the user has this permission for a queue or exchange."""

    def allows_topic(self, right: Right, exchange: str, key: str) -> bool:
        """Return True if the user may publish to a topic exchange with this key, or bind it."""


def access_refusal(right: Right | None, kind: str, name: str, vhost: str, user: str) -> Refusal:
    """Return 403 for a queue or exchange. Older versions do not mention the permission."""
    named = "" if right is None else f"{right} "
    return access_refused(f"{named}access to {where(kind, name, vhost)} refused for user '{user}'")


def topic_refusal(right: Right | None, key: str, exchange: str, vhost: str, user: str) -> Refusal:
    """Return 403 for a routing key of a topic exchange."""
    named = "" if right is None else f"{right} "
    place = where("exchange", exchange, vhost)
    return access_refused(f"{named}access to topic '{key}' in {place} refused for user '{user}'")
