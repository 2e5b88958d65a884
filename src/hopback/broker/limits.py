"""Remove the delivery limit of a queue, and restore it when this is safe.

Only the matching policy with the highest priority applies to a queue. To remove the limit of a
single queue, we need a policy that matches just this queue, has a higher priority and includes all
keys of the current policy. Its name is `hopback-dlq-limit.<queue>`, which also serves as a record
of the change. When it is deleted, the original policy applies again.

The queue still counts deliveries while there is no limit. If a message was returned more often than
the limit allows, it would be removed by the next return after the limit is restored. This must not
happen, so the limit is only restored if there are no such messages.
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
from hopback.topology.effective import delivery_limit, effective_arguments, effective_policy
from hopback.topology.model import Policy, Queue, QueueType
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from hopback.message import Delivery

DEFAULT_LIMIT_SINCE = BrokerVersion(4, 0)
"""Since this version, quorum queues have a default limit of 20, and -1 means no limit."""
DLQ_LIMIT_PREFIX = "hopback-dlq-limit."
MAIN_LIMIT_PREFIX = "hopback-main-limit."


@dataclass(frozen=True, slots=True)
class LiftedLimit:
    """A limit that was removed by Hopback: the policy and the queue."""

    queue: str
    policy: Policy


def exact_pattern(name: str) -> str:
    """Return a pattern that only matches this name."""
    return f"^{re.escape(name)}$"


def is_ours(policy: Policy) -> bool:
    """Return True if the policy was created by Hopback to remove a limit."""
    return policy.name.startswith((DLQ_LIMIT_PREFIX, MAIN_LIMIT_PREFIX))


def has_default_limit(queue: Queue, policies: Iterable[Policy], version: BrokerVersion) -> bool:
    """Return True if deliveries are only limited by the default of the broker."""
    if queue.type is not QueueType.QUORUM or version < DEFAULT_LIMIT_SINCE:
        return False
    return "x-delivery-limit" not in effective_arguments(queue, policies, version)


def lift_policy(prefix: str, queue: Queue, policies: Iterable[Policy]) -> Policy:
    """Return a policy that removes the limit and keeps all other keys of the current policy."""
    others = [policy for policy in policies if not is_ours(policy)]
    former = effective_policy(queue, others)
    kept = dict(former.definition) if former else {}
    return Policy(
        name=prefix + queue.name,
        pattern=exact_pattern(queue.name),
        definition={**kept, "delivery-limit": -1},
        priority=former.priority + 1 if former else 1,
        apply_to="queues",
    )


def find_lifted_limits(policies: Iterable[Policy]) -> tuple[LiftedLimit, ...]:
    """List all limits that were removed by Hopback. They are recognised by the names of the
    policies.
    """
    return tuple(
        LiftedLimit(
            policy.name.removeprefix(DLQ_LIMIT_PREFIX).removeprefix(MAIN_LIMIT_PREFIX), policy
        )
        for policy in policies
        if is_ours(policy)
    )


_LOOKED_AT = 10_000
"""Maximum number of messages to check. They are all held at the same time."""

_STILL_S = 30.0
"""Seconds to wait for the next message."""


class PolicyLedger(Ledger, Protocol):
    """The part of a management client that reads and writes policies."""

    async def policies(self, vhost: str) -> tuple[Policy, ...]:
        """Return the current policies. They are not out of date."""

    async def put_policy(self, vhost: str, policy: Policy) -> None:
        """Create or overwrite a policy."""

    async def delete_policy(self, vhost: str, name: str) -> None:
        """Delete a policy. Does nothing if it does not exist."""


def is_near_limit(count: int, limit: int | None) -> bool:
    """Return True if a count is at least half of the limit."""
    return limit is not None and count * 2 >= limit


async def restore_limits(
    connection: Connection,
    management: PolicyLedger,
    vhost: str = "/",
    queues: Collection[str] | None = None,
    *,
    watch_s: float = WATCH_S,
) -> tuple[LiftedLimit, ...]:
    """Restore delivery limits by deleting Hopback's policies, either all of them or those for
    `queues`.

    Reading the delivery counts of the messages increments each of them by one.

    Returns:
        The deleted policies.

    Raises:
        UnsafeOperation: If a message was returned almost as often as the limit allows, or if its count cannot
            be read because a client holds it or it is gone. Nothing has been changed.
    """
    live = await management.live_topology(vhost)
    found = find_lifted_limits(await management.policies(vhost))
    taken = tuple(one for one in found if queues is None or one.queue in queues)
    # The limits that will apply. Queues that do not exist are skipped.
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
    """Check the counts of all messages before the limit is restored, and requeue the messages."""
    state = await count_now(connection, queue)
    if state is None or not state.messages:
        return
    if state.messages > _LOOKED_AT:
        raise UnsafeOperation(
            f"no changes were made: {queue!r} has {state.messages} messages, more than the"
            f" {_LOOKED_AT} whose counts can be read before its limit is restored. Re-drive,"
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
            try:
                async with asyncio.timeout(_STILL_S):
                    await news.wait()
            except TimeoutError:
                raise UnsafeOperation(
                    f"no changes were made: {queue!r} had {state.messages} messages, and only"
                    f" {len(counts)} of them could be read. Others have expired or were taken by"
                    " a consumer. Run the command again"
                ) from None
    finally:
        await channel.close()
    # This check has returned every message once more, and the next return must not reach the limit.
    near = [count + 1 for count in counts if is_near_limit(count + 1, limit)]
    if near:
        raise UnsafeOperation(
            f"no changes were made: {len(near)} messages of {queue!r} were returned up to {max(near)}"
            f" times, and with the limit of {limit} in force RabbitMQ would remove them at the"
            " next return. Re-drive, export or discard them first: the count of a message that is"
            " published again starts at zero"
        )
