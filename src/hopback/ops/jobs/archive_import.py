"""Publish the messages of an archive to their queues."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hopback.errors import BadLine, BrokerError, HopbackError, NotFound
from hopback.headers import properties_for_move
from hopback.message import Message
from hopback.ops.contract.values import Imported
from hopback.ops.jobs.control import Control, Pacer
from hopback.ops.messages.archive import read_line
from hopback.topology.model import Queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterable

    from hopback.broker.port import Broker, Channel, Connection
    from hopback.ops.contract.requests import Pace

_LINES_PER_TURN = 5000
"""Lines after which other tasks of the process get a chance to run, even if the lines are empty."""
_LONG_LINE = 256 * 1024
"""Bytes. Longer lines are parsed in a thread, because parsing this many takes 1 ms."""


class Import:
    """Publish exported messages to their original queue or to `queue`. Stops at the first problem."""

    def __init__(self, queue: str | None, pace: Pace) -> None:
        self.published: int = 0
        """The number of confirmed messages."""
        self._queue = queue
        self._pacer = Pacer(Control(pace.rate))
        self._most = pace.in_flight
        self._confirms: dict[int, asyncio.Future[None]] = {}
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
                if number % _LINES_PER_TURN == 0:
                    await asyncio.sleep(0)
                if any(fate.done() and fate.exception() for fate in self._confirms.values()):
                    break
        except (HopbackError, OSError) as failed:
            problem = str(failed)
        except Exception:
            await self._await_confirms()
            raise
        await self._await_confirms()
        if self._confirms:  # the import can be resumed at the first line that was not confirmed
            number = min(self._confirms)
            problem = f"line {number + 1}: {self._confirms[number].exception()}"
        return Imported(number, self.published, problem)

    async def _await_confirms(self) -> None:
        """Wait for all messages in flight, and count those that are confirmed."""
        if self._confirms:
            await asyncio.wait(self._confirms.values())
        self._count_confirmed()

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
            raise BadLine(f"{where} names no queue; name one to import into")
        if target not in self._checked:
            asking = await connection.open_channel()
            try:
                await asking.declare_queue(Queue(target), passive=True)
            except NotFound:
                raise BrokerError(f"the queue {target!r} does not exist") from None
            await asking.close()
            self._checked.add(target)
        await self._pacer.turn()
        while len(self._confirms) >= self._most:
            done, _ = await asyncio.wait(
                self._confirms.values(), return_when=asyncio.FIRST_COMPLETED
            )
            self._count_confirmed()
            if any(fate.exception() for fate in done):
                return
        await channel.room()
        message = Message("", target, archived.body, properties_for_move(archived.properties))
        self._confirms[number] = channel.publish(message)

    def _count_confirmed(self) -> None:
        """Count the confirmed messages. Failed messages stay in the list."""
        for number, fate in tuple(self._confirms.items()):
            if fate.done() and not fate.exception():
                del self._confirms[number]
                self.published += 1
