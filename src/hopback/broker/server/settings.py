"""Settings of a server: addresses, users and limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopback.broker.server.users import Permission
    from hopback.durations import Duration

_MIB = 1024 * 1024
"""Limits are specified in mebibytes."""


class ClockKind(StrEnum):
    """The clock that is used for TTLs and timeouts."""

    SYSTEM = "system"
    """The clock of the system."""
    VIRTUAL = "virtual"
    """A clock that only changes when it is advanced."""
    AUTO = "auto"
    """A clock that jumps to the next deadline when the broker is idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits for clients. A client that exceeds a limit is blocked or refused."""

    connections: int = 4096
    channels: int = 2047
    """Maximum number of channels per connection. It is negotiated with `connection.tune`."""
    all_channels: int = 20_000
    declared: int = 100_000
    """Maximum number of queues, exchanges and bindings in total."""
    consumers: int = 10_000
    """Maximum number of consumers per channel."""
    memory_bytes: int = 1024 * _MIB
    """Maximum size of all stored messages. Publishers are blocked above it, as with RabbitMQ's
    memory alarm.
    """
    message_bytes: int | None = None
    """Maximum size of a body. None means the default of the emulated version."""
    frame_max: int = 131_072
    heartbeat: int = 60
    handshake_seconds: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Settings of a server.

    The management API is only started if `http_port` is given. `users` maps names to passwords.
    `guest` can only log in from the same machine. Users that are not in `permissions` have all
    permissions in the initial virtual hosts. Users that are not in `tags` are administrators.
    """

    host: str = "127.0.0.1"
    port: int = 5672
    http_port: int | None = 15672
    version: BrokerVersion = field(default_factory=lambda: BrokerVersion(4, 0))
    clock: ClockKind = ClockKind.SYSTEM
    users: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType({"guest": "guest"}), repr=False
    )
    vhosts: tuple[str, ...] = ("/",)
    permissions: Mapping[tuple[str, str], Permission] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """Maps pairs of user and virtual host to permissions."""
    tags: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """Tags of each user for the management API."""
    limits: ServerLimits = ServerLimits()
    seed: int | None = None
    """Seed for generated names. They are random if this is None."""
    consumer_timeout: Duration | None = 1800.0
