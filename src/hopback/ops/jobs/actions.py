"""The actions of a job on one message: re-drive, discard, and re-drive with a changed body."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from hopback.errors import (
    BrokerError,
    ChannelClosed,
    ConnectionLost,
    HopbackError,
    UnsafeOperation,
)
from hopback.headers.names import REDRIVE_JOB
from hopback.message import Message
from hopback.ops.brokers.targets import Aim, aim_at, target_flaw
from hopback.ops.contract.requests import DiscardRequest, Edit, TargetKind
from hopback.ops.jobs.edited_copy import changed_delivery
from hopback.ops.messages.archive import FileSink, run_file, write_line
from hopback.ops.messages.dead_letter import origin_queue, read_dead_letter
from hopback.ops.messages.patch import PatchFailed, apply_patch
from hopback.policy.redrive import (
    RawMessage,
    RedriveOccasion,
    Redriver,
    loop_guard,
)

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable, Iterable

    from hopback.broker.port import Broker, Channel, Connection
    from hopback.message import Delivery
    from hopback.ops.brokers.discovery import DeadLetterQueue
    from hopback.ops.brokers.snapshot import BrokerSnapshot
    from hopback.ops.contract.patch import PatchOperation
    from hopback.ops.contract.requests import Target
    from hopback.ops.jobs.journal import JobRecord
    from hopback.topology.plan import Redrive
    from hopback.topology.routing import RoutingTable


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Why a message is not touched. `stops`: no other could be, either."""

    reason: str
    guard: bool = False
    """Whether it is the loop guard that left it out: then it is skipped, not failed."""
    stops: bool = False


class Action(Protocol):
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

    async def reopen(self, *, anew: bool = False) -> BrokerError | None:
        """After a failure: be ready to send again, and tell what ended the channel, if something did.

        `anew` asks for another channel even if the last one lives. BrokerError if there is no
        connection.
        """

    async def close(self) -> None:
        """Let go of everything."""


class RedriveAction:
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
        self._publish_raw: Callable[[str, str, bytes, bytes], Future[None]] | None = None
        """How the channel takes properties that are encoded already, if it does."""
        self._only: Redriver | None = None
        """Makes every message, where there is but one way."""

    def prepare(self, delivery: Delivery) -> Message | RawMessage | LeftOut | None:
        """The message as it goes back; None for a way that was not yet found to lead to a queue."""
        # What was never re-driven before goes back as the bytes it came as; the loop guard has no say.
        if self._only is not None and self._publish_raw is not None and self._max_redrives != 0:
            made = self._only.raw_message(delivery)
            if made is not None:
                return made
        headers = delivery.properties.headers
        if headers and headers.get(REDRIVE_JOB) == self._job:
            return LeftOut("this job has sent it already, and it came back", guard=True)
        refusal = loop_guard(delivery, self._max_redrives) if headers else None
        if refusal is not None:
            return LeftOut(refusal, guard=True)
        redriver = self._only
        if redriver is None:
            aim = self._aim(delivery)
            if not isinstance(aim, Aim):
                return LeftOut(aim)
            flaw = self._flaws.get(aim.redrive)
            if flaw is not None:
                named = self._target.exchange or self._target.routing_key
                may_differ = not named and len(self._source.plans) > 1
                return LeftOut(flaw, stops=not may_differ)
            redriver = self._redrivers.get((aim.plan.queue, aim.redrive))
        try:
            return None if redriver is None else redriver.message(delivery)
        except UnsafeOperation as refused:
            return LeftOut(str(refused))

    async def explore(self, delivery: Delivery) -> None:
        """See whether the way of this message leads to a queue; once for each way."""
        aim = self._aim(delivery)
        if not isinstance(aim, Aim):
            return
        flaw = await target_flaw(await self._connect(), aim.redrive, self._table)
        if flaw is not None:
            self._flaws[aim.redrive] = flaw
        else:
            made = Redriver(aim.plan, aim.redrive, self._occasion)
            self._redrivers[aim.plan.queue, aim.redrive] = made
            is_same = self._target.kind is not TargetKind.ORIGIN_EXCHANGE
            self._only = made if is_same and len(self._source.origins) == 1 else None

    def _aim(self, delivery: Delivery) -> Aim | str:
        origin = origin_queue(delivery, self._source)
        return aim_at(self._target, delivery, origin, self._source, self._routes)

    async def room(self) -> None:
        """Return when the channel takes another publish."""
        if self._channel is None:
            await self.reopen()
        if self._channel is not None:
            await self._channel.room()

    def send(self, prepared: object) -> Future[None]:
        """Publish it, mandatory; the fate ends with the broker's confirm."""
        if isinstance(prepared, RawMessage) and self._publish_raw is not None:
            exchange, routing_key, body, raw_properties = prepared
            return self._publish_raw(exchange, routing_key, raw_properties, body)
        if self._channel is None or not isinstance(prepared, Message):
            raise ConnectionLost("there is no channel to publish on")
        return self._channel.publish(prepared)

    async def flush(self) -> None:
        """Confirms come by themselves."""

    async def reopen(self, *, anew: bool = False) -> BrokerError | None:
        """A usable channel, a new one if the last has ended; what ended it."""
        fault = await _why_closed(self._channel)
        if fault is None and self._channel is not None and not anew:
            return None
        if self._channel is not None and fault is None:
            await self._channel.close()
        if fault is not None and not isinstance(fault, ChannelClosed):
            await self._disconnect()
        self._channel = await (await self._connect()).open_channel()
        self._publish_raw = getattr(self._channel, "publish_raw", None)
        return fault

    async def _connect(self) -> Connection:
        if self._connection is None:
            self._connection = await self._broker.connect("hopback re-drive")
        return self._connection

    async def _disconnect(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()

    async def close(self) -> None:
        """End the connection."""
        await self._disconnect()


async def _why_closed(channel: Channel | None) -> BrokerError | None:
    """Why the channel has ended; None while it lives."""
    if channel is None:
        return None
    ending = asyncio.ensure_future(channel.wait_closed())
    done, _ = await asyncio.wait({ending}, timeout=0.01)
    if done:
        return ending.result() or ConnectionLost("the channel was closed by us")
    ending.cancel()
    return None


class DiscardAction:
    """Lets messages go for good, each only after it was written to the sink, if there is one."""

    def __init__(self, sink: FileSink | None, source: DeadLetterQueue) -> None:
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

    async def reopen(self, *, anew: bool = False) -> BrokerError | None:
        """There is no channel to open again."""
        return None

    async def close(self) -> None:
        """Finish the file."""
        if self._sink is not None:
            await self._sink.close()


class ChangingAction:
    """Changes each body by a patch, writes the original down, and sends the changed message back."""

    def __init__(
        self,
        sending: RedriveAction,
        patch: Iterable[PatchOperation],
        sink: FileSink,
        source: DeadLetterQueue,
    ) -> None:
        self._sending = sending
        self._patch = tuple(patch)
        self._sink = sink
        self._source = source
        self._waiting: list[tuple[bytes, Message | RawMessage, Future[None]]] = []

    def prepare(self, delivery: Delivery) -> tuple[bytes, Message | RawMessage] | LeftOut | None:
        """The original as a line and the changed message, or why there is none."""
        try:
            body = apply_patch(delivery.body, self._patch)
        except PatchFailed as failed:
            return LeftOut(str(failed))
        made = self._sending.prepare(changed_delivery(delivery, Edit(body=body)))
        if made is None or isinstance(made, LeftOut):
            return made
        return write_line(delivery, read_dead_letter(delivery, 0, self._source)), made

    async def explore(self, delivery: Delivery) -> None:
        """See whether the way of this message leads to a queue."""
        await self._sending.explore(delivery)

    async def room(self) -> None:
        """Return when the channel takes another publish."""
        await self._sending.room()

    def send(self, prepared: object) -> Future[None]:
        """Put it to the others; its fate is that of the message once its original is written."""
        if not isinstance(prepared, tuple):
            raise UnsafeOperation(f"expected an original and its change, got {prepared!r}")
        fate: Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((*prepared, fate))
        return fate

    async def flush(self) -> None:
        """Write the originals that wait, then send their changes."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        try:
            await self._sink.write(b"".join(line for line, _, _ in waiting))
        except OSError as failed:
            problem = UnsafeOperation(f"nothing was sent: an original was not written: {failed}")
            for _, _, fate in waiting:
                fate.set_exception(problem)
            return
        for _, message, fate in waiting:
            await self._sending.room()
            try:
                sent = self._sending.send(message)
            except HopbackError as failed:
                fate.set_exception(failed)
                continue
            sent.add_done_callback(partial(_pass_on, told=fate))

    async def reopen(self, *, anew: bool = False) -> BrokerError | None:
        """Be ready to send again; what ended the channel."""
        return await self._sending.reopen(anew=anew)

    async def close(self) -> None:
        """Finish the file and end the connection."""
        await self._sink.close()
        await self._sending.close()


def _pass_on(done: Future[None], *, told: Future[None]) -> None:
    if told.done():
        return
    if done.cancelled():
        told.cancel()
    elif (failed := done.exception()) is not None:
        told.set_exception(failed)
    else:
        told.set_result(None)


def action_of(job: JobRecord, snapshot: BrokerSnapshot, broker: Broker) -> Action:
    """Return the action of a job."""
    spec, request, queue = job.spec, job.spec.request, snapshot.one(job.queue)
    if isinstance(request, DiscardRequest):
        sink = FileSink(run_file(spec.export_to, job.run)) if spec.export_to else None
        return DiscardAction(sink, queue)
    occasion = RedriveOccasion(
        now=job.created,
        job=job.id,
        user_id=spec.by.id,
        user_name=spec.by.name,
        operation=spec.operation or job.id,
        stamped=bool(spec.stamped),
    )
    redrive = RedriveAction(
        broker,
        queue,
        request.target,
        occasion,
        max_redrives=request.max_redrives,
        table=snapshot.table(),
        routes=snapshot.routes(),
    )
    if not request.change:
        return redrive
    originals = FileSink(run_file(spec.export_to, job.run))
    return ChangingAction(redrive, request.change, originals, queue)
