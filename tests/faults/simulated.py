"""The parts of a simulated world. Processes can be killed, and faults are recorded."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hopback import Service, ServiceOptions
from hopback.broker.embedded import EmbeddedBroker, Fault, Faults
from hopback.broker.embedded.virtual_time import LoopClock
from hopback.broker.supervise import Backoff
from hopback.errors import ConnectionFailed
from hopback.observe.events import Bus
from hopback.runtime import Environment
from hopback.topology.check import check
from tests.faults.ledger.application import Told, ledger_app
from tests.faults.ledger.books import CONNECTION, PROCESS
from tests.faults.ledger.entry import Kind, ListPen

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from hopback.broker import Broker
    from hopback.broker.embedded.connection import EmbeddedConnection
    from hopback.topology import Topology
    from tests.faults.ledger.entry import Entry
    from tests.faults.ledger.order import Order

__all__ = ["Process", "RecordedFaults", "Socket"]


class RecordedFaults(Faults):
    """Injects faults and records when they happen."""

    def __init__(self, seed: int, pen: ListPen) -> None:
        super().__init__(seed)
        self._pen = pen

    def strikes(self, fault: Fault) -> bool:
        """Return True if the fault happens now."""
        found = super().strikes(fault)
        if found:
            self._pen.who = "*"
            self._pen.write(Kind.FAULT, queue=CONNECTION, note=fault.value)
        return found


class Socket:
    """The connections of a process to the broker.

    They end with the process, which cannot connect again.
    """

    def __init__(self, broker: EmbeddedBroker, disguise: Callable[[Any], Any]) -> None:
        self._broker = broker
        self._disguise = disguise
        self.connections: list[EmbeddedConnection] = []
        self.dead = False

    @property
    def address(self) -> str:
        """The address of the broker."""
        return self._broker.address

    async def connect(self, name: str = "hopback") -> Any:
        """Connect to the broker. Fails if the process is dead."""
        if self._is_dead():
            raise ConnectionFailed("the process is dead")
        connection = await self._broker.connect(name)
        self.connections.append(connection)
        if self._is_dead():  # the process may have died in the meantime
            self._broker.cut(connection, buffered=False)
        return self._disguise(connection)

    def _is_dead(self) -> bool:
        return self.dead

    def cut(self) -> None:
        """Cut all connections of the process."""
        for connection in self.connections:
            if connection in self._broker.connections:
                self._broker.cut(connection, buffered=False)
        self.connections.clear()


def _options(topology: Topology) -> ServiceOptions:
    """Return options that accept the hazards of the documented forms."""
    return ServiceOptions(watch=60, grace=20, accept={one.rule for one in check(topology)})


class Process:
    """A process that runs the application. When it is killed, its state is lost."""

    def __init__(
        self,
        name: str,
        broker: EmbeddedBroker,
        entries: list[Entry],
        topology: Topology,
        chance: random.Random,
        *,
        batch: tuple[str, ...] = (),
        disguise: Callable[[Any], Any] = lambda connection: connection,
    ) -> None:
        self.name = name
        self._loop = asyncio.get_running_loop()
        self.pen = ListPen(entries, name, self._loop.time)
        self.socket = Socket(broker, disguise)
        self.dies_at: tuple[Kind, int] | None = None
        """The kind of step at which the process kills itself, and after how many of them."""
        app = ledger_app(topology, self.pen, concurrency=4, batch=batch, at_run=self._at_run)
        environment = Environment(
            bus=Bus(Told(self.pen)),
            clock=LoopClock(self._loop.time),
            chance=chance.random,
            host="simulated",
            backoff=Backoff(first=0.2, most=5.0),
        )
        channel: Broker = self.socket
        self.service = Service(app, channel, options=_options(topology), environment=environment)
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            await self.service.run()

    @property
    def is_alive(self) -> bool:
        """Whether the process was neither killed nor stopped."""
        return not self.socket.dead

    def kill(self) -> None:
        """Kill the process like SIGKILL, in the middle of a step."""
        if not self.socket.dead:
            self.pen.write(Kind.FAULT, queue=PROCESS, note="kill -9")
            self.pen.alive = False
            self.socket.dead = True
            self.socket.cut()
            self._task.cancel()

    async def stop(self) -> None:
        """Stop the process in order."""
        if self.socket.dead:
            await asyncio.wait({self._task})
            return
        self.service.stop()
        await self._task
        self.socket.dead = True
        self.pen.alive = False

    def _at_run(self, kind: Kind, _order: Order, _queue: str) -> None:
        if self.dies_at is not None and self.dies_at[0] is kind:
            left = self.dies_at[1] - 1
            self.dies_at = (kind, left) if left else None
            if not left:
                self.kill()
