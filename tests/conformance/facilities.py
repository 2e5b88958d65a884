"""Policies, restarts and alarms of the brokers under test."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from tests.harness.management import ManagementFailed

if TYPE_CHECKING:
    from hopback.broker.embedded import EmbeddedBroker
    from hopback.broker.server import BrokerServer
    from hopback.topology.model import Policy
    from tests.harness.management import Management
    from tests.harness.rabbitmq import RabbitNode

__all__ = [
    "EmbeddedNode",
    "EmbeddedPolicies",
    "HttpPolicies",
    "PrivateNode",
    "ServerNode",
    "ServerPolicies",
]


@dataclass(frozen=True, slots=True)
class HttpPolicies:
    """Policies of one virtual host, set through the HTTP API."""

    management: Management
    vhost: str

    async def set_policy(self, policy: Policy) -> None:
        """Set the policy. It applies when the call returns."""
        body = {
            "pattern": policy.pattern,
            "definition": dict(policy.definition),
            "priority": policy.priority,
            "apply-to": policy.apply_to,
        }
        await asyncio.to_thread(self.management.call, "PUT", self._path(policy.name), body)

    async def clear_policy(self, name: str) -> None:
        """Remove the policy. A missing one is ignored."""
        try:
            await asyncio.to_thread(self.management.call, "DELETE", self._path(name))
        except ManagementFailed as error:
            if error.status != 404:
                raise

    def _path(self, name: str) -> str:
        return f"/policies/{quote(self.vhost, safe='')}/{quote(name, safe='')}"


@dataclass(frozen=True, slots=True)
class PrivateNode:
    """A private node that rows may restart and put under alarm."""

    node: RabbitNode

    async def restart(self) -> None:
        await asyncio.to_thread(self.node.restart)

    async def raise_alarm(self) -> None:
        """Reduce the memory limit to one byte."""
        await self._watermark("absolute", "1")

    async def clear_alarm(self) -> None:
        """Restore the memory limit."""
        await self._watermark("0.4")

    async def _watermark(self, *value: str) -> None:
        await asyncio.to_thread(self.node.ctl, "set_vm_memory_high_watermark", *value)


@dataclass(frozen=True, slots=True)
class EmbeddedPolicies:
    broker: EmbeddedBroker

    async def set_policy(self, policy: Policy) -> None:
        self.broker.set_policy(policy)

    async def clear_policy(self, name: str) -> None:
        self.broker.clear_policy(name)


@dataclass(frozen=True, slots=True)
class EmbeddedNode:
    """An embedded broker that rows may restart and put under alarm."""

    broker: EmbeddedBroker

    async def restart(self) -> None:
        self.broker.restart()

    async def raise_alarm(self) -> None:
        """Block publishers."""
        self.broker.block(blocked=True)

    async def clear_alarm(self) -> None:
        """Unblock publishers."""
        self.broker.block(blocked=False)


@dataclass(frozen=True, slots=True)
class ServerPolicies:
    """Policies of the embedded broker on a socket."""

    server: BrokerServer

    async def set_policy(self, policy: Policy) -> None:
        self.server.set_policy(policy)

    async def clear_policy(self, name: str) -> None:
        self.server.clear_policy(name)


@dataclass(frozen=True, slots=True)
class ServerNode:
    """The embedded broker on a socket, which rows may restart and put under alarm."""

    server: BrokerServer

    async def restart(self) -> None:
        await self.server.restart()

    async def raise_alarm(self) -> None:
        """Block publishers."""
        self.server.block(blocked=True)

    async def clear_alarm(self) -> None:
        """Unblock publishers."""
        self.server.block(blocked=False)
