"""How a server is set up: whom it lets in, and how much it bears."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopback.broker.server.users import Permission

_MIB = 1024 * 1024
"""Bytes; limits are given in mebibytes."""


class ClockKind(StrEnum):
    """Whose time holds for what waits in the broker."""

    SYSTEM = "system"
    """The machine's."""
    VIRTUAL = "virtual"
    """It stands still until somebody advances it."""
    AUTO = "auto"
    """It stands still while anything can happen, and then is the next deadline at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What clients may use together, or each, before they are held back or refused."""

    connections: int = 4096
    channels: int = 2047
    """Of one connection; this is what it is told when it tunes."""
    all_channels: int = 20_000
    declared: int = 100_000
    """Queues, exchanges and bindings together."""
    consumers: int = 10_000
    """Of one channel."""
    memory_bytes: int = 1024 * _MIB
    """What messages may take; above it publishers are blocked, as by RabbitMQ's memory alarm."""
    message_bytes: int | None = None
    """The largest body; None: that of the version shown."""
    frame_max: int = 131_072
    heartbeat: int = 60
    handshake_seconds: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Everything that is chosen when a server starts.

    `http_port` None: no management API. `users` are names with their passwords; `guest` is let in
    from this machine only. Those for whom `permissions` say nothing may do everything in every
    virtual host of the start; those without `tags` of their own are administrators.
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
    """Decides the names that the broker makes up; None: chance does."""
    consumer_timeout: float | None = 1800.0
