"""Export messages as lines of an archive without removing them."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from hopback.errors import BrokerError
from hopback.ops.brokers.browse_cost import check_cost
from hopback.ops.browse.memory import measure_memory
from hopback.ops.browse.turns import Turns
from hopback.ops.browse.walk import walk
from hopback.ops.messages.archive import write_line
from hopback.ops.messages.dead_letter import read_dead_letter
from hopback.ops.messages.filters import parse_filter
from hopback.text import count_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.browse.sessions import Sessions
    from hopback.ops.contract.requests import Selection


async def export_queue(
    broker: ManagedBroker, queue: str, selection: Selection, *, force: bool
) -> AsyncGenerator[bytes, None]:
    """Yield the matching messages of a queue as lines. At the end, all messages are requeued.

    Raises BrokerError at the end if some messages could not be read.
    """
    wanted, limit = parse_filter(selection.filter), selection.limit
    snapshot = await broker.snapshot()
    source, cost = snapshot.dead_letter_queue(queue), snapshot.cost(queue)
    check_cost(cost, force=force)
    place, now = 0, broker.clock.now()
    async with AsyncExitStack() as stack:
        if not cost.is_stream:
            await stack.enter_async_context(broker.read_alone(queue))
        ready = (await broker.depth(queue)).ready or 0
        count = ready if limit is None else min(limit, ready)
        messages = await stack.enter_async_context(walk(broker.new_connection, queue, count, cost))
        async for delivery in messages:
            place += 1
            dead_letter = read_dead_letter(delivery, place, source)
            if wanted.matches(dead_letter, delivery, now):
                yield write_line(delivery, dead_letter)
    if place < count and not cost.is_stream:
        raise BrokerError(
            f"{count - place:,} of {count_of(count)} in {queue!r} could not be read: other clients hold"
            " them, or they have left the queue"
        )


async def export_session(
    sessions: Sessions, queue: str, selection: Selection
) -> AsyncGenerator[bytes, None]:
    """Yield the selected messages of a session as lines. Raises NoSuch if it belongs to another queue."""
    session, turns = sessions.get(selection.session, queue), Turns()
    for dead_letter in (await session.choose(selection)).dead_letters:
        delivery = session.delivery(dead_letter.id)
        yield write_line(delivery, dead_letter)
        await turns.after(measure_memory(delivery))
