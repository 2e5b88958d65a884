"""Publishing exported messages again: mandatory, persistent, confirmed, in the order of the lines."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hopback.deadletters.archive import read_line
from hopback.deadletters.contract import Imported
from hopback.deadletters.pacing import Control, Pacer
from hopback.errors import BadLine, BrokerError, HopbackError, NotFound
from hopback.headers import moved_properties
from hopback.message import Message
from hopback.topology.model import Queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterable

    from hopback.broker.port import Broker, Channel, Connection
    from hopback.deadletters.requests import Pace

__all__ = ["import_lines"]


async def import_lines(
    broker: Broker, lines: AsyncIterable[bytes], *, queue: str | None, pace: Pace
) -> Imported:
    """Publish each message into the queue it was in, or into `queue`; stops at the first problem."""
    connection = await broker.connect("hopback import")
    try:
        return await _Import(connection, await connection.open_channel(), queue, pace).run(lines)
    finally:
        await connection.close()


class _Import:
    """One import at work."""

    def __init__(
        self, connection: Connection, channel: Channel, queue: str | None, pace: Pace
    ) -> None:
        self._connection = connection
        self._channel = channel
        self._queue = queue
        self._pacer = Pacer(Control(pace.rate))
        self._most = pace.in_flight
        self._fates: dict[int, asyncio.Future[None]] = {}
        self._checked: set[str] = set()
        self._published = 0

    async def run(self, lines: AsyncIterable[bytes]) -> Imported:
        """Publish line after line; the first problem ends it."""
        number, problem = 0, ""
        try:
            async for line in lines:
                if line.strip():
                    await self._publish(line, number)
                number += 1
                if any(fate.done() and fate.exception() for fate in self._fates.values()):
                    break
        except (HopbackError, OSError) as failed:
            problem = str(failed)
        failed_at, why = await self._settled()
        if failed_at is not None:
            number, problem = failed_at, why
        return Imported(number, self._published, problem)

    async def _publish(self, line: bytes, number: int) -> None:
        archived = read_line(line, where=f"line {number + 1}")
        target = self._queue or archived.queue
        if not target:
            raise BadLine(f"line {number + 1} names no queue; name one to import into")
        await self._check(target)
        await self._pacer.turn()
        while len(self._fates) >= self._most:
            done, _ = await asyncio.wait(self._fates.values(), return_when=asyncio.FIRST_COMPLETED)
            self._reap()
            if any(fate.exception() for fate in done):
                return
        await self._channel.room()
        message = Message("", target, archived.body, moved_properties(archived.properties))
        self._fates[number] = self._channel.publish(message)

    def _reap(self) -> None:
        """Count what is confirmed; what failed stays, to be told."""
        for number, fate in tuple(self._fates.items()):
            if fate.done() and not fate.exception():
                del self._fates[number]
                self._published += 1

    async def _check(self, queue: str) -> None:
        """A queue is asked for before the first message goes there."""
        if queue in self._checked:
            return
        channel = await self._connection.open_channel()
        try:
            await channel.declare_queue(Queue(queue), passive=True)
        except NotFound:
            raise BrokerError(f"the queue {queue!r} does not exist") from None
        await channel.close()
        self._checked.add(queue)

    async def _settled(self) -> tuple[int | None, str]:
        """Wait for everything in flight; the first line that has no home, and why."""
        if self._fates:
            await asyncio.wait(self._fates.values())
        self._reap()
        if not self._fates:
            return None, ""
        first = min(self._fates)
        return first, f"line {first + 1}: {self._fates[first].exception()}"
