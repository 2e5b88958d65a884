"""Runs an application: connects, declares, consumes, and stops in numbered steps.

1. Stop intake: the broker is told to send no more.
2. Finish: handlers that run may end and open batches are handled, up to the grace time.
3. Release: what is left unsettled goes back to its queue with its channel.
4. Close: the connections end.

Asking twice skips the waiting. The report says what was left; nothing unsettled goes unreported.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from hopback.broker.declare import Ownership, prepare
from hopback.broker.publisher import Publisher
from hopback.broker.supervise import LineState, Supervised
from hopback.errors import BrokerError, InvalidTopology, Problem, UnsafeOperation
from hopback.runtime.batch import Batches, BatchHandler
from hopback.runtime.consumer import Consumer, Leftover, Limits
from hopback.runtime.push import PushHandler, PushRunner
from hopback.runtime.running import FunctionRunner
from hopback.runtime.settling import Settling, Surroundings
from hopback.runtime.work import OneByOne
from hopback.topology.check import Severity, check
from hopback.topology.expand import dead_letters_park
from hopback.topology.model import Queue

if TYPE_CHECKING:
    from collections.abc import Collection

    from hopback.broker.port import Broker, Connection
    from hopback.broker.supervise import OnState
    from hopback.message import Message
    from hopback.runtime.app import AnyHandler, App
    from hopback.runtime.handler import Handler
    from hopback.topology.plan import Plan

__all__ = ["Report", "Service", "ServiceOptions"]


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """How an application is run.

    `queues` limits it to some of its handlers. `accept` names the `check` rules of severity error
    that may stand. `grace` is how long running handlers may take at shutdown, `watch` how often
    the broker is asked whether it still knows the consumers (seconds).
    """

    queues: Collection[str] | None = None
    ownership: Ownership = Ownership.DECLARE
    accept: Collection[str] = ()
    grace: float = 30.0
    watch: float = 30.0


@dataclass(frozen=True, slots=True)
class Report:
    """How a service ended: what it concluded, and what it left to the broker."""

    handled: int
    left: tuple[Leftover, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether nothing was interrupted."""
        return not any(one.interrupted for one in self.left)


@dataclass(slots=True)
class _Stopping:
    """Whether the end was asked for, and how urgently."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    forced: asyncio.Event = field(default_factory=asyncio.Event)


class Service:
    """An application at work on a broker."""

    def __init__(
        self,
        app: App,
        broker: Broker,
        *,
        options: ServiceOptions | None = None,
        world: Surroundings | None = None,
    ) -> None:
        self.app = app
        self.options = options or ServiceOptions()
        self.world = world or Surroundings()
        self.topology = app.topology
        self._broker = broker
        self._publisher = Publisher(
            broker, name=f"{app.name} publisher", on_state=self._state_of("publishing")
        )
        self._line = Supervised(
            broker,
            f"{app.name} consumer",
            self._session,
            on_state=self._state_of("consuming"),
        )
        self._runners: list[FunctionRunner | PushRunner] = []
        self.consumers = tuple(self._consumer(queue) for queue in self._wanted_queues())
        self._stopping = _Stopping()
        self._checked = False
        self.ready = asyncio.Event()
        """Set when every consumer has been started for the first time."""

    # --- building --------------------------------------------------------------------------------

    def _wanted_queues(self) -> tuple[str, ...]:
        wanted = self.options.queues
        unknown = [queue for queue in wanted or () if queue not in self.app.handlers]
        if unknown:
            known = f"one of {', '.join(self.app.handlers) or 'no queues'}"
            raise InvalidTopology(
                tuple(Problem("queues", known, repr(queue)) for queue in unknown),
                where=f"app {self.app.name!r}",
            )
        return tuple(queue for queue in self.app.handlers if wanted is None or queue in wanted)

    def _consumer(self, queue: str) -> Consumer:
        handler, plan = self.app.handlers[queue], self._plan(queue)
        settling = Settling(
            plan,
            self.publish,
            self.world,
            dead_letters_park=dead_letters_park(self.topology, plan),
            most_holds=_most_holds(handler),
        )
        if isinstance(handler, BatchHandler):
            limits = Limits(handler.options.window, handler.options.batchers)
            batches = partial(Batches, handler, settling, self.world.bus)
            return Consumer(queue, limits, batches, self.world)
        runner = self._runner(handler, plan)
        self._runners.append(runner)
        options = handler.options
        limits = Limits(options.window, options.concurrency, options.breaker)
        work = partial(OneByOne, queue, options, runner, settling)
        return Consumer(queue, limits, work, self.world)

    def _runner(self, handler: Handler | PushHandler, plan: Plan) -> FunctionRunner | PushRunner:
        if isinstance(handler, PushHandler):
            return PushRunner(handler.target, plan, self.world.clock)
        return FunctionRunner(handler, plan, self.publish, self.world.bus)

    def _plan(self, queue: str) -> Plan:
        plan = self.topology.plan(queue)
        assert plan is not None  # noqa: S101 - App.topology refuses handlers without a plan
        return plan

    def _state_of(self, purpose: str) -> OnState:
        def tell(state: LineState, reason: str) -> None:
            fields = {"purpose": purpose, "state": str(state), "reason": reason}
            self.world.bus.emit("connection.state", fields)

        return tell

    # --- running ---------------------------------------------------------------------------------

    async def publish(self, message: Message) -> None:
        """Publish on the publishing connection and wait for the confirm."""
        try:
            await self._publisher.publish(message)
        except BrokerError as error:
            self.world.bus.emit(
                "publish.failed",
                {
                    "exchange": message.exchange,
                    "routing_key": message.routing_key,
                    "error": f"{type(error).__name__}: {error}",
                },
            )
            raise

    async def run(self) -> Report:
        """Run until `stop`; raises what no new connection can mend."""
        self._publisher.start()
        self.app.connected(self.publish)
        line = asyncio.create_task(self._line.run(), name="hopback-consuming")
        asked = asyncio.create_task(self._stopping.asked.wait())
        try:
            await asyncio.wait({line, asked}, return_when=asyncio.FIRST_COMPLETED)
            return await self._shut_down(line)
        finally:
            asked.cancel()
            self.app.connected(None)

    def stop(self) -> None:
        """Ask for an orderly end; a second time, for an end at once."""
        (self._stopping.forced if self._stopping.asked.is_set() else self._stopping.asked).set()

    async def _session(self, connection: Connection) -> None:
        """Everything that happens on one consuming connection."""
        self._refuse_hazards(connection)
        await prepare(connection, self.topology, self.options.ownership)
        watching = asyncio.create_task(self._watch(connection))
        try:
            async with asyncio.TaskGroup() as group:
                for consumer in self.consumers:
                    group.create_task(consumer.serve(connection))
                self.ready.set()
        finally:
            watching.cancel()

    def _refuse_hazards(self, connection: Connection) -> None:
        """Errors for this broker's version refuse the start; what is only a warning is said once."""
        if self._checked:
            return
        findings = check(self.topology, connection.version)
        grave = [
            one
            for one in findings
            if one.severity is Severity.ERROR and one.rule not in self.options.accept
        ]
        if grave:
            listed = "\n".join(
                f"  {one.rule} at {one.place}: {one.explanation} {one.fix}" for one in grave
            )
            raise UnsafeOperation(
                f"{self.app.name} is not started on RabbitMQ {connection.version}:\n{listed}\n"
                "Mend these, or accept them by name."
            )
        for one in findings:
            fields = {"rule": one.rule, "place": one.place, "text": one.explanation}
            self.world.bus.emit("topology.warning", fields)
        self._checked = True

    async def _watch(self, connection: Connection) -> None:
        """Ask the broker now and then whether it still knows our consumers."""
        while True:
            await asyncio.sleep(self.options.watch)
            for consumer in self.consumers:
                if consumer.consuming and await _is_forgotten(connection, consumer.queue):
                    consumer.restore("the broker does not know the consumer any more")

    # --- the end ---------------------------------------------------------------------------------

    async def _shut_down(self, line: asyncio.Task[None]) -> Report:
        """The numbered steps."""
        self._step(1, "stop intake")
        not_started = [await consumer.stop_intake() for consumer in self.consumers]
        self._step(2, "finish what runs, and flush open batches")
        await self._finish()
        self._step(3, "release the rest")
        interrupted = [await consumer.close() for consumer in self.consumers]
        self._step(4, "close")
        await self._close(line)
        left = tuple(
            Leftover(consumer.queue, waiting, cut)
            for consumer, waiting, cut in zip(self.consumers, not_started, interrupted, strict=True)
            if waiting or cut
        )
        return Report(sum(consumer.handled for consumer in self.consumers), left)

    def _step(self, step: int, title: str) -> None:
        running = sum(consumer.in_flight for consumer in self.consumers)
        self.world.bus.emit("shutdown.step", {"step": step, "title": title, "left": running})

    async def _finish(self) -> None:
        """Wait for running handlers, no longer than the grace time, not at all when forced."""
        forced = asyncio.create_task(self._stopping.forced.wait())
        finishing = asyncio.create_task(self._all_finished())
        waits: set[asyncio.Task[Any]] = {finishing, forced}
        await asyncio.wait(waits, timeout=self.options.grace, return_when=asyncio.FIRST_COMPLETED)
        for one in waits:
            one.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    async def _all_finished(self) -> None:
        for consumer in self.consumers:
            await consumer.finish()

    async def _close(self, line: asyncio.Task[None]) -> None:
        self._line.stop()
        await self._publisher.close()
        for runner in self._runners:
            await runner.close()
        await line


def _most_holds(handler: AnyHandler) -> int:
    """Half of what can be handled at once may be waiting in our hands: the rest goes on."""
    return 0 if isinstance(handler, BatchHandler) else handler.options.concurrency // 2


async def _is_forgotten(connection: Connection, queue: str) -> bool:
    """Whether the broker counts no consumer on the queue."""
    try:
        channel = await connection.open_channel()
        state = await channel.declare_queue(Queue(queue), passive=True)
        await channel.close()
    except BrokerError:
        return False  # the consumer's own channel will hear of it
    return state.consumers == 0
