"""What stands on the broker: dead-letter queues with depth, type, limit and cost of looking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hopback.broker.management.readings import QueueReading
    from hopback.topology.model import Policy, Topology

__all__ = ["LiveView"]


class LiveView(Protocol):
    """What a management client tells and does; the embedded broker has one, too."""

    async def queues(self, vhost: str) -> tuple[QueueReading, ...]:
        """Every queue with its numbers."""

    async def queue(self, vhost: str, name: str) -> QueueReading:
        """One queue."""

    async def live_topology(self, vhost: str) -> Topology:
        """What is on the broker now, with its policies."""

    async def policies(self, vhost: str) -> tuple[Policy, ...]:
        """The policies in force, without delay."""

    async def operator_policies(self, vhost: str) -> tuple[Policy, ...]:
        """The operator policies."""

    async def put_policy(self, vhost: str, policy: Policy) -> None:
        """Create the policy, or replace the one of the same name."""

    async def delete_policy(self, vhost: str, name: str) -> None:
        """Delete the policy; a missing one is no error."""
