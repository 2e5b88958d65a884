"""Putting lifted delivery limits back in force, where no message has outgrown them.

While a limit is lifted the queue counts on. A message that came back more often than the limit
allows stays until it comes back once more under that limit: then the broker removes it. So a
limit is restored only when it is certain that no such message is there.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from hopback.broker.emptiness import WATCH_S, Emptiness, Ledger
from hopback.broker.policies import lifted_limits
from hopback.broker.port import count_now
from hopback.errors import UnsafeOperation
from hopback.headers import counter_in
from hopback.topology.effective import delivery_limit, effective_arguments

if TYPE_CHECKING:
    from collections.abc import Collection

    from hopback.broker.policies import LiftedLimit
    from hopback.broker.port import Connection
    from hopback.message import Delivery
    from hopback.topology.model import Policy, Topology

__all__ = ["PolicyLedger", "restore_limits", "spent"]

_LOOKED_AT = 10_000
"""How many messages are looked at, all at once in our hands, to learn their counts."""

_STILL_S = 30.0
"""How long the broker may take to hand over the next of them."""


class PolicyLedger(Ledger, Protocol):
    """A management client that also reads, sets and deletes policies."""

    async def policies(self, vhost: str) -> tuple[Policy, ...]:
        """The policies in force, without delay."""

    async def put_policy(self, vhost: str, policy: Policy) -> None:
        """Create the policy, or replace the one of the same name."""

    async def delete_policy(self, vhost: str, name: str) -> None:
        """Delete the policy; a missing one is no error."""


def spent(count: int, limit: int | None) -> bool:
    """Whether a message that came back so often has used up half of what the limit allows."""
    return limit is not None and count * 2 >= limit


async def restore_limits(
    connection: Connection,
    management: PolicyLedger,
    vhost: str = "/",
    queues: Collection[str] | None = None,
    *,
    watch_s: float = WATCH_S,
) -> tuple[LiftedLimit, ...]:
    """Take back the policies by which Hopback lifted delivery limits, all or those of `queues`.

    The policy that was in force before is in force again from then on. Returns what was taken.
    UnsafeOperation, with nothing changed, if a message came back so often that the limit would
    soon remove it, or if that cannot be known because somebody holds messages. Looking at them
    costs each one count.
    """
    live = await management.live_topology(vhost)
    found = lifted_limits(await management.policies(vhost))
    taken = tuple(one for one in found if queues is None or one.queue in queues)
    limits = {
        one.queue: limit
        for one in taken
        if (limit := _limit_without(one, live, connection)) is not None
    }
    if limits:
        emptiness = Emptiness(connection, management, vhost, watch_s=watch_s)
        await emptiness.refuse_held(tuple(limits))
    for queue, limit in limits.items():
        await _refuse_spent(connection, queue, limit)
    for one in taken:
        await management.delete_policy(vhost, one.policy.name)
    return taken


def _limit_without(lifted: LiftedLimit, live: Topology, connection: Connection) -> int | None:
    """The limit that will be in force again; None if there is none, or no such queue."""
    queue = live.queue(lifted.queue)
    if queue is None:
        return None
    others = [policy for policy in live.policies if policy.name != lifted.policy.name]
    told = effective_arguments(queue, others, connection.version)
    return delivery_limit(replace(queue, arguments=told), connection.version)


async def _refuse_spent(connection: Connection, queue: str, limit: int) -> None:
    """Look at every message's count, with the limit still lifted, and give all of them back."""
    state = await count_now(connection, queue)
    if state is None or not state.messages:
        return
    if state.messages > _LOOKED_AT:
        raise UnsafeOperation(
            f"nothing was changed: {queue!r} has {state.messages} messages, more than the"
            f" {_LOOKED_AT} whose counts can be looked at before its limit is restored. Re-drive,"
            " export or discard some first"
        )
    counts: list[int] = []
    news = asyncio.Event()

    def see(delivery: Delivery) -> None:
        counts.append(counter_in(delivery.properties.headers, "x-delivery-count"))
        news.set()

    channel = await connection.open_channel()
    try:
        await channel.qos(state.messages)
        await channel.consume(queue, see)
        while len(counts) < state.messages:
            news.clear()
            async with asyncio.timeout(_STILL_S):
                await news.wait()
    finally:
        await channel.close()
    # This look was one more return, and the next one must not come near the limit.
    near = [count + 1 for count in counts if spent(count + 1, limit)]
    if near:
        raise UnsafeOperation(
            f"nothing was changed: {len(near)} messages of {queue!r} came back up to {max(near)}"
            f" times, and with the limit of {limit} in force again RabbitMQ would remove them the"
            " next time. Re-drive, export or discard them first: a message that is published"
            " again is counted anew"
        )
