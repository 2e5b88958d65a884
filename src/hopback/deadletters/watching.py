"""What comes into a dead-letter queue while a job empties it, and whether the job had sent it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.headers.names import REDRIVE_JOB
from hopback.topology.model import Queue

if TYPE_CHECKING:
    from hopback.broker.port import Broker, Channel

__all__ = ["Arrivals", "Watch"]

_LOOKED_AT = 100


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What arrived since this run began; `came_back` None where it could not be looked at.

    `ready` is how many messages the queue has now.
    """

    count: int
    came_back: int | None
    ready: int


class Watch:
    """Compares a queue with what should be left in it.

    New messages stand behind old ones: they can be told apart only when nothing old is ready. Then
    they are looked at and given back, which costs them one delivery count, so only if `may_look`. A
    quorum queue hands out first what came back first: while a job holds some of it (`in_order` is
    then False), a look would put the new before the old.
    """

    def __init__(
        self,
        broker: Broker,
        queue: str,
        job: str,
        *,
        ready: int,
        seconds: float,
        may_look: bool,
        in_order: bool = False,
    ) -> None:
        self.seconds = seconds
        """How long the job waits to see whether what it has sent comes back."""
        self._broker = broker
        self._in_order = in_order
        self._queue = queue
        self._job = job
        self._ready = ready
        self._may_look = may_look

    async def look(self, taken: int, *, holding: bool) -> Arrivals:
        """What arrived; `taken` is how many the job has taken, `holding` whether it has some still."""
        connection = await self._broker.connect("hopback watch")
        try:
            channel = await connection.open_channel()
            state = await channel.declare_queue(Queue(self._queue), passive=True)
            expected = max(self._ready - taken, 0)
            arrived = max(state.messages - expected, 0)
            seen = None
            may_look = self._may_look and (self._in_order or not holding)
            if arrived and not expected and may_look:
                seen = await self._count_ours(channel, min(arrived, _LOOKED_AT))
            return Arrivals(arrived, 0 if not arrived else seen, state.messages)
        finally:
            await connection.close()

    async def _count_ours(self, channel: Channel, count: int) -> int:
        found = 0
        for _ in range(count):
            delivery = await channel.get(self._queue)
            if delivery is None:
                break
            found += delivery.properties.headers.get(REDRIVE_JOB) == self._job
        await channel.close()
        return found
