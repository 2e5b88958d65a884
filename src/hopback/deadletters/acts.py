"""What a job does with each message: send it back, or write it down and let it go."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hopback.deadletters.archive import write_line
from hopback.deadletters.targets import Aim, aim_at, target_flaw
from hopback.errors import ChannelClosed, ConnectionLost, UnsafeOperation
from hopback.message import Message
from hopback.policy.redrive import redrive_message, redrive_refusal

if TYPE_CHECKING:
    from asyncio import Future

    from hopback.broker.port import Broker, Channel, Connection
    from hopback.deadletters.discovery import DeadLetterQueue
    from hopback.deadletters.letters import Letter
    from hopback.deadletters.targets import Target
    from hopback.errors import BrokerError
    from hopback.message import Delivery
    from hopback.policy.redrive import RedriveOccasion
    from hopback.topology.plan import Redrive
    from hopback.topology.routing import RoutingTable

__all__ = ["Act", "Discarding", "LeftOut", "Redriving", "Sink"]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Why a message is not touched. `stops`: no other could be, either."""

    reason: str
    guard: bool = False
    """Whether it is the loop guard that left it out: then it is skipped, not failed."""
    stops: bool = False


class Act(Protocol):
    """What is done with each message. A message is acked only after its fate has ended well."""

    async def prepare(self, delivery: Delivery, letter: Letter) -> object | LeftOut:
        """What is to be sent, or why nothing is."""

    async def room(self) -> None:
        """Return when another one may be sent."""

    def send(self, prepared: object) -> Future[None]:
        """Do it, and return its fate."""

    async def flush(self) -> None:
        """Nothing more is sent for now: let every fate come to its end."""

    async def mend(self) -> BrokerError | None:
        """After a failure: be ready to send again, and tell what ended the line, if something did.

        Raises BrokerError if there is no line to be had.
        """

    async def close(self) -> None:
        """Let go of everything."""


class Redriving:
    """Sends messages back, each mandatory, persistent and confirmed."""

    def __init__(
        self,
        broker: Broker,
        source: DeadLetterQueue,
        target: Target,
        occasion: RedriveOccasion,
        *,
        max_redrives: int | None,
        table: RoutingTable | None = None,
    ) -> None:
        self._broker = broker
        self._source = source
        self._target = target
        self._occasion = occasion
        self._max_redrives = max_redrives
        self._table = table
        self._connection: Connection | None = None
        self._channel: Channel | None = None
        self._flaws: dict[Redrive, str | None] = {}

    async def prepare(self, delivery: Delivery, letter: Letter) -> Message | LeftOut:
        """The message as it goes back; no way is used before it was found to lead to a queue."""
        if letter.redrive_job == self._occasion.job:
            return LeftOut("this job has sent it already, and it came back", guard=True)
        aim = aim_at(self._target, delivery, letter, self._source)
        if not isinstance(aim, Aim):
            return LeftOut(aim)
        refusal = redrive_refusal(delivery, aim.plan, max_redrives=self._max_redrives)
        if refusal is not None:
            return LeftOut(refusal, guard=True)
        flaw = await self._flaw(aim.redrive)
        if flaw is not None:
            return LeftOut(flaw, stops=len(self._source.plans) <= 1 or not self._is_per_message)
        try:
            return redrive_message(delivery, aim.plan, self._occasion, target=aim.redrive)
        except UnsafeOperation as refused:
            return LeftOut(str(refused))

    @property
    def _is_per_message(self) -> bool:
        """Whether different messages may go different ways."""
        return not (self._target.exchange or self._target.routing_key)

    async def _flaw(self, way: Redrive) -> str | None:
        if way not in self._flaws:
            self._flaws[way] = await target_flaw(await self._line(), way, self._table)
        return self._flaws[way]

    async def room(self) -> None:
        """Return when the channel takes another publish."""
        if self._channel is None:
            await self.mend()
        if self._channel is not None:
            await self._channel.room()

    def send(self, prepared: object) -> Future[None]:
        """Publish it, mandatory; the fate ends with the broker's confirm."""
        if self._channel is None or not isinstance(prepared, Message):
            raise ConnectionLost("there is no channel to publish on")
        return self._channel.publish(prepared)

    async def flush(self) -> None:
        """Confirms come by themselves."""

    async def mend(self) -> BrokerError | None:
        """A usable channel, a new one if the last has ended; what ended it."""
        fault = await _ended(self._channel)
        if self._channel is None or fault is not None:
            if self._connection is None or not isinstance(fault, ChannelClosed | None):
                await self._reconnect()
            self._channel = await (await self._line()).open_channel()
        return fault

    async def _line(self) -> Connection:
        if self._connection is None:
            self._connection = await self._broker.connect("hopback re-drive")
        return self._connection

    async def _reconnect(self) -> None:
        if self._connection is not None:
            await self._connection.close()
        self._connection = None
        await self._line()

    async def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            await self._connection.close()


async def _ended(channel: Channel | None) -> BrokerError | None:
    """Why the channel has ended; None while it lives."""
    if channel is None:
        return None
    ending = asyncio.ensure_future(channel.wait_closed())
    await asyncio.sleep(0)
    if ending.done():
        return ending.result() or ChannelClosed(200, "closed by us")
    ending.cancel()
    return None


class Sink(Protocol):
    """Where discarded messages are written before they go."""

    async def write(self, lines: bytes) -> None:
        """Return when the lines are safely written."""


class Discarding:
    """Lets messages go for good, each only after it was written to the sink, if there is one."""

    def __init__(self, sink: Sink | None) -> None:
        self._sink = sink
        self._lines: list[tuple[bytes, Future[None]]] = []

    async def prepare(self, delivery: Delivery, letter: Letter) -> bytes | LeftOut:
        """The line to be written."""
        return write_line(delivery, letter)

    async def room(self) -> None:
        """There always is."""

    def send(self, prepared: object) -> Future[None]:
        """Put the line to the others; its fate ends when they are written."""
        fate: Future[None] = asyncio.get_running_loop().create_future()
        self._lines.append((prepared if isinstance(prepared, bytes) else b"", fate))
        return fate

    async def flush(self) -> None:
        """Write what waits, then let it go."""
        waiting, self._lines = self._lines, []
        try:
            if self._sink is not None and waiting:
                await self._sink.write(b"".join(line for line, _ in waiting))
        except OSError as failed:
            problem = UnsafeOperation(
                f"nothing was discarded: the export was not written: {failed}"
            )
            for _, fate in waiting:
                fate.set_exception(problem)
            return
        for _, fate in waiting:
            fate.set_result(None)

    async def mend(self) -> BrokerError | None:
        """There is no line to mend."""
        return None

    async def close(self) -> None:
        """Nothing to let go of."""
