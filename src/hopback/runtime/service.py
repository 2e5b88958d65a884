"""Runs an application: connects, declares, consumes, and stops in numbered steps (`shutdown.py`).

An `Assembly` puts a queue's consumer together: its handler, its plan, what runs it and what settles.

An `Upkeep` keeps the declared topology in being meanwhile. At the start everything has to be as declared, or
the application does not run. Later it must not end because somebody deletes, migrates or replaces a
queue: what is missing is created anew where the topology is ours, and what cannot be is told, while its
messages stay where they are.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from hopback.broker.declare import (
    Ownership,
    is_complete,
    prepare,
    queues_in_migration,
    rebind,
    restore,
)
from hopback.broker.port import Broker, Connection, count_now
from hopback.broker.publisher import Publisher
from hopback.broker.supervise import OnState, Supervised, SupervisedState
from hopback.errors import (
    BrokerError,
    ConnectionFailed,
    ConnectionLost,
    DeliveryLost,
    HopbackError,
    InvalidTopology,
    NotFound,
    Problem,
    PublishInterrupted,
    Returned,
    TopologyError,
    UnsafeOperation,
)
from hopback.observe.events import reporter
from hopback.policy.quarantine import can_suspect
from hopback.runtime.batches import Batches
from hopback.runtime.consumer import Consumer, ConsumerLimits
from hopback.runtime.context import Outlet, Send, context_with, current_context
from hopback.runtime.delays import DelayQueues
from hopback.runtime.dependencies import Injector, Need, Overrides, Provider
from hopback.runtime.failures import FailedRuns
from hopback.runtime.handler import BatchHandler, Handler, HandlerOptions, require
from hopback.runtime.message_types import TypedHandlers, TypedRunner
from hopback.runtime.periodic import PeriodicSender
from hopback.runtime.push import PushHandler, PushRunner
from hopback.runtime.quarantine import Quarantine, Solitude
from hopback.runtime.requests import RequestClient
from hopback.runtime.settling import Environment, Settling
from hopback.runtime.shutdown import Report, Shutdown, Stopping
from hopback.runtime.slow_runs import SlowRuns
from hopback.runtime.worker import FunctionRunner, OneByOne, Work, inside_middleware
from hopback.topology.check import check
from hopback.topology.delays import longest_delay_ms
from hopback.topology.effective import effective_arguments
from hopback.topology.expand import dead_letters_park
from hopback.topology.hazards.rule import Finding, Severity
from hopback.topology.model import ExchangeType, Queue, Topology
from hopback.waiting import first_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence

    from hopback.fields import Headers
    from hopback.message import Message
    from hopback.runtime.answer import Answer, Run
    from hopback.runtime.app import AnyHandler, App
    from hopback.runtime.codecs import Codecs
    from hopback.runtime.middleware import Middleware
    from hopback.topology.plan import Plan
    from hopback.version import BrokerVersion


_LOOK_AGAIN_S = 1.0
"""Seconds for which a look at the whole topology counts: early messages ask for one each."""


class Upkeep:
    """Looks after one application's topology, on whatever connection it has."""

    def __init__(self, topology: Topology, ownership: Ownership, world: Environment) -> None:
        self._topology = topology
        self._ownership = ownership
        self._world = world
        self._own = {queue.name for queue in topology.queues}
        self._exchanges = {exchange.name for exchange in topology.exchanges}
        self._wanted = asyncio.Event()
        self._unrouted: set[str] = set()
        self._said: set[str] = set()
        self._turn = asyncio.Lock()
        self._looked_on: Connection | None = None
        self._looked_at = float("-inf")
        self._time = asyncio.get_running_loop().time
        self._begun = False
        self._connection: Connection | None = None
        self.troubles: dict[str, str] = {}
        """What cannot be used now, and why, by the name of the queue or exchange."""

    async def begin(self, connection: Connection) -> None:
        """Declare or check everything: at the first time TopologyError if it cannot be used.

        While one of the queues is being migrated, BrokerError: the connection is tried again.
        Later only what is missing is created, and what cannot be used is told.
        """
        if self._begun:
            await self._restore(connection, since=self._time())
            return
        if self._ownership is Ownership.DECLARE:
            away = await queues_in_migration(connection, self._topology)
            if away:
                raise BrokerError(
                    f"nothing is consumed while {', '.join(away)} is being migrated; if the migration"
                    " was interrupted, `hopback topology migrate` ends it"
                )
        await prepare(connection, self._topology, self._ownership)
        self._begun = True
        self._looked_on, self._looked_at = connection, self._time()

    async def usable(self, queue: str, connection: Connection, since: float) -> str:
        """Why the queue cannot be consumed, by a look of ours after `since`; empty if it can."""
        await self._restore(connection, since=since)
        return self.troubles.get(queue, "")

    async def look(self) -> Mapping[str, str]:
        """Restore missing objects now, unless that was tried within the last second; the troubles."""
        if self._connection is not None:
            with suppress(BrokerError):
                await self._restore(self._connection, since=self._time() - _LOOK_AGAIN_S)
        return self.troubles

    def report(self, message: Message, error: BrokerError) -> None:
        """A publish has failed: if a queue or exchange of ours may be missing, look soon."""
        ours = message.exchange in self._exchanges or (
            not message.exchange and message.routing_key in self._own
        )
        if not ours or not (isinstance(error, Returned) or isinstance(error.__cause__, NotFound)):
            return
        if self._ownership is Ownership.EXTERNAL:
            # Nobody looks here, so nobody would see that it is back: it is said only once.
            name = message.exchange or message.routing_key
            if name not in self._said:
                self._said.add(name)
                why = f"{error}; this application creates nothing (ownership `external`)"
                self._world.bus.emit("topology.unusable", {"object": name, "reason": why})
        else:
            self._unrouted.add(message.exchange)
            self._wanted.set()

    async def attend(self, connection: Connection) -> None:
        """Restore what publishes have missed, for as long as the connection lasts.

        Never at once: a queue that is being replaced is back within the first pause. And after each
        look that repaired nothing later: an exchange of ours may rightly have no queue for a message.
        """
        fruitless = 0
        self._connection = connection
        while True:
            await self._wanted.wait()
            await asyncio.sleep(self._world.backoff.delay(fruitless + 1, self._world.chance()))
            self._wanted.clear()
            repaired = await self._restore(connection, since=self._time())
            fruitless = 0 if repaired else fruitless + 1

    async def watch(self, connection: Connection, every: float) -> None:
        """Look at the declared topology again and again, and create what is missing.

        Processes that were started together do not look together.
        """
        while self._ownership is not Ownership.EXTERNAL:
            await asyncio.sleep(every * (0.75 + self._world.chance() / 2))
            with suppress(BrokerError):  # a lost connection ends this task by itself
                if self.troubles or not await is_complete(connection, self._topology):
                    await self._restore(connection, since=self._time())
                elif self._ownership is Ownership.DECLARE:
                    await rebind(connection, self._topology)

    async def _restore(self, connection: Connection, *, since: float) -> bool:
        """Look at everything, unless somebody has on this connection since then; whether it helped."""
        async with self._turn:
            if self._looked_on is connection and self._looked_at > since and not self._unrouted:
                return False
            began = self._time()
            unrouted, self._unrouted = self._unrouted, set()
            found = await restore(connection, self._topology, self._ownership, unrouted=unrouted)
            self._looked_on, self._looked_at = connection, began
            # Say what is new; what was said before is not said again.
            troubles = dict(found.troubles)
            for name in found.created:
                self._world.bus.emit("topology.restored", {"object": name})
            for name, reason in troubles.items():
                if self.troubles.get(name) != reason:
                    self._world.bus.emit("topology.unusable", {"object": name, "reason": reason})
            self.troubles = troubles
            return bool(found.created)


_OneByOneHandler: TypeAlias = "Handler | PushHandler | TypedHandlers"


@dataclass(slots=True)
class Assembly:
    """Makes consumers that share a topology and a way to publish, and closes what runs them."""

    topology: Topology
    publish: Send
    world: Environment
    concurrency: int | None = None
    """Overrides how many handlers of each queue run at once."""
    middleware: Callable[[str], Sequence[Middleware]] = lambda _queue: ()
    """What is put around the runs of a queue's handler."""
    overrides: Overrides = field(default_factory=dict)
    """Which providers take the place of others."""
    failed: FailedRuns | None = None
    """Who is told of failed runs."""
    codecs: Codecs | None = None
    """What decodes payloads by their content type, if the application has them."""
    reply_queues: Sequence[str] = ()
    """The queues that replies may go to, beside direct reply addresses."""
    _injectors: list[Injector] = field(default_factory=list)
    _runners: list[FunctionRunner | PushRunner] = field(default_factory=list)
    _solitude: Solitude = field(default_factory=Solitude)

    def consumer(self, handler: AnyHandler) -> Consumer:
        """The consumer of the handler's queue."""
        plan = self.topology.plan(handler.queue)
        assert plan is not None  # noqa: S101 - App.topology refuses handlers without a plan
        if isinstance(handler, BatchHandler):
            return self._in_batches(handler, plan)
        return self._one_by_one(handler, plan)

    @asynccontextmanager
    async def started(self) -> AsyncIterator[None]:
        """Make what the handlers need for as long as the application runs, and close it."""
        made: dict[Provider, Any] = {}
        async with AsyncExitStack() as stack:
            for injector in self._injectors:
                await injector.start(made, stack)
            yield

    async def close(self) -> None:
        """Close connections and let threads go."""
        for runner in self._runners:
            await runner.close()

    def _one_by_one(self, handler: _OneByOneHandler, plan: Plan) -> Consumer:
        options = handler.options
        if self.concurrency is not None:
            options = replace(options, concurrency=self.concurrency)
        # Half of what can be handled at once may wait in our hands: the rest goes on.
        settling = self._settling(plan, most_holds=options.concurrency // 2)
        runner = self._runner(handler, options, plan)
        run: Run = runner
        if isinstance(runner, PushRunner) and (around := self.middleware(handler.queue)):
            run = inside_middleware(around, run, plan, self.publish)
        if self.world.around is not None:
            run = self.world.around(run, plan)
        settled = None
        if not isinstance(runner, PushRunner) and runner.waits_for_settlement:
            settled = runner.settled
        work = partial(OneByOne, handler.queue, options, run, settling, settled)
        limits = ConsumerLimits(options.window, options.concurrency, options.breaker)
        return self._consuming(plan, limits, work, options.deadline)

    def _in_batches(self, handler: BatchHandler, plan: Plan) -> Consumer:
        options = handler.options
        # Middleware is around the whole life of a message in its batch, not around `prepare` alone.
        prepare = None if handler.prepare is None else self._function(handler.prepare, plan, ())
        injector = self._injector(handler.needs, f"batch handler of queue {handler.queue!r}", False)
        read = None
        if self.codecs is not None and handler.wanted is not None:
            read = self.codecs.reader(handler.wanted, handler.decode)
        context = context_with(self.codecs, self.reply_queues)
        work = partial(
            Batches,
            handler,
            prepare,
            self._settling(plan),
            self.world,
            injector,
            read,
            self.middleware(handler.queue),
            partial(context, plan=plan, publish=self.publish),
        )
        limits = ConsumerLimits(options.window, options.batchers, options.breaker)
        return self._consuming(plan, limits, work, options.deadline)

    def _consuming(
        self,
        plan: Plan,
        limits: ConsumerLimits,
        work: Callable[[Callable[[Answer], object]], Work],
        deadline: float | None,
    ) -> Consumer:
        queue = next((one for one in self.topology.queues if one.name == plan.queue), None)
        arguments: Headers = {}
        if queue is not None:
            arguments = effective_arguments(queue, self.topology.policies)
        timeout_ms = arguments.get("x-consumer-timeout")
        quarantine = None
        if can_suspect(plan):
            limit = arguments.get("x-delivery-limit")
            quarantine = Quarantine(plan, self._solitude, self.world, limit)

        # What it makes is held while a suspected message of any queue runs alone.
        def make(observe: Callable[[Answer], object]) -> Work:
            made = work(observe)
            self._solitude.join(made)
            return made

        def watch(work: Work) -> SlowRuns:
            timeout = timeout_ms / 1000 if isinstance(timeout_ms, int) else None
            return SlowRuns(plan, work, self.world, deadline=deadline, timeout=timeout)

        return Consumer(plan.queue, limits, make, self.world, quarantine, watch)

    def _settling(self, plan: Plan, *, most_holds: int = 0) -> Settling:
        return Settling(
            plan,
            self.publish,
            self.world,
            dead_letters_park=dead_letters_park(self.topology, plan),
            longest_delay_ms=longest_delay_ms(self.topology),
            most_holds=most_holds,
            failed=self.failed,
        )

    def _runner(
        self, handler: _OneByOneHandler, options: HandlerOptions, plan: Plan
    ) -> FunctionRunner | PushRunner | TypedRunner:
        around = self.middleware(handler.queue)
        if isinstance(handler, TypedHandlers):
            each = {
                name: self._function(
                    replace(one, options=replace(one.options, concurrency=options.concurrency)),
                    plan,
                    around,
                )
                for name, one in handler.handlers.items()
            }
            return TypedRunner(handler, each)
        if not isinstance(handler, PushHandler):
            return self._function(replace(handler, options=options), plan, around)
        target = replace(handler.target, connections=options.concurrency)
        runner = PushRunner(target, plan, self.world.clock)
        self._runners.append(runner)
        return runner

    def _function(
        self, handler: Handler, plan: Plan, middleware: Sequence[Middleware]
    ) -> FunctionRunner:
        runner = FunctionRunner(
            handler,
            plan,
            self.publish,
            self.world.bus,
            injector=self._injector(handler.needs, f"handler of queue {handler.queue!r}", True),
            middleware=middleware,
            codecs=self.codecs,
            reply_queues=self.reply_queues,
        )
        self._runners.append(runner)
        return runner

    def _injector(self, needs: Sequence[Need], where: str, has_context: bool) -> Injector | None:
        if not needs:
            return None
        made = Injector(needs, where=where, overrides=self.overrides, has_context=has_context)
        self._injectors.append(made)
        return made


def vet(
    topology: Topology, version: BrokerVersion, accepted: Collection[str]
) -> tuple[Finding, ...]:
    """The warnings to be said; UnsafeOperation lists the errors that nobody accepted by name."""
    findings = check(topology, version)
    grave = [one for one in findings if one.severity is Severity.ERROR and one.rule not in accepted]
    if grave:
        listed = "\n".join(f"  {one.rule} at {one.place}: {one.explanation}" for one in grave)
        raise UnsafeOperation(
            f"{topology.name} is not started on RabbitMQ {version}:\n{listed}\n"
            "Correct these, or accept them by name."
        )
    return tuple(one for one in findings if one.severity is not Severity.INFO)


_LOG = logging.getLogger("hopback.runtime")


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """How an application is run.

    `queues` limits it to some of its handlers, `concurrency` overrides how many of each run at once.
    `accept` names the `check` rules of severity error that may stand. `grace` is how long running
    handlers may take at shutdown, `watch` how often the broker is asked whether it still knows the
    consumers (seconds). `upkeep` is the mean time between two looks at the declared queues, exchanges
    and bindings, which restore what is missing (seconds).
    """

    queues: Collection[str] | None = None
    ownership: Ownership = Ownership.DECLARE
    accept: Collection[str] = ()
    grace: float = 30.0
    watch: float = 30.0
    upkeep: float = 30.0
    concurrency: int | None = None

    def __post_init__(self) -> None:
        enough = self.concurrency is None or self.concurrency >= 1
        require("concurrency", enough, "at least 1", self.concurrency)
        require("grace", self.grace >= 0, "0 or more seconds", self.grace)
        require("watch", self.watch > 0, "more than 0 seconds", self.watch)
        require("upkeep", self.upkeep > 0, "more than 0 seconds", self.upkeep)


class _ReadyEvent(asyncio.Event):
    """An event that may never come: who waits for it is told why."""

    def __init__(self) -> None:
        super().__init__()
        self._ended: BaseException | None = None

    def end(self, error: BaseException) -> None:
        """It will not come any more; if it has come already, nothing changes."""
        if not self.is_set() and self._ended is None:
            self._ended = error
            self.set()

    async def wait(self) -> Literal[True]:
        """Return when it has come; raises why it never will."""
        await super().wait()
        if self._ended is not None:
            raise self._ended
        return True


class Service:
    """An application at work on a broker. Made and run on the same event loop.

    Each of `beside` is called with every consuming connection and runs as long as it lasts, on
    channels of its own; it has to keep its troubles to itself. `theirs` are queues that others look
    after: `check` takes them as there, and nobody here declares them.
    """

    def __init__(
        self,
        app: App,
        broker: Broker,
        *,
        options: ServiceOptions | None = None,
        world: Environment | None = None,
        beside: Sequence[Callable[[Connection], Awaitable[None]]] = (),
        theirs: Sequence[Queue] = (),
    ) -> None:
        self.app = app
        self._theirs = tuple(theirs)
        self.broker = broker
        self._beside = tuple(beside)
        self.options: ServiceOptions = options or ServiceOptions()
        self.world: Environment = world or Environment()
        self.topology: Topology = app.topology
        self._publisher = Publisher(
            broker,
            name=f"{app.name} publisher",
            backoff=self.world.reconnect,
            on_state=self._state_of("publishing"),
            on_failure=partial(self._tell_failure, "publishing"),
            keyless=self._exchanges_without_topics(),
        )
        self._line = Supervised(
            broker,
            f"{app.name} consumer",
            self._session,
            backoff=self.world.reconnect,
            on_state=self._state_of("consuming"),
            on_failure=partial(self._tell_failure, "consuming"),
        )
        self.upkeep: Upkeep = Upkeep(self.topology, self.options.ownership, self.world)
        self.delays: DelayQueues = DelayQueues(self.topology, self.world.clock)
        self.requests: RequestClient = RequestClient(
            broker, name=f"{app.name} requests", codecs=app.codecs, backoff=self.world.reconnect
        )
        """Asks and waits for answers; it connects with the first request."""
        self._outlet = Outlet(self.publish)
        self._assembly = Assembly(
            self.topology,
            self._outlet.send,
            self.world,
            self.options.concurrency,
            app.middleware_of,
            app.overrides,
            FailedRuns(self.world.bus, app.error_reports),
            app.codecs,
            app.reply_queues,
        )
        # Workers inherit the context in which their pool is made.
        made_in = copy_context()
        made_in.run(reporter.set, self._report)
        self.consumers: tuple[Consumer, ...] = tuple(
            made_in.run(self._assembly.consumer, app.handlers[queue])
            for queue in self._wanted_queues()
        )
        self._periodic = tuple(
            PeriodicSender(app.periodic[queue], self._outlet.send, self.world)
            for queue in self._wanted_queues()
            if queue in app.periodic
        )
        self._loop = asyncio.get_running_loop()
        self._stopping = Stopping()
        self._checked = False
        self.ready: _ReadyEvent = _ReadyEvent()
        """Set when every consumer has been started for the first time; `wait` raises what `run` raised."""
        self._told: dict[str, str] = {}

    def _exchanges_without_topics(self) -> list[str]:
        """The declared exchanges whose types were checked at the start and are not topic exchanges."""
        if self.options.ownership is Ownership.EXTERNAL:
            return []
        known = (ExchangeType.DIRECT, ExchangeType.FANOUT, ExchangeType.HEADERS)
        return [one.name for one in self.topology.exchanges if one.type in known]

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

    def _state_of(self, purpose: str) -> OnState:
        def tell(state: SupervisedState, reason: str) -> None:
            fields = {"purpose": purpose, "state": str(state), "reason": reason}
            self.world.bus.emit("connection.state", fields)

        return tell

    def _tell_failure(self, purpose: str, error: Exception) -> None:
        """One line for each try: of both connections the second says nothing new."""
        told = f"{type(error).__name__}: {error}"
        if self._told.get("consuming" if purpose == "publishing" else "publishing") == told:
            self._told.clear()
            return
        self._told[purpose] = told
        _LOG.warning("%s", error)

    @property
    def lines(self) -> dict[str, SupervisedState]:
        """The state of both connections, by purpose."""
        return {"consuming": self._line.state, "publishing": self._publisher.state}

    def consumer(self, queue: str) -> Consumer:
        """The consumer of a queue, to look at, pause or resume; KeyError if it is not run here."""
        found = next((one for one in self.consumers if one.queue == queue), None)
        if found is None:
            known = ", ".join(one.queue for one in self.consumers) or "none"
            raise KeyError(f"expected a queue that is consumed here ({known}), got {queue!r}")
        return found

    def beside(self, app: App) -> Service:
        """A service of another application on the same broker, heard by the same listeners; not run yet."""
        options = replace(self.options, queues=None)
        return Service(app, self.broker, options=options, world=self.world)

    async def publish(self, message: Message, ended: asyncio.Event | None = None) -> None:
        """Publish on the publishing connection and wait for the confirm.

        DeliveryLost if `ended` is set before the message was handed over.
        """
        if message.delay is not None:
            message = await self.delays.wrap(message)
        try:
            try:
                await self._publisher.publish(message, ended=ended)
            except PublishInterrupted as error:
                await self._publish_again(message, ended, error)
        except DeliveryLost:
            raise  # it was not tried, and `delivery.abandoned` reports the run
        except BrokerError as error:
            self.upkeep.report(message, error)
            self.world.bus.emit(
                "publish.failed",
                {
                    "exchange": message.exchange,
                    "routing_key": message.routing_key,
                    "error": f"{type(error).__name__}: {error}",
                },
            )
            raise

    async def _publish_again(
        self, message: Message, ended: asyncio.Event | None, error: PublishInterrupted
    ) -> None:
        """Publish once more on the next connection if the last one was lost while a run published.

        The run would fail otherwise, and another run would publish the message again all the same.
        """
        if ended is None or not isinstance(error.__cause__, ConnectionLost):
            raise error
        try:
            await self._publisher.publish(message, ended=ended)
        except ConnectionFailed:
            raise error from error.__cause__  # it may have been stored, so "nothing was sent" is wrong

    def _report(self, name: str, fields: Mapping[str, Any]) -> None:
        """Emit an event with the message that is being handled; also from a thread of a handler."""
        context = current_context.get(None)
        properties = None if context is None else context.delivery.properties
        whole = {
            **fields,
            "queue": context and context.queue,
            "routing_key": context and context.routing_key,
            "message_id": properties and properties.message_id,
            "message_type": properties and properties.type,
        }
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._loop.call_soon_threadsafe(self.world.bus.emit, name, whole)
        else:
            self.world.bus.emit(name, whole)

    async def run(self) -> Report:
        """Run until `stop`; raises what no new connection can repair."""
        token = reporter.set(self._report)
        try:
            return await self._run()
        finally:
            reporter.reset(token)

    async def _run(self) -> Report:
        self._publisher.start()
        self.app.connected(self._outlet.send, self)
        try:
            async with self.app.lifespan(), self._assembly.started():
                # Consume until the end was asked for, and end in order.
                line = asyncio.create_task(self._line.run(), name="hopback-consuming")
                looking = asyncio.create_task(self._look(), name="hopback-slow-runs")
                shutdown = Shutdown(
                    self.consumers, self._stopping, self.world.bus, self.options.grace
                )
                try:
                    await first_of(line, self._stopping.asked.wait())
                    return await shutdown.run()
                except asyncio.CancelledError:
                    self._stopping.force()
                    await shutdown.run()
                    raise
                finally:
                    looking.cancel()
                    self._line.stop()
                    await self._assembly.close()
                    await line  # raises what ended it if it was not us
        except BaseException as error:
            self.ready.end(error)
            raise
        finally:
            self.ready.end(RuntimeError(f"{self.app.name} was stopped before it was ready"))
            self.app.connected(None)
            await self.requests.close()
            await self._publisher.close()

    def stop(self) -> None:
        """Ask for an orderly end; a second time, for an end at once."""
        self._stopping.ask()

    async def _session(self, connection: Connection) -> None:
        """Everything that happens on one consuming connection."""
        if not self._checked:
            # Errors for this broker's version refuse the start; what is only a warning is said once.
            whole = replace(self.topology, queues=(*self.topology.queues, *self._theirs))
            for one in vet(whole, connection.version, self.options.accept):
                fields = {"rule": one.rule, "place": one.place, "text": one.explanation}
                self.world.bus.emit("topology.warning", fields)
            self._checked = True
        await self.upkeep.begin(connection)
        self.delays.connection = connection
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.upkeep.attend(connection))
                group.create_task(self.upkeep.watch(connection, self.options.upkeep))
                group.create_task(self._watch(connection))
                group.create_task(self._announce())
                for attend in self._beside:
                    group.create_task(_attended(attend, connection))
                for consumer in self.consumers:
                    group.create_task(consumer.serve(connection, self.upkeep.usable))
                for sender in self._periodic:
                    group.create_task(sender.serve(connection, self.upkeep.usable))
        except BaseExceptionGroup as failures:
            # One decides: what no new connection can repair, then what we know, then the rest.
            kinds = ((TopologyError, UnsafeOperation), HopbackError, BaseException)
            found = (one for kind in kinds for one in failures.exceptions if isinstance(one, kind))
            raise next(found) from failures
        finally:
            self.delays.connection = None

    async def _announce(self) -> None:
        for consumer in self.consumers:
            await consumer.started.wait()
        self.ready.set()

    async def _look(self) -> None:
        """Look for slow runs of all consumers, more often while something runs."""
        while True:
            pause = self.options.watch / 3
            for consumer in self.consumers:
                consumer.look()
                if consumer.in_flight:
                    pause = min(pause, self.options.watch / 6, consumer.slow_runs.look_every)
            await asyncio.sleep(pause)

    async def _watch(self, connection: Connection) -> None:
        """Ask the broker now and then whether it still knows our consumers."""
        while True:
            await asyncio.sleep(self.options.watch)
            for consumer in self.consumers:
                try:
                    state = await count_now(connection, consumer.queue)
                except BrokerError:
                    continue  # the consumer's own channel will hear of it
                if state is not None and consumer.looks_forgotten(state):
                    consumer.restore("the broker does not know the consumer any more")


async def _attended(
    attend: Callable[[Connection], Awaitable[None]], connection: Connection
) -> None:
    """What runs beside the consumers must not end them."""
    try:
        await attend(connection)
    except Exception:
        _LOG.exception("what ran beside the consumers has ended")
