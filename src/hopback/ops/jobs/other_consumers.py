"""Find the consumers of a dead-letter queue that compete with a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.ops.brokers.consumers import describe_consumer, jobs_on

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.brokers.snapshot import BrokerSnapshot
    from hopback.ops.browse.sessions import Sessions
    from hopback.ops.jobs.job_record import JobRecord

_NAMED = 5
"""Consumers that a warning names. Further ones are left out."""


class OtherConsumers:
    """Describes the consumers of a queue that are not jobs of this store."""

    def __init__(
        self, broker: ManagedBroker, sessions: Sessions, store_id: Callable[[], Awaitable[str]]
    ) -> None:
        self._broker = broker
        self._sessions = sessions
        self._store_id = store_id

    async def find(
        self, queue: str, snapshot: BrokerSnapshot, active: JobRecord | None = None
    ) -> list[str]:
        """Describe the consumers of a dead-letter queue that are not jobs of this store.

        The consumer count of the broker decides, because the management API may list consumers late or not
        at all. `active` is the queue's job in this store.
        """
        if not snapshot.consumers:
            return []
        store = await self._store_id()
        named = [describe_consumer(each, store) for each in await self._broker.consumers_of(queue)]
        found = [each for each in named if each]
        if active is None and snapshot.consumers > len(found):
            # A quorum queue counts ended consumers that hold messages. Management does not list them.
            names = await self._broker.connection_names() or ()
            others = [job for job in jobs_on(queue, names) if job not in "".join(found)]
            if others:
                return [*found, *(f"job {job} of another store" for job in others)][:_NAMED]
        # A quorum queue counts the ended consumers of a session that holds messages.
        held_here = bool(self._sessions.active(queue))
        if active is None and (snapshot.is_classic(queue) or not held_here):
            unnamed = snapshot.consumers - len(found)
            why = (
                "that management does not name yet" if self._broker.management else "without a name"
            )
            found += [f"{unnamed} {why}"] if unnamed > 0 else []
        return found[:_NAMED]
