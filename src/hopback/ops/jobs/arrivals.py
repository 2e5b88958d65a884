"""Count the messages that arrive in a dead-letter queue while a job works on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.headers.names import REDRIVE_JOB
from hopback.ops.browse.walk import walk
from hopback.ops.contract.values import Price
from hopback.topology.model import Queue

if TYPE_CHECKING:
    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.brokers.snapshot import BrokerSnapshot
    from hopback.ops.jobs.job_record import JobRecord

_LOOKED_AT = 10_000
"""Maximum number of arrived messages to read per count. If more arrived, the number of returned messages is a
minimum.
"""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Messages that arrived since this run began.

    `came_back` is the number of those messages that the job had sent, or None if it could not be counted. It
    was counted among `looked_at` arrived messages. `ready` is the number of messages in the queue.
    """

    count: int
    came_back: int | None
    ready: int
    looked_at: int = 0


class ArrivalCounter:
    """Compares the number of messages in a queue with the number that the job has left there.

    New messages are behind old ones, so they can be read only if no old message is ready. They are not read
    if reading could remove a message. A quorum queue delivers requeued messages first: while a job holds some
    of them, reading would requeue new messages ahead of old ones.
    """

    def __init__(self, broker: ManagedBroker, job: JobRecord, snapshot: BrokerSnapshot) -> None:
        self._broker = broker
        self._job = job
        self._ready = snapshot.ready
        self._is_classic = snapshot.is_classic(job.queue)
        self._cost = snapshot.cost(job.queue)
        self._may_look = job.spec.force or self._cost.price is not Price.REFUSED

    async def count(self, taken: int, *, holding: bool) -> Arrivals:
        """Count arrivals. `taken` is the number of messages that the job has taken from the queue.

        `holding` is whether it still holds some of them.
        """
        queue = self._job.queue
        async with self._broker.query() as connection:
            channel = await connection.open_channel()
            state = await channel.declare_queue(Queue(queue), passive=True)
        expected = max(self._ready - taken, 0)
        arrived = max(state.messages - expected, 0)
        if not arrived:
            return Arrivals(0, 0, state.messages)
        if expected or not self._may_look or (holding and not self._is_classic):
            return Arrivals(arrived, None, state.messages)
        seen = found = 0
        count = min(arrived, _LOOKED_AT)
        async with walk(self._broker.query, queue, count, self._cost) as messages:
            async for delivery in messages:
                seen += 1
                found += delivery.properties.headers.get(REDRIVE_JOB) == self._job.id
        return Arrivals(arrived, found, state.messages, seen)
