"""Lifting a delivery limit, and putting it back in force where no message has outgrown it.

Only one policy applies to a queue: the matching one of highest priority. Lifting a limit therefore
takes a policy for exactly that queue, above the one in force, with all keys of that one kept. Its
name is the record: `hopback-dlq-limit.<queue>`; deleting it puts the former policy back in force.

While a limit is lifted the queue counts on. A message that came back more often than the limit
allows stays until it comes back once more under that limit: then the broker removes it. So a
limit is restored only when it is certain that no such message is there.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from hopback.broker.emptiness import WATCH_S, Emptiness, Ledger
from hopback.broker.port import Connection, count_now
from hopback.errors import UnsafeOperation
from hopback.headers import counter_in
from hopback.topology.effective import applied_policy, delivery_limit, effective_arguments
from hopback.topology.model import Policy, Queue, QueueType
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from hopback.message import Delivery

DEFAULT_LIMIT_SINCE = BrokerVersion(4, 0)
"""From here on a quorum queue that names no limit has one of 20, and -1 means none."""
DLQ_LIMIT_PREFIX = "hopback-dlq-limit."
MAIN_LIMIT_PREFIX = "hopback-main-limit."


@dataclass(frozen=True, slots=True)
class LiftedLimit:
    """A limit that Hopback lifted: the policy that does it, and the queue it is for."""

    queue: str
    policy: Policy


def exactly(name: str) -> str:
    """A policy pattern that matches this name and no other."""
    return f"^{re.escape(name)}$"


def is_ours(policy: Policy) -> bool:
    """Whether Hopback made it, to lift a limit."""
    return policy.name.startswith((DLQ_LIMIT_PREFIX, MAIN_LIMIT_PREFIX))


def has_default_limit(queue: Queue, policies: Iterable[Policy], version: BrokerVersion) -> bool:
    """Whether only the broker's own default limits the deliveries of this queue."""
    if queue.type is not QueueType.QUORUM or version < DEFAULT_LIMIT_SINCE:
        return False
    return "x-delivery-limit" not in effective_arguments(queue, policies, version)


def lifting(prefix: str, queue: Queue, policies: Iterable[Policy]) -> Policy:
    """The policy that lifts the queue's limit and keeps everything else the policy in force says."""
    others = [policy for policy in policies if not is_ours(policy)]
    former = applied_policy(queue, others)
    kept = dict(former.definition) if former else {}
    return Policy(
        name=prefix + queue.name,
        pattern=exactly(queue.name),
        definition={**kept, "delivery-limit": -1},
        priority=former.priority + 1 if former else 1,
        apply_to="queues",
    )


def lifted_limits(policies: Iterable[Policy]) -> tuple[LiftedLimit, ...]:
    """Every limit that Hopback has lifted here, by the names of the policies."""
    return tuple(
        LiftedLimit(
            policy.name.removeprefix(DLQ_LIMIT_PREFIX).removeprefix(MAIN_LIMIT_PREFIX), policy
        )
        for policy in policies
        if is_ours(policy)
    )


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
    # The limits that will be in force again; none of a queue that is not there.
    limits: dict[str, int] = {}
    for one in taken:
        queue = live.queue(one.queue)
        if queue is None:
            continue
        others = [policy for policy in live.policies if policy.name != one.policy.name]
        told = effective_arguments(queue, others, connection.version)
        limit = delivery_limit(replace(queue, arguments=told), connection.version)
        if limit is not None:
            limits[queue.name] = limit
    if limits:
        emptiness = Emptiness(connection, management, vhost, watch_s=watch_s)
        await emptiness.refuse_held(tuple(limits))
    for name, limit in limits.items():
        await _refuse_spent(connection, name, limit)
    for one in taken:
        await management.delete_policy(vhost, one.policy.name)
    return taken


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
