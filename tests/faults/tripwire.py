"""A tripwire around a broker connection. The process kills itself with SIGKILL at a certain step.

It is placed between the application and the library, which does not know about it. The steps are
those of the fault matrix: sent, confirmed, before the settlement, and settled.
"""

from __future__ import annotations

import asyncio
import os
import signal
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tests.faults.ledger.books import OPERATOR, PROCESS
from tests.faults.ledger.entry import Kind
from tests.faults.ledger.order import Fate

if TYPE_CHECKING:
    from hopback import Message
    from hopback.broker import Broker
    from tests.faults.ledger.entry import Pen
    from tests.faults.ledger.order import Order

__all__ = ["Point", "Tripwire"]


class Point(StrEnum):
    """The step at which a process kills itself."""

    HANDLER = "handler"
    """The handler has ended. The retry has not been sent."""
    RETRY_SENT = "retry-sent"
    """The retry was written to the socket. It has not been confirmed."""
    RETRY_CONFIRMED = "retry-confirmed"
    """The retry is stored. The delivery has not been acked."""
    PARK_SENT = "park-sent"
    PARK_CONFIRMED = "park-confirmed"
    SETTLING = "settling"
    """The ack is about to be written."""
    SETTLED = "settled"
    """The ack was written."""
    DECLARING = "declaring"
    """Some objects of the topology have not been declared yet."""
    MOVED = "moved"
    """A re-driven message is stored in its queue. The dead letter has not been acked."""


class Tripwire:
    """Counts the steps of one kind and kills the process at the n-th."""

    def __init__(
        self, broker: Broker, pen: Pen, point: Point | None, count: int = 1, *, scope: str = PROCESS
    ) -> None:
        self._broker = broker
        self._pen = pen
        self.scope = scope
        self._point = point
        self._left = count

    @property
    def address(self) -> str:
        """The address of the broker."""
        return self._broker.address

    async def connect(self, name: str = "hopback") -> Any:
        """Connect to the broker. The connection has a tripwire if a step was given."""
        connection = await self._broker.connect(name)
        return connection if self._point is None else _Connection(connection, self)

    def at_run(self, kind: Kind, order: Order, queue: str) -> None:
        """Called when a run has started or ended."""
        if kind is not Kind.BEGUN:
            self.step(Point.HANDLER)
        elif order.fate is Fate.POISON and queue == order.to[0]:
            self._die("poison")

    def step(self, point: Point) -> None:
        """Kill the process if this is the step."""
        if point is self._point:
            self._left -= 1
            if self._left <= 0:
                self._die(point)

    def _die(self, of: str) -> None:
        self._pen.write(Kind.FAULT, queue=self.scope, note=f"kill -9: {of}")
        os.kill(os.getpid(), signal.SIGKILL)


class _Passing:
    def __init__(self, real: Any, wire: Tripwire) -> None:
        self._real = real
        self._wire = wire

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _Connection(_Passing):
    async def open_channel(self) -> Any:
        return _Channel(await self._real.open_channel(), self._wire)


class _Channel(_Passing):
    def publish(self, message: Message, *, mandatory: bool = True) -> Any:
        fate = self._real.publish(message, mandatory=mandatory)
        return self._watch(fate, f"{message.exchange} {message.routing_key}")

    def publish_raw(self, exchange: str, routing_key: str, *rest: Any) -> Any:
        """Re-drives publish most messages as the bytes that they received."""
        fate = self._real.publish_raw(exchange, routing_key, *rest)
        return self._watch(fate, f"{exchange} {routing_key}")

    def _watch(self, fate: Any, where: str) -> Any:
        sent, confirmed = _points_of(where, self._wire.scope)
        # Frames are written at the end of this iteration of the event loop.
        asyncio.get_running_loop().call_later(0.002, self._wire.step, sent)
        # This callback is added before all others, so the ack has not been requested yet.
        fate.add_done_callback(lambda _fate: self._wire.step(confirmed))
        return fate

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self._wire.step(Point.SETTLING)
        self._real.ack(tag, multiple=multiple)
        asyncio.get_running_loop().call_later(0.002, self._wire.step, Point.SETTLED)

    async def declare_queue(self, *args: Any, **options: Any) -> Any:
        self._wire.step(Point.DECLARING)
        return await self._real.declare_queue(*args, **options)


def _points_of(where: str, scope: str) -> tuple[Point, Point]:
    """Return the steps for a publish, based on the name of its queue."""
    if scope != OPERATOR and "retry" in where:
        return Point.RETRY_SENT, Point.RETRY_CONFIRMED
    if scope != OPERATOR and ("dlq" in where or "dlx" in where):
        return Point.PARK_SENT, Point.PARK_CONFIRMED
    return Point.MOVED, Point.MOVED
