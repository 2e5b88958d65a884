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
"""Bytes. Limits are given in mebibytes."""


class ClockKind(StrEnum):
    """The clock that the broker's deadlines follow."""

    SYSTEM = "system"
    """The machine's."""
    VIRTUAL = "virtual"
    """Stops until it is advanced."""
    AUTO = "auto"
    """Jumps to the next deadline as soon as the broker is idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits per client or for all clients. A client above a limit is blocked or refused."""

    connections: int = 4096
    channels: int = 2047
    """Per connection. Sent to the client in `connection.tune`."""
    all_channels: int = 20_000
    declared: int = 100_000
    """Queues, exchanges and bindings together."""
    consumers: int = 10_000
    """Per channel."""
    memory_bytes: int = 1024 * _MIB
    """Bytes of stored messages. Above it publishers are blocked, as by RabbitMQ's memory alarm."""
    message_bytes: int | None = None
    """Bytes of the largest body. None uses the limit of the emulated version."""
    frame_max: int = 131_072
    heartbeat: int = 60
    handshake_seconds: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The settings of a server at its start.

    Without `http_port` the server has no management API. `users` maps names to passwords. `guest` may log in
    only from this machine. Users without `permissions` have all permissions in every initial virtual host.
    Users without `tags` are administrators.
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
    """By user and virtual host."""
    tags: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """By user, for the management API."""
    limits: ServerLimits = ServerLimits()
    seed: int | None = None
    """Seed of generated names. None makes them random."""
    consumer_timeout: Duration | None = 1800.0
