"""Rights of a user in a virtual host: configure, write and read, by the names of queues and exchanges."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from hopback.broker.embedded.refusal import Refusal, access_refused, where

DEFAULT_EXCHANGE = "amq.default"
"""The name of the default exchange in permission checks."""


class Right(StrEnum):
    """One of the three permissions of RabbitMQ."""

    CONFIGURE = "configure"
    WRITE = "write"
    READ = "read"


class Rights(Protocol):
    """Answers for a user in a virtual host, based on the rights at the time of the call."""

    def allows(self, right: Right, name: str) -> bool:
        """Whether the user has that right on the queue or exchange of that name."""

    def allows_topic(self, right: Right, exchange: str, key: str) -> bool:
        """Whether the user may publish with that key to a topic exchange, or bind it."""


def access_refusal(right: Right | None, kind: str, name: str, vhost: str, user: str) -> Refusal:
    """403 for a queue or exchange. Older versions do not name the right."""
    named = "" if right is None else f"{right} "
    return access_refused(f"{named}access to {where(kind, name, vhost)} refused for user '{user}'")


def topic_refusal(right: Right | None, key: str, exchange: str, vhost: str, user: str) -> Refusal:
    """403 for a routing key of a topic exchange."""
    named = "" if right is None else f"{right} "
    place = where("exchange", exchange, vhost)
    return access_refused(f"{named}access to topic '{key}' in {place} refused for user '{user}'")
