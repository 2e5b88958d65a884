"""Moving every message of a queue into another: confirmed, pipelined, never lost.

Each message is published to its new queue and acked in the old one only after the broker has confirmed
it. Whatever ends the move, a message is in at least one of the two; one that was confirmed and not yet
acked is in both, with the same id.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hopback.broker.port import count
from hopback.errors import BrokerError
from hopback.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.broker.port import Channel, Connection
    from hopback.message import Delivery, Properties

__all__ = ["move_all"]

_IN_FLIGHT = 200  # enough to hide the confirm's round trip; so few copies if we die in between
_LOOK_AGAIN_S = 0.05  # nothing tells that a queue has become empty: ask twenty times a second


async def move_all(
    connection: Connection,
    source: str,
    target: str,
    rewrite: Callable[[Delivery], Properties],
) -> int:
    """Move until the source is empty and tell how many went; raises the first failure.

    `rewrite` gives the properties a message is published with. On failure nothing unconfirmed is
    acked, and closing the channel gives the rest back in order.
    """
    taking, giving = await connection.open_channel(), await connection.open_channel()
    try:
        move = _Move(taking, giving, source, target, rewrite)
        await taking.qos(_IN_FLIGHT)
        while True:
            tag = await taking.consume(source, move.take, on_cancel=move.cancelled)
            await move.until_quiet()
            # What was on its way to us was in no number so far. It has come when the cancel is
            # answered, and has to be settled before the channel closes: otherwise it is given back
            # although it was published, and stands twice.
            await taking.cancel(tag)
            await move.until_settled()
            # Settlement is answered by nothing: a round trip shows that the broker has read it.
            if not (await count(taking, source)).messages:
                return move.moved
    finally:
        await taking.close()
        await giving.close()


@dataclass(slots=True)
class _Move:
    """One move at work."""

    taking: Channel
    giving: Channel
    source: str
    target: str
    rewrite: Callable[[Delivery], Properties]
    moved: int = 0
    in_flight: int = 0
    failure: BrokerError | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, delivery: Delivery) -> None:
        """Publish a delivery; after a failure the rest stays unsettled."""
        if self.failure is not None:
            return
        try:
            message = Message("", self.target, delivery.body, self.rewrite(delivery))
            fate = self.giving.publish(message)
        except Exception as error:  # whatever the message is made of: it stays where it is
            self._fail(
                BrokerError(f"a message of {self.source!r} cannot be published again: {error}")
            )
            return
        self.in_flight += 1
        fate.add_done_callback(lambda done: self._settle(done, delivery.tag))

    def cancelled(self, _tag: str) -> None:
        """The broker ended the consumer: the queue is gone or its node is."""
        self._fail(BrokerError("the broker ended the consumer of the queue that is being moved"))

    def _settle(self, fate: asyncio.Future[None], tag: int) -> None:
        self.in_flight -= 1
        error = None if fate.cancelled() else fate.exception()
        if fate.cancelled() or error is not None:
            self._fail(
                error if isinstance(error, BrokerError) else BrokerError(f"not confirmed: {error}")
            )
            return
        try:
            self.taking.ack(tag)
            self.moved += 1
        except BrokerError as lost:
            self._fail(lost)
        self.changed.set()

    def _fail(self, error: BrokerError) -> None:
        self.failure = self.failure or error
        self.changed.set()

    async def until_quiet(self) -> None:
        """Return when nothing is ready and nothing in flight; raise the first failure."""
        while True:
            before = self.moved
            state = await count(self.giving, self.source)
            if self.failure is not None:
                raise self.failure
            if not state.messages and not self.in_flight and self.moved == before:
                return
            await self._wait_for_change()

    async def until_settled(self) -> None:
        """Return when nothing is in flight; raise the first failure."""
        while self.in_flight and self.failure is None:
            await self._wait_for_change()
        if self.failure is not None:
            raise self.failure

    async def _wait_for_change(self) -> None:
        self.changed.clear()
        try:
            async with asyncio.timeout(_LOOK_AGAIN_S):
                await self.changed.wait()
        except TimeoutError:
            return
