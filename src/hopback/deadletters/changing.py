"""Re-driving messages with changed bodies: each original is on the disk before its change is sent."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from hopback.deadletters.actions import LeftOut, RedriveAction, changed_delivery
from hopback.deadletters.archive import write_line
from hopback.deadletters.message import read_dead_letter
from hopback.deadletters.patch import PatchFailed, patched
from hopback.deadletters.requests import Edit
from hopback.errors import HopbackError, UnsafeOperation
from hopback.message import Message

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Iterable

    from hopback.deadletters.archive import FileSink
    from hopback.deadletters.discovery import DeadLetterQueue
    from hopback.deadletters.patch import PatchOperation
    from hopback.errors import BrokerError
    from hopback.message import Delivery

__all__ = ["ChangingAction"]


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
        self._waiting: list[tuple[bytes, Message, Future[None]]] = []

    def prepare(self, delivery: Delivery) -> tuple[bytes, Message] | LeftOut | None:
        """The original as a line and the changed message, or why there is none."""
        try:
            body = patched(delivery.body, self._patch)
        except PatchFailed as failed:
            return LeftOut(str(failed))
        made = self._sending.prepare(changed_delivery(delivery, Edit(body=body)))
        if not isinstance(made, Message):
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

    async def mend(self, *, anew: bool = False) -> BrokerError | None:
        """Be ready to send again; what ended the channel."""
        return await self._sending.mend(anew=anew)

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
