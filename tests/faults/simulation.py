"""A deterministic simulation. Each seed is a run of the whole runtime in virtual time.

The seed determines the broker version, the design, the messages, the number of processes and the
faults. The same seed always leads to the same entries.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hopback import Publisher
from hopback.broker import BrokerVersion, EmbeddedBroker
from hopback.broker.declare import declare
from hopback.broker.embedded import Fault, run_virtual
from hopback.broker.embedded.virtual_time import LoopClock
from hopback.designs import DESIGNS
from hopback.errors import BrokerError
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.contract.requests import RedriveRequest, Selection
from hopback.ops.operations import Operations
from tests.faults.ledger.application import EXCHANGE, two_queues
from tests.faults.ledger.books import BROKER, CONNECTION, OPERATOR, keep_books
from tests.faults.ledger.checks import check_books
from tests.faults.ledger.entry import Entry, Kind, ListPen
from tests.faults.ledger.order import Fate, Order
from tests.faults.simulated import Process, RecordedFaults, Socket

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.topology import Topology
    from tests.faults.ledger.checks import Verdict

__all__ = ["Played", "Setting", "play", "setting_of"]

_VERSIONS = (BrokerVersion(3, 10), BrokerVersion(4, 0), BrokerVersion(4, 3))
_FATES = (
    *[Fate.DONE] * 6,
    # Poison messages kill a process, which the simulation cannot do.
    *[fate for fate in Fate if fate not in (Fate.DONE, Fate.POISON)],
)
_DOCUMENTED = ("file-pipeline", "event-bus", "freeflow", "raffle", "ratatoskr")
_LIMIT_S = 3 * 86_400.0
_INJECTED = (
    Fault.NACK,
    Fault.RETURN,
    Fault.LOSE_CONFIRM,
    Fault.CUT_BEFORE_PUBLISH,
    Fault.CUT_AFTER_PUBLISH,
    Fault.CUT_BEFORE_SETTLE,
    Fault.CUT_AFTER_SETTLE,
    Fault.REFUSE_CONNECTION,
)


@dataclass(frozen=True, slots=True)
class Setting:
    """The parameters that a seed determines before the run starts."""

    seed: int
    version: BrokerVersion
    design: str
    topology: Topology
    messages: int
    processes: int
    blows: int
    batch: tuple[str, ...]
    faithful: bool = False


@dataclass(frozen=True, slots=True)
class Played:
    """A run that has ended, with its entries and the result of the checkers."""

    setting: Setting
    entries: tuple[Entry, ...]
    verdict: Verdict

    @property
    def digest(self) -> str:
        """A hash of all entries."""
        text = "".join(entry.line().decode() for entry in self.entries)
        return hashlib.sha256(text.encode()).hexdigest()


def setting_of(seed: int, *, faithful: bool = False) -> Setting:
    """Return the setting for a seed. If `faithful` is True, it is one of the documented designs in
    the documented form.
    """
    chance = random.Random(seed)
    own = () if faithful else ("two-queues", "two-queues", "recommended")
    design = chance.choice((*own, *_DOCUMENTED))
    topology = DESIGNS[design].build() if faithful else _topology(design, chance)
    queues = [plan.queue for plan in topology.plans]
    return Setting(
        seed,
        chance.choice(_VERSIONS),
        design,
        topology,
        messages=chance.randint(5, 30),
        processes=chance.randint(1, 3),
        blows=chance.randint(0, 12),
        batch=(chance.choice(queues),) if chance.random() < 0.3 else (),
        faithful=faithful,
    )


def _topology(design: str, chance: random.Random) -> Topology:
    if design == "two-queues":
        first = chance.choice((50, 700, 5000))
        return two_queues((f"{first}ms", f"{first * 3}ms"))
    return DESIGNS[design].build(hardened=True)


def play(
    seed: int,
    *,
    disguise: Callable[[Any], Any] = lambda connection: connection,
    faithful: bool = False,
) -> Played:
    """Run a seed.

    `disguise` may put a saboteur between the runtime and the broker. If `faithful` is True, the
    documented designs run in the documented form and the broker does not restart.
    """
    # The backoff of the supervisors uses the random numbers of the module.
    state = random.getstate()
    random.seed(seed)
    logging.disable(logging.CRITICAL)
    try:
        setting = setting_of(seed, faithful=faithful)
        entries = run_virtual(_World(setting, disguise).play())
    finally:
        logging.disable(logging.NOTSET)
        random.setstate(state)
    verdict = check_books(keep_books(entries, setting.topology, slack=0.5))
    return Played(setting, tuple(entries), verdict)


@dataclass
class _World:
    setting: Setting
    disguise: Callable[[Any], Any]
    entries: list[Entry] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    lives: int = 0

    async def play(self) -> list[Entry]:
        """Run the simulation and return its entries."""
        setting, loop = self.setting, asyncio.get_running_loop()
        self.chance = random.Random(setting.seed + 1)
        self.broker = EmbeddedBroker(version=setting.version, seed=setting.seed)
        self.pen = ListPen(self.entries, "*", loop.time)
        self.faults = RecordedFaults(setting.seed, self.pen)
        self.broker.faults = self.faults
        connection = await self.broker.connect("operator")
        await declare(connection, setting.topology)
        await connection.close()
        self._keep_processes()
        producing = asyncio.ensure_future(self._produce())
        for _ in range(setting.blows):
            await asyncio.sleep(self.chance.choice((0.0, 0.01, 0.3, 2.0, 9.0)))
            self._strike()
        self._heal()
        await producing
        await self._until_calm()
        if not setting.faithful and self.chance.random() < 0.6:
            await self._redrive()
        for process in self.processes:
            await process.stop()
        self._take_stock()
        return self.entries

    def _keep_processes(self) -> None:
        """Replace the processes that have ended."""
        alive = sum(process.is_alive for process in self.processes)
        for _ in range(self.setting.processes - alive):
            self.lives += 1
            self.processes.append(
                Process(
                    f"c{self.lives}",
                    self.broker,
                    self.entries,
                    self.setting.topology,
                    self.chance,
                    batch=self.setting.batch,
                    disguise=self.disguise,
                )
            )

    # --- producing -------------------------------------------------------------------------------

    async def _connect_producer(self, stack: AsyncExitStack) -> Publisher:
        """Connect until the broker accepts it. A publisher raises the error of its first attempt."""
        while True:
            publisher = Publisher(Socket(self.broker, lambda one: one), name="producer")
            try:
                return await stack.enter_async_context(publisher)
            except BrokerError:
                await asyncio.sleep(0.5)

    async def _produce(self) -> None:
        pen = ListPen(self.entries, "producer", asyncio.get_running_loop().time)
        async with AsyncExitStack() as stack:
            publisher = await self._connect_producer(stack)
            for number in range(self.setting.messages):
                order, exchange, key = self._order(number)
                while True:
                    note = f"{','.join(order.to)};{order.key}"
                    pen.write(Kind.SENT, order.id, order.fate, note=note)
                    try:
                        await publisher.send(order.message(exchange, key))
                    except BrokerError:
                        await asyncio.sleep(0.5)
                    else:
                        pen.write(Kind.CONFIRMED, order.id)
                        break
                await asyncio.sleep(self.chance.choice((0.0, 0.0, 0.02, 0.5)))

    def _order(self, number: int) -> tuple[Order, str, str]:
        """Return an order with the exchange and the routing key to which it is published."""
        fate = self.chance.choice(_FATES)
        if self.setting.faithful and fate is Fate.SNOOZE:
            fate = Fate.DONE  # a snooze within the process leaves no mark
        pause = self.chance.choice((0, 0, 30, 900, 4000))
        lane = self.chance.choice(("-", "-", "a", "b"))
        if self.setting.batch:
            lane = "-"  # batches do not have keys
        if self.setting.design == "two-queues":
            queue = self.chance.choice(("left", "right"))
            return Order(number, (queue, "audit"), fate, lane, pause), EXCHANGE, f"{queue}.order"
        queue = self.chance.choice([plan.queue for plan in self.setting.topology.plans])
        return Order(number, (queue,), fate, lane, pause), "", queue

    # --- faults ----------------------------------------------------------------------------------

    def _strike(self) -> None:
        """Inject a random fault."""
        alive = [process for process in self.processes if process.is_alive]
        victim = self.chance.choice(alive) if alive else None
        blow = self.chance.choice(("inject", "inject", "cut", "kill", "dies", "world", "start"))
        match blow:
            case "inject":
                self.faults.inject(self.chance.choice(_INJECTED), self.chance.randint(1, 3))
            case "cut" if victim is not None:
                self._write("cut", CONNECTION, victim.name)
                victim.socket.cut()
            case "kill" if victim is not None:
                victim.kill()
            case "dies" if victim is not None:
                kind = self.chance.choice((Kind.BEGUN, Kind.DONE, Kind.FAILED, Kind.HOPELESS))
                victim.dies_at = (kind, self.chance.randint(1, 4))
            case "world":
                self._strike_all()
            case _:
                self._keep_processes()

    def _strike_all(self) -> None:
        match self.chance.choice(("restart", "block", "unblock", "slow", "forget", "cut all")):
            case "restart" if not self.setting.faithful:
                self._write("broker restart", BROKER)
                self.broker.restart()
            case "block":
                self.broker.block()
            case "unblock":
                self.broker.block(blocked=False)
            case "slow":
                self.faults.latency = self.chance.choice((0.0, 0.05, 0.2))
            case "forget":
                self._write("forgotten consumer", CONNECTION)
                self._forget()
            case _:
                self._write("cut all", CONNECTION)
                self.broker.cut()

    def _forget(self) -> None:
        """Let the broker lose its consumers without a notice, as in a failover."""
        for queue in self.broker.node.queues.values():
            for session in self.broker.node.sessions:
                for channel in session.channels.values():
                    for consumer in queue.ring.consumers.copy():
                        channel.cancel(consumer.tag)

    def _write(self, name: str, scope: str, who: str = "*") -> None:
        self.pen.who = who
        self.pen.write(Kind.FAULT, queue=scope, note=name)

    def _heal(self) -> None:
        self.faults.clear()
        self.broker.block(blocked=False)
        for process in self.processes:
            process.dies_at = None
        self._keep_processes()

    # --- re-driving ------------------------------------------------------------------------------

    async def _redrive(self) -> None:
        """Re-drive all parked messages. The first operators may be killed while they do this."""
        self.faults.latency = self.chance.choice((0.0, 0.01))
        for _ in range(self.chance.randint(0, 2)):
            socket = Socket(self.broker, self.disguise)
            job = asyncio.ensure_future(self._operate(socket))
            await asyncio.wait({job}, timeout=self.chance.uniform(0.0, 0.15))
            if not job.done():
                self._write("operator killed", OPERATOR)
                socket.dead = True
                socket.cut()
                job.cancel()
                await asyncio.wait({job})
        self.faults.latency = 0.0
        await self._operate(Socket(self.broker, self.disguise))
        await self._until_calm()

    async def _operate(self, socket: Socket) -> None:
        topology = self.setting.topology
        async with Operations(
            ManagedBroker(
                socket, topologies=[topology], clock=LoopClock(asyncio.get_running_loop().time)
            )
        ) as operations:
            for queue in sorted({plan.parking.queue for plan in topology.plans}):
                request = RedriveRequest(
                    queue=queue, selection=Selection(), reason="simulated", force=True
                )
                await operations.wait((await operations.start(request)).id)

    # --- the end ---------------------------------------------------------------------------------

    async def _until_calm(self) -> None:
        """Wait until all queues except the dead-letter queues are empty, for at most three days."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _LIMIT_S
        parked = {plan.parking.queue for plan in self.setting.topology.plans}
        while loop.time() < until:
            await asyncio.sleep(10)
            held = (q for name, q in self.broker.node.queues.items() if name not in parked)
            busy = any(one.in_flight for p in self.processes for one in p.service.consumers)
            if not busy and not any(
                len(q.ready) + q.unacked + len(q.safe.dead_letters) + len(q.delays.entries)
                for q in held
            ):
                return

    def _take_stock(self) -> None:
        self.pen.who = "inventory"
        for queue in self.broker.snapshot().queues:
            for stored in filter(lambda one: Order.is_one(one.body), queue.messages):
                self.pen.write(Kind.FOUND, str(Order.read(stored.body).number), queue.name)


def _main() -> int:
    """Run the seeds from the command line and print the hash and the findings of each one."""
    failed = 0
    for seed in map(int, sys.argv[1:]):
        played = play(seed)
        failed += bool(played.verdict.findings)
        sys.stdout.write(f"{seed} {played.digest}\n")
        sys.stdout.writelines(f"    {finding}\n" for finding in played.verdict.findings)
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(_main())
