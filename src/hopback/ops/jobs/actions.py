"""What is done with messages: send them back, write them down and let them go, publish a copy or an archive.

How fast it goes is decided here, too: a rate, and somebody's hand on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

from hopback.errors import (
    BadLine,
    BadRequest,
    BrokerError,
    ChannelClosed,
    ConfirmTimeout,
    ConnectionFailed,
    ConnectionLost,
    HopbackError,
    LoginRefused,
    ManagementError,
    NotFound,
    PreconditionFailed,
    PublishFailed,
    UnsafeOperation,
)
from hopback.fields import MAX_DEPTH, field_text, nests_deeper, text_bytes
from hopback.headers import moved_properties
from hopback.headers.names import REDRIVE_JOB, is_protected
from hopback.headers.rewrite import FRAME_BYTES, frame_size
from hopback.message import Message, Received
from hopback.ops.brokers.targets import Aim, aim_at, target_flaw
from hopback.ops.contract.requests import Edit, TargetKind
from hopback.ops.contract.values import Imported
from hopback.ops.messages.archive import read_line, write_line
from hopback.ops.messages.dead_letter import origin_queue, read_dead_letter
from hopback.ops.messages.patch import PatchFailed, patched
from hopback.policy.redrive import (
    RawMessage,
    RedriveOccasion,
    Redriver,
    loop_guard,
    redrive_message,
)
from hopback.topology.model import Queue

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import AsyncIterable, Callable, Iterable

    from hopback.broker.port import Broker, Channel, Connection
    from hopback.message import Delivery
    from hopback.ops.brokers.discovery import DeadLetterQueue
    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.browse.session import BrowseSession
    from hopback.ops.contract.requests import Pace, Target, Who
    from hopback.ops.contract.values import DeadLetter
    from hopback.ops.messages.archive import FileSink
    from hopback.ops.messages.patch import PatchOperation
    from hopback.topology.plan import Redrive
    from hopback.topology.routing import RoutingTable

_CATCH_UP_S = 0.05
"""Late by less is made up for, as the clock of an event loop is coarse; after a stall there is no burst."""


class Control:
    """A hand on a running job."""

    def __init__(self, rate: float | None = None) -> None:
        self.rate = rate
        self.is_paused: bool = False
        self.is_cancelled: bool = False
        self._changed = asyncio.Event()

    @property
    def is_calling(self) -> bool:
        """Whether somebody wants it to wait or to end."""
        return self.is_paused or self.is_cancelled

    def set(self, *, paused: bool, cancelled: bool, rate: float | None) -> None:
        """What is wanted from now on."""
        if (paused, cancelled, rate) != (self.is_paused, self.is_cancelled, self.rate):
            self.is_paused, self.is_cancelled, self.rate = paused, cancelled, rate
            self._changed.set()

    async def wait(self) -> None:
        """Return when it may go on, or has to end."""
        while self.is_paused and not self.is_cancelled:
            self._changed.clear()
            await self._changed.wait()

    async def stays_at(self, rate: float | None) -> bool:
        """Wait until it may go on, or has to end; False as soon as another rate is wanted meanwhile."""
        while self.is_paused and not self.is_cancelled and self.rate == rate:
            self._changed.clear()
            await self._changed.wait()
        return self.is_cancelled or not self.is_paused

    async def sleep(self, seconds: float) -> bool:
        """Wait so long; whether nothing was changed meanwhile."""
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return True
        return False


class Pacer:
    """Lets messages go at the rate that the control says now."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._last = float("-inf")

    async def turn(self) -> None:
        """Return when it is the next message's turn, or when somebody calls."""
        loop = asyncio.get_running_loop()
        while (rate := self._control.rate) and not self._control.is_calling:
            due = self._last + 1 / rate
            if due <= loop.time() or await self._control.sleep(due - loop.time()):
                # Late by a little is made up for; late by much is not.
                self._last = max(due, loop.time() - _CATCH_UP_S)
                return


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


COPY_OF = "hopback-copy-of"
"""The header of an edited copy: the id of the message it was made from."""


def edited_copy(
    delivery: Delivery,
    dead_letter: DeadLetter,
    edit: Edit,
    aim: Aim,
    occasion: RedriveOccasion,
    message_id: str,
) -> Message:
    """The copy as it goes back, with its own id and the id of the original beside it."""
    for name in (*edit.headers, *edit.without):
        if is_protected(name) or name == COPY_OF:
            raise BadRequest("headers", f"headers that are yours to change, got {name!r}")
    _check_fields(edit)
    message = redrive_message(
        changed_delivery(delivery, edit), aim.plan, occasion, target=aim.redrive
    )
    original = field_text(dead_letter.message_id or dead_letter.digest)
    headers = {**message.properties.headers, COPY_OF: original}
    properties = replace(
        message.properties, headers=MappingProxyType(headers), message_id=message_id
    )
    if frame_size(properties) > FRAME_BYTES:
        raise UnsafeOperation("the copy was not sent: its headers do not fit a frame")
    return replace(message, properties=properties)


_SHORT_TEXT = 255
"""Bytes of a header name and of a property in AMQP."""
_INTEGERS = range(-(2**63), 2**63)


def _check_fields(edit: Edit) -> None:
    """Raise BadRequest for an edit that AMQP cannot carry; the values are those of JSON."""
    if text_bytes(edit.content_type or "") > _SHORT_TEXT:
        raise BadRequest("contentType", f"at most {_SHORT_TEXT} bytes")
    for name, value in edit.headers.items():
        if text_bytes(name) > _SHORT_TEXT:
            raise BadRequest("headers", f"names of at most {_SHORT_TEXT} bytes, got {name!r}")
        if nests_deeper(value, MAX_DEPTH):
            raise BadRequest("headers", f"{name!r} nested at most {MAX_DEPTH} deep")
        inner = [value]
        while inner:
            found = inner.pop()
            if isinstance(found, Mapping):
                inner += found.values()
            elif isinstance(found, list):
                inner += found
            elif isinstance(found, int) and found not in _INTEGERS:
                raise BadRequest("headers", f"integers of 64 bits in {name!r}")


def changed_delivery(delivery: Delivery, edit: Edit) -> Received:
    """The delivery as the edit says it should be."""
    properties = delivery.properties
    kept = {name: value for name, value in properties.headers.items() if name not in edit.without}
    return Received(
        delivery.queue,
        delivery.exchange,
        delivery.routing_key,
        delivery.body if edit.body is None else edit.body,
        replace(
            properties,
            headers=MappingProxyType({**kept, **edit.headers}),
            content_type=(
                properties.content_type if edit.content_type is None else edit.content_type
            ),
        ),
        delivery.redelivered,
        delivery.tag,
    )


_LINES_AT_ONCE = 5000  # lines before other tasks get a turn, even if all of them are empty
_LONG_LINE = 256 * 1024  # bytes of a line that is parsed in a thread: 256 KiB take 1 ms


class Import:
    """Publishes exported messages into the queue they were in, or into `queue`. The first problem ends it."""

    def __init__(self, queue: str | None, pace: Pace) -> None:
        self.published = 0
        """Number of confirmed messages."""
        self._queue = queue
        self._pacer = Pacer(Control(pace.rate))
        self._most = pace.in_flight
        self._fates: dict[int, asyncio.Future[None]] = {}
        self._checked: set[str] = set()

    async def run(self, broker: Broker, lines: AsyncIterable[bytes]) -> Imported:
        """Publish the messages in order and wait for their confirms."""
        connection = await broker.connect("hopback import")
        try:
            return await self._run(connection, await connection.open_channel(), lines)
        finally:
            await connection.close()

    async def _run(
        self, connection: Connection, channel: Channel, lines: AsyncIterable[bytes]
    ) -> Imported:
        number, problem = 0, ""
        try:
            async for line in lines:
                if line.strip():
                    await self._publish(connection, channel, line, number)
                number += 1
                if number % _LINES_AT_ONCE == 0:
                    await asyncio.sleep(0)
                if any(fate.done() and fate.exception() for fate in self._fates.values()):
                    break
        except (HopbackError, OSError) as failed:
            problem = str(failed)
        except Exception:
            await self._confirmed()
            raise
        await self._confirmed()
        if self._fates:  # what is left was not confirmed: the first of it is where to go on
            number = min(self._fates)
            problem = f"line {number + 1}: {self._fates[number].exception()}"
        return Imported(number, self.published, problem)

    async def _confirmed(self) -> None:
        """Wait for every message in flight and count the confirmed ones."""
        if self._fates:
            await asyncio.wait(self._fates.values())
        self._reap()

    async def _publish(
        self, connection: Connection, channel: Channel, line: bytes, number: int
    ) -> None:
        where = f"line {number + 1}"
        if len(line) > _LONG_LINE:
            archived = await asyncio.to_thread(read_line, line, where=where)
        else:
            archived = read_line(line, where=where)
        target = self._queue or archived.queue
        if not target:
            raise BadLine(f"line {number + 1} names no queue; name one to import into")
        if target not in self._checked:  # a queue is asked for before the first message goes there
            asking = await connection.open_channel()
            try:
                await asking.declare_queue(Queue(target), passive=True)
            except NotFound:
                raise BrokerError(f"the queue {target!r} does not exist") from None
            await asking.close()
            self._checked.add(target)
        await self._pacer.turn()
        while len(self._fates) >= self._most:
            done, _ = await asyncio.wait(self._fates.values(), return_when=asyncio.FIRST_COMPLETED)
            self._reap()
            if any(fate.exception() for fate in done):
                return
        await channel.room()
        message = Message("", target, archived.body, moved_properties(archived.properties))
        self._fates[number] = channel.publish(message)

    def _reap(self) -> None:
        """Count what is confirmed; what failed stays, to be told."""
        for number, fate in tuple(self._fates.items()):
            if fate.done() and not fate.exception():
                del self._fates[number]
                self.published += 1


#
# Re-driving messages with changed bodies: each original is on the disk before its change is sent.


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
            body = patched(delivery.body, self._patch)
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


#
# Sending a changed copy of one message back.


async def send_copy(
    live: ManagedBroker,
    held: BrowseSession,
    message: str,
    edit: Edit,
    target: Target,
    person: Who,
    now: float,
) -> str:
    """Send a changed copy of a message that a session holds; its new message id."""
    dead_letter, delivery = held.dead_letter(message), held.delivery(message)
    routes = (await live.snapshot()).routes()
    aim = aim_at(target, delivery, dead_letter.origin, held.source, routes)
    if not isinstance(aim, Aim):
        raise BadRequest("target", aim)
    copy = str(uuid4())
    occasion = RedriveOccasion(now, f"edit-{copy}", person.id, person.name)
    changed = edited_copy(delivery, dead_letter, edit, aim, occasion, copy)
    async with live.connected() as connection:
        flaw = await target_flaw(connection, aim.redrive)
        if flaw is not None:
            raise UnsafeOperation(f"the copy was not sent: {flaw}")
        try:
            await (await connection.open_channel()).publish(changed)
        except BrokerError as failed:
            if after_failure(failed, failed) is AfterFailure.ITS_OWN:
                raise BadRequest("edit", f"a message that AMQP can carry; {failed}") from failed
            raise
    return copy


#
# For the message alone, for all of them, or for now only. Pure.


class AfterFailure(StrEnum):
    """What to do about a message that was not confirmed when it was sent alone."""

    AGAIN = "again"
    ITS_OWN = "its own"
    """The message itself is what the broker, or the wire, does not accept; others may pass."""
    STOP = "stop"
    """No other would do better, or it is not known what became of it."""


def after_failure(failed: HopbackError, ended: BrokerError | None) -> AfterFailure:
    """`failed` is what its sender was told, `ended` what closed the channel, if something did."""
    if isinstance(ended, PreconditionFailed):
        return AfterFailure.ITS_OWN
    if isinstance(ended, ChannelClosed):
        return AfterFailure.STOP
    if isinstance(failed, ConfirmTimeout):
        # It may have been stored; sending again and again would multiply it.
        return AfterFailure.STOP
    if isinstance(failed, PublishFailed | ConnectionLost | ConnectionFailed):
        return AfterFailure.AGAIN
    if isinstance(failed, BrokerError) and not isinstance(failed, ChannelClosed):
        # The wire refused to encode it: too large a header, a name beyond 255 bytes.
        return AfterFailure.ITS_OWN
    return AfterFailure.STOP


def may_pass(failed: HopbackError) -> bool:
    """Whether it is only that the broker is away: then waiting for it may help."""
    if isinstance(failed, ManagementError):
        return failed.status == 0 or failed.status >= 500
    away = isinstance(failed, ConnectionLost | ConnectionFailed)
    return away and not isinstance(failed, LoginRefused)
