"""What a job does with each message: send it back, or write it down and let it go."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hopback.deadletters.archive import write_line
from hopback.deadletters.message import origin_queue, read_dead_letter
from hopback.deadletters.requests import TargetKind
from hopback.deadletters.targets import Aim, aim_at, target_flaw
from hopback.errors import ChannelClosed, ConnectionLost, UnsafeOperation
from hopback.headers.names import REDRIVE_JOB
from hopback.message import Message
from hopback.policy.redrive import Redriver, loop_guard

if TYPE_CHECKING:
    from asyncio import Future

    from hopback.broker.port import Broker, Channel, Connection
    from hopback.deadletters.discovery import DeadLetterQueue
    from hopback.deadletters.requests import Target
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

    def prepare(self, delivery: Delivery) -> object | LeftOut | None:
        """What is to be sent, or why nothing is; None if `explore` has to find out more first."""

    async def explore(self, delivery: Delivery) -> None:
        """Find out what `prepare` needs to know for messages like this one."""

    async def room(self) -> None:
        """Return when another one may be sent."""

    def send(self, prepared: object) -> Future[None]:
        """Do it, and return its fate."""

    async def flush(self) -> None:
        """Nothing more is sent for now: let every fate come to its end."""

    async def mend(self, *, anew: bool = False) -> BrokerError | None:
        """After a failure: be ready to send again, and tell what ended the line, if something did.

        `anew` asks for another channel even if the last one lives. Raises BrokerError if there is no
        line to be had.
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
        routes: RoutingTable | None = None,
    ) -> None:
        self._broker = broker
        self._source = source
        self._target = target
        self._occasion = occasion
        self._job = occasion.job
        self._max_redrives = max_redrives
        self._table = table
        self._routes = routes
        self._connection: Connection | None = None
        self._channel: Channel | None = None
        self._flaws: dict[Redrive, str] = {}
        self._redrivers: dict[tuple[str, Redrive], Redriver] = {}
        self._only: Redriver | None = None
        """Makes every message, where there is but one way."""

    def prepare(self, delivery: Delivery) -> Message | LeftOut | None:
        """The message as it goes back; None for a way that was not yet found to lead to a queue."""
        headers = delivery.properties.headers
        if headers and headers.get(REDRIVE_JOB) == self._job:
            return LeftOut("this job has sent it already, and it came back", guard=True)
        refusal = loop_guard(delivery, self._max_redrives) if headers else None
        if refusal is not None:
            return LeftOut(refusal, guard=True)
        redriver = self._only or self._redriver(delivery)
        if not isinstance(redriver, Redriver):
            return redriver
        try:
            return redriver.message(delivery)
        except UnsafeOperation as refused:
            return LeftOut(str(refused))

    def _redriver(self, delivery: Delivery) -> Redriver | LeftOut | None:
        """Who makes such messages, why nobody can, or None if that is not known yet."""
        aim = self._aim(delivery)
        if not isinstance(aim, Aim):
            return LeftOut(aim)
        flaw = self._flaws.get(aim.redrive)
        if flaw is not None:
            return LeftOut(flaw, stops=not self._is_per_message)
        return self._redrivers.get((aim.plan.queue, aim.redrive))

    async def explore(self, delivery: Delivery) -> None:
        """See whether the way of this message leads to a queue; once for each way."""
        aim = self._aim(delivery)
        if not isinstance(aim, Aim):
            return
        flaw = await target_flaw(await self._line(), aim.redrive, self._table)
        if flaw is not None:
            self._flaws[aim.redrive] = flaw
        else:
            made = Redriver(aim.plan, aim.redrive, self._occasion)
            self._redrivers[aim.plan.queue, aim.redrive] = made
            self._only = made if self._has_one_way else None

    def _aim(self, delivery: Delivery) -> Aim | str:
        origin = origin_queue(delivery, self._source)
        return aim_at(self._target, delivery, origin, self._source, self._routes)

    @property
    def _has_one_way(self) -> bool:
        is_same = self._target.kind is not TargetKind.ORIGIN_EXCHANGE
        return is_same and len(self._source.origins) == 1

    @property
    def _is_per_message(self) -> bool:
        """Whether different messages may go different ways."""
        named = self._target.exchange or self._target.routing_key
        return not named and len(self._source.plans) > 1

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

    async def mend(self, *, anew: bool = False) -> BrokerError | None:
        """A usable channel, a new one if the last has ended; what ended it."""
        fault = await _ended(self._channel)
        if fault is None and self._channel is not None and not anew:
            return None
        if self._channel is not None and fault is None:
            await self._channel.close()
        if fault is not None and not isinstance(fault, ChannelClosed):
            await self._hang_up()
        self._channel = await (await self._line()).open_channel()
        return fault

    async def _line(self) -> Connection:
        if self._connection is None:
            self._connection = await self._broker.connect("hopback re-drive")
        return self._connection

    async def _hang_up(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()

    async def close(self) -> None:
        """End the connection."""
        await self._hang_up()


async def _ended(channel: Channel | None) -> BrokerError | None:
    """Why the channel has ended; None while it lives."""
    if channel is None:
        return None
    ending = asyncio.ensure_future(channel.wait_closed())
    done, _ = await asyncio.wait({ending}, timeout=0.01)
    if done:
        return ending.result() or ConnectionLost("the channel was closed by us")
    ending.cancel()
    return None


class Sink(Protocol):
    """Where discarded messages are written before they go."""

    async def write(self, lines: bytes) -> None:
        """Return when the lines are safely written; OSError if they cannot be."""

    async def close(self) -> None:
        """Finish the file."""


class Discarding:
    """Lets messages go for good, each only after it was written to the sink, if there is one."""

    def __init__(self, sink: Sink | None, source: DeadLetterQueue) -> None:
        self._sink = sink
        self._source = source
        self._lines: list[tuple[bytes, Future[None]]] = []

    def prepare(self, delivery: Delivery) -> bytes | LeftOut | None:
        """The line to be written; empty where nothing is written."""
        if self._sink is None:
            return b""
        return write_line(delivery, read_dead_letter(delivery, 0, self._source))

    async def explore(self, delivery: Delivery) -> None:
        """There is nothing to find out."""

    async def room(self) -> None:
        """There always is."""

    def send(self, prepared: object) -> Future[None]:
        """Put the line to the others; its fate ends when they are written."""
        if not isinstance(prepared, bytes):
            raise UnsafeOperation(f"expected a line to write before a discard, got {prepared!r}")
        fate: Future[None] = asyncio.get_running_loop().create_future()
        self._lines.append((prepared, fate))
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

    async def mend(self, *, anew: bool = False) -> BrokerError | None:
        """There is no line to mend."""
        return None

    async def close(self) -> None:
        """Finish the file."""
        if self._sink is not None:
            await self._sink.close()
