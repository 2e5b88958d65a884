"""The actions of jobs: re-driving messages, re-driving them with changed bodies, and discarding
them.

A message is only acked after the future returned by its action has succeeded.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from hopback.broker.port import Broker, Channel, Connection, RawChannel
from hopback.errors import BrokerError, ChannelClosed, ConnectionLost, UnsafeOperation
from hopback.headers.names import REDRIVE_JOB
from hopback.message import Delivery, Message
from hopback.ops.brokers.targets import Aim, aim_at, target_flaw
from hopback.ops.contract.requests import DiscardRequest, Edit, RedriveRequest, TargetKind
from hopback.ops.jobs.edited_copy import change_delivery
from hopback.ops.messages.archive import FileSink, run_file, write_line
from hopback.ops.messages.dead_letter import origin_queue, read_dead_letter
from hopback.ops.messages.patch import PatchFailed, apply_patch
from hopback.policy.redrive import RawMessage, RedriveOccasion, Redriver, loop_guard

if TYPE_CHECKING:
    from asyncio import Future

    from hopback.ops.brokers.discovery import DeadLetterQueue
    from hopback.ops.brokers.snapshot import BrokerSnapshot
    from hopback.ops.jobs.job_record import JobRecord
    from hopback.topology.plan import Redrive


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Why a message stays in its queue.

    If `is_skipped` is True, the job has decided to skip it, and it is not counted as failed. If
    `stops` is True, the same reason applies to all other messages.
    """

    reason: str
    is_skipped: bool = False
    stops: bool = False


class ArchivedMessage(NamedTuple):
    """A line to write to a file, and the message to publish afterwards. It is None for a discard."""

    line: bytes
    message: Message | RawMessage | None


Prepared: TypeAlias = Message | RawMessage | ArchivedMessage
"""A message that was prepared for `send`."""


class Action:
    """What a job does with messages. Subclasses must implement `prepare` and `send`."""

    async def prepare(self, delivery: Delivery) -> Prepared | LeftOut:
        """Return the message for `send`, or why it stays. Raises BrokerError if its target cannot
        be checked.
        """
        raise NotImplementedError

    async def room(self) -> None:
        """Wait until another message can be sent."""

    def send(self, prepared: Prepared) -> Future[None]:
        """Start the action. The future completes with its result."""
        raise NotImplementedError

    async def flush(self) -> None:
        """Complete actions that are waiting to be combined with others."""

    async def reopen(self, *, anew: bool = False) -> BrokerError | None:
        """Get ready for other messages after a failure. Returns the error that closed the channel,
        if any.

        If `anew` is True, a new channel is always opened. Raises BrokerError if the broker is
        unavailable.
        """
        return None

    async def close(self) -> None:
        """Close connections and files."""


def action_of(job: JobRecord, snapshot: BrokerSnapshot, broker: Broker) -> Action:
    request = job.spec.request
    if isinstance(request, DiscardRequest):
        return DiscardAction(job, snapshot.dead_letter_queue(job.queue))
    action = ChangingAction if request.change else RedriveAction
    return action(job, request, snapshot, broker)


class RedriveAction(Action):
    """Publish each message as mandatory and persistent. The action succeeds when the broker confirms it."""

    def __init__(
        self, job: JobRecord, request: RedriveRequest, snapshot: BrokerSnapshot, broker: Broker
    ) -> None:
        spec, submission = job.spec, job.spec.submission
        self._broker = broker
        self._request = request
        self._queue = snapshot.dead_letter_queue(job.queue)
        self._live_routes = snapshot.live_routes()
        self._known_routes = snapshot.known_routes()
        self._occasion = RedriveOccasion(
            now=job.created,
            job=job.id,
            user_id=spec.by.id,
            user_name=spec.by.name,
            operation=submission.operation or job.id,
            stamped=bool(submission.stamped),
        )
        self._connection: Connection | None = None
        self._channel: Channel | None = None
        self._raw: RawChannel | None = None
        """The channel, if it can publish encoded properties."""
        self._flaws: dict[Redrive, str | None] = {}
        self._redrivers: dict[tuple[str, Redrive], Redriver] = {}
        self._only: Redriver | None = None
        """Used for all messages if they have the same target."""

    async def prepare(self, delivery: Delivery) -> Prepared | LeftOut:
        most = self._request.max_redrives or None
        # If a message was never re-driven, its encoded properties are kept, and the loop guard
        # accepts it.
        if self._only is not None and self._raw is not None:
            made = self._only.raw_message(delivery)
            if made is not None:
                return made
        headers = delivery.properties.headers
        if headers and headers.get(REDRIVE_JOB) == self._occasion.job:
            return LeftOut("this job has already sent it, and it returned", is_skipped=True)
        refusal = loop_guard(delivery, most) if headers else None
        if refusal is not None:
            return LeftOut(refusal, is_skipped=True)
        redriver = self._only or await self._find_redriver(delivery)
        if isinstance(redriver, LeftOut):
            return redriver
        try:
            return redriver.message(delivery)
        except UnsafeOperation as refused:
            return LeftOut(str(refused))

    async def _find_redriver(self, delivery: Delivery) -> Redriver | LeftOut:
        """Return the redriver for the target of a message. Each target is checked only once."""
        origin, target = origin_queue(delivery, self._queue), self._request.target
        aim = aim_at(target, delivery, origin, self._queue, self._known_routes)
        if not isinstance(aim, Aim):
            return LeftOut(aim)
        if aim.redrive not in self._flaws:
            self._flaws[aim.redrive] = await target_flaw(
                await self._connect(), aim.redrive, self._live_routes
            )
        flaw = self._flaws[aim.redrive]
        if flaw is not None:
            is_named = bool(target.exchange or target.routing_key)
            return LeftOut(flaw, stops=is_named or len(self._queue.plans) <= 1)
        key = aim.plan.queue, aim.redrive
        if key not in self._redrivers:
            self._redrivers[key] = Redriver(aim.plan, aim.redrive, self._occasion)
        is_same = target.kind is not TargetKind.ORIGIN_EXCHANGE
        self._only = self._redrivers[key] if is_same and len(self._queue.origins) == 1 else None
        return self._redrivers[key]

    async def room(self) -> None:
        if self._channel is None:
            await self.reopen()
        if self._channel is not None:
            await self._channel.room()

    def send(self, prepared: Prepared) -> Future[None]:
        return self._publish(prepared)

    def _publish(self, prepared: Prepared | None) -> Future[None]:
        if isinstance(prepared, RawMessage) and self._raw is not None:
            exchange, routing_key, body, raw_properties = prepared
            return self._raw.publish_raw(exchange, routing_key, raw_properties, body)
        if self._channel is None or not isinstance(prepared, Message):
            raise ConnectionLost("there is no channel to publish on")
        return self._channel.publish(prepared)

    async def reopen(self, *, anew: bool = False) -> BrokerError | None:
        """Open a channel if the last one was closed."""
        ended = await _why_closed(self._channel)
        if ended is None and self._channel is not None:
            if not anew:
                return None
            await self._channel.close()
        if ended is not None and not isinstance(ended, ChannelClosed):
            await self._disconnect()
        self._channel = channel = await (await self._connect()).open_channel()
        self._raw = channel if isinstance(channel, RawChannel) else None
        return ended

    async def _connect(self) -> Connection:
        if self._connection is None:
            self._connection = await self._broker.connect("hopback re-drive")
        return self._connection

    async def _disconnect(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()

    async def close(self) -> None:
        await self._disconnect()


async def _why_closed(channel: Channel | None) -> BrokerError | None:
    """Return the error that closed the channel, or None if it is open."""
    if channel is None:
        return None
    ending = asyncio.ensure_future(channel.wait_closed())
    done, _ = await asyncio.wait({ending}, timeout=0.01)
    if done:
        return ending.result() or ConnectionLost("the channel was closed by us")
    ending.cancel()
    return None


class _LinesFirst:
    """Write a line for each message to a file before the action on the message is completed."""

    def __init__(self, job: JobRecord, refusal: str) -> None:
        """`refusal` is the beginning of the error if lines cannot be written."""
        export_to = job.spec.submission.export_to
        self.sink = FileSink(run_file(export_to, job.run)) if export_to else None
        self._refusal = refusal
        self._waiting: list[tuple[ArchivedMessage, Future[None]]] = []

    def add(self, prepared: Prepared) -> Future[None]:
        """Store a line and its message until `write` is called."""
        if not isinstance(prepared, ArchivedMessage):
            raise UnsafeOperation(f"expected a line to write and its message, got {prepared!r}")
        fate: Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((prepared, fate))
        return fate

    async def write(self) -> list[tuple[ArchivedMessage, Future[None]]]:
        """Write all lines, and return the messages for which this has succeeded."""
        waiting, self._waiting = self._waiting, []
        try:
            if self.sink is not None and waiting:
                await self.sink.write(b"".join(archived.line for archived, _ in waiting))
        except Exception as failed:
            problem = UnsafeOperation(f"{self._refusal}: {failed}")
            for _, fate in waiting:
                fate.set_exception(problem)
            return []
        return waiting

    async def close(self) -> None:
        if self.sink is not None:
            await self.sink.close()


class ChangingAction(RedriveAction):
    """Apply a patch to each body, write the originals to a file, and publish the changed messages."""

    def __init__(
        self, job: JobRecord, request: RedriveRequest, snapshot: BrokerSnapshot, broker: Broker
    ) -> None:
        super().__init__(job, request, snapshot, broker)
        self._lines = _LinesFirst(job, "not sent, because an original was not written")

    async def prepare(self, delivery: Delivery) -> Prepared | LeftOut:
        """Return the original as a line, and the changed message."""
        try:
            body = apply_patch(delivery.body, self._request.change)
        except PatchFailed as failed:
            return LeftOut(str(failed))
        made = await super().prepare(change_delivery(delivery, Edit(body=body)))
        if not isinstance(made, Message | RawMessage):
            return made
        return ArchivedMessage(
            write_line(delivery, read_dead_letter(delivery, 0, self._queue)), made
        )

    def send(self, prepared: Prepared) -> Future[None]:
        """Store a message until its original was written."""
        return self._lines.add(prepared)

    async def flush(self) -> None:
        """Write the originals, then publish the changed messages."""
        for archived, fate in await self._lines.write():
            # If a message is left without a result, the job waits for it forever.
            try:
                await self.room()
                sent = self._publish(archived.message)
            except Exception as failed:
                fate.set_exception(failed)
                continue
            sent.add_done_callback(partial(_pass_result, to=fate))

    async def close(self) -> None:
        await self._lines.close()
        await super().close()


def _pass_result(done: Future[None], *, to: Future[None]) -> None:
    if to.done():
        return
    if done.cancelled():
        to.cancel()
    elif (failed := done.exception()) is not None:
        to.set_exception(failed)
    else:
        to.set_result(None)


class DiscardAction(Action):
    """Remove messages. If there is an export file, each message is written to it first."""

    def __init__(self, job: JobRecord, queue: DeadLetterQueue) -> None:
        self._lines = _LinesFirst(job, "not discarded, because the export was not written")
        self._queue = queue

    async def prepare(self, delivery: Delivery) -> ArchivedMessage:
        """Return the line to write. It is empty if there is no export file."""
        if self._lines.sink is None:
            return ArchivedMessage(b"", None)
        dead_letter = read_dead_letter(delivery, 0, self._queue)
        return ArchivedMessage(write_line(delivery, dead_letter), None)

    def send(self, prepared: Prepared) -> Future[None]:
        """Store a line until it is written together with others."""
        return self._lines.add(prepared)

    async def flush(self) -> None:
        """Write the lines, after which their messages can be removed."""
        for _, fate in await self._lines.write():
            fate.set_result(None)

    async def close(self) -> None:
        await self._lines.close()
