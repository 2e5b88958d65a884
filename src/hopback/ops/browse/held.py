"""Find messages that cannot be read because a consumer or a browse session holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.ops.brokers.consumers import describe_holders
from hopback.ops.contract.values import HeldMessages
from hopback.text import whole_timestamp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.browse.session import BrowseSession
    from hopback.ops.browse.sessions import Sessions
    from hopback.ops.contract.values import Depth


async def held_by_others(
    broker: ManagedBroker, sessions: Sessions, depths: Mapping[str, Depth]
) -> tuple[HeldMessages, ...]:
    """Return the messages in queues that other consumers hold. `depths` must be counted over AMQP.

    The number of consumers is current, but a quorum queue updates the number of messages only every
    few seconds. A number that contradicts the number of ready messages is treated as unknown. If
    there is no consumer, it is outdated.
    """
    totals, found = await broker.totals(), dict[str, tuple[int, bool]]()
    for name, depth in depths.items():
        total, own = totals.get(name), sessions.count_held(name)
        unacked = (0 if total is None else total.unacked or 0) - own
        own_consumers = sum(session.consumers for session in sessions.active(name))
        has_consumer = (depth.consumers or 0) > own_consumers
        if unacked > 0 or has_consumer:
            missing = (0 if total is None else total.messages or 0) - (depth.ready or 0) - own
            found[name] = max(min(unacked, missing), 0), has_consumer
    channels = await broker.channels() if found else ()
    held = []
    for name, (count, has_consumer) in found.items():
        own_sizes = [session.taken for session in sessions.active(name)]
        holders = describe_holders(name, channels, own_sizes)
        if count or has_consumer or holders:
            held.append(HeldMessages(name, count or None, holders))
    return tuple(held)


def unread_part(session: BrowseSession) -> HeldMessages | None:
    """Return the messages whose content the session does not have, because they were skipped or are
    only held to keep the order.
    """
    view = session.view
    count = session.taken - view.held
    return HeldMessages(view.queue, count, (describe_session(session),)) if count else None


def describe_session(session: BrowseSession) -> str:
    """Describe a session with its author and the time when it was opened."""
    view = session.view
    by = view.by or "unknown"
    return f"the browse session {view.id} of {by} (open since {whole_timestamp(view.opened_at)})"
