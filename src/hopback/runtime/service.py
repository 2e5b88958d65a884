"""Run an application.

The service connects to the broker, declares the topology and consumes messages. The steps of a
shutdown are described in `shutdown.py`.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from hopback.broker.declare import Ownership
from hopback.broker.message_sender import MessageSender
from hopback.broker.port import Broker, Connection, count_now
from hopback.broker.supervise import OnState, Supervised, SupervisedState
from hopback.durations import Duration, read_seconds
from hopback.errors import (
    BrokerError,
    ConnectionFailed,
    ConnectionLost,
    DeliveryLost,
    HopbackError,
    InvalidDeclaration,
    Problem,
    PublishInterrupted,
    TopologyError,
    UnsafeOperation,
)
from hopback.observe.events import Bus, reporter
from hopback.runtime.address import broker_at
from hopback.runtime.app import App
from hopback.runtime.assembly import Assembly
from hopback.runtime.context import Outlet, current_context
from hopback.runtime.delays import DelayQueues
from hopback.runtime.failures import FailedRuns
from hopback.runtime.handler import require
from hopback.runtime.periodic import PeriodicSender
from hopback.runtime.quarantine import Isolation
from hopback.runtime.requests import RequestClient
from hopback.runtime.settling import Environment
from hopback.runtime.shutdown import Report, Shutdown, StopRequest
from hopback.runtime.upkeep import Upkeep
from hopback.topology.model import ExchangeType, Queue, Topology
from hopback.waiting import first_of, is_on_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence

    from hopback.message import Message
    from hopback.runtime.consumer import Consumer

_LOG = logging.getLogger("hopback.runtime")

_LIFESPAN_S = 2.0
"""Seconds that the end of a lifespan may take after a second stop request."""


@dataclass(frozen=True, slots=True, init=False)
class ServiceOptions:
    """Options of a service.

    Durations are converted to seconds.

    - `queues`: only run the handlers of these queues.
    - `concurrency`: overrides the maximum number of concurrent runs of each handler.
    - `accept`: the rules of `check` that do not prevent the start, even though their severity is error.
    - `grace`: how long to wait for running handlers at shutdown.
    - `watch`: the interval for checking that the broker still has our consumers.
    - `upkeep`: the average interval for checking the declared queues, exchanges and bindings. Missing objects
      are created again.
    """

    queues: Collection[str] | None = None
    ownership: Ownership = Ownership.DECLARE
    accept: Collection[str] = ()
    grace: float = 30.0
    watch: float = 30.0
    upkeep: float = 30.0
    concurrency: int | None = None

    def __init__(
        self,
        queues: Collection[str] | None = None,
        ownership: Ownership = Ownership.DECLARE,
        accept: Collection[str] = (),
        grace: Duration = 30.0,
        watch: Duration = 30.0,
        upkeep: Duration = 30.0,
        concurrency: int | None = None,
    ) -> None:
        where = "ServiceOptions"
        try:
            ownership = Ownership(ownership)
        except ValueError:
            found = Problem("ownership", ", ".join(map(repr, map(str, Ownership))), repr(ownership))
            raise InvalidDeclaration((found,), where=where) from None
        enough = concurrency is None or concurrency >= 1
        require("concurrency", enough, "at least 1", concurrency, where=where)
        if accept:
            from hopback.topology.check import require_rule  # imports all rules

            for rule in accept:
                require_rule(rule, where=where)
        object.__setattr__(self, "queues", queues)
        object.__setattr__(self, "ownership", ownership)
        object.__setattr__(self, "accept", accept)
        object.__setattr__(self, "concurrency", concurrency)
        object.__setattr__(self, "grace", read_seconds(grace, "grace", where=where))
        object.__setattr__(self, "watch", read_seconds(watch, "watch", where=where, zero=False))
        object.__setattr__(self, "upkeep", read_seconds(upkeep, "upkeep", where=where, zero=False))


class _ReadyEvent(asyncio.Event):
    """An event that can fail. `wait` then raises the error instead."""

    def __init__(self) -> None:
        super().__init__()
        self._ended: BaseException | None = None

    def end(self, error: BaseException) -> None:
        """Make `wait` raise `error`, unless the event is already set."""
        if not self.is_set() and self._ended is None:
            self._ended = error
            self.set()

    async def wait(self) -> Literal[True]:
        await super().wait()
        if self._ended is not None:
            raise self._ended
        return True


class _Member:
    """An application that runs in a service, with its consumers and periodic senders."""

    def __init__(
        self, app: App, topology: Topology, queues: Sequence[str], service: Service
    ) -> None:
        self.app = app
        self._service = service
        self.assembly = Assembly(
            topology,
            service.outlet.send,
            service.environment,
            service.options.concurrency,
            app.middleware_of,
            app.overrides,
            FailedRuns(service.environment.bus, app.error_reports),
            app.codecs,
            app.reply_queues,
            service.isolation,
            service.requests,
        )
        # Workers inherit the context that is current when their pool is created.
        context = copy_context()
        context.run(reporter.set, service.report)
        self.consumers = tuple(
            context.run(self.assembly.consumer, app.handlers[queue]) for queue in queues
        )
        self.periodic = tuple(
            PeriodicSender(app.periodic[queue], service.outlet.send, service.environment)
            for queue in queues
            if queue in app.periodic
        )
        self.sending: list[asyncio.Task[None]] = []
        """The tasks of the periodic senders on the current connection."""
        self.removal: asyncio.Lock = asyncio.Lock()
        """Held while the application is removed."""

    def stop_sending(self) -> None:
        """Send no more periodic messages."""
        self.periodic = ()
        for task in self.sending:
            task.cancel()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Enter the lifespan of the application and create its dependencies."""
        self.app.connect(self._service.outlet.send, self._service)
        try:
            opened = self.assembly.open_dependencies(self.app.lifespan, self.app.lifespan_needs)
            async with opened:
                yield
        finally:
            self.app.connect(None)


class Service:
    """Runs an application on a broker.

    `asyncio.run(Service(app, "amqp://…").run())` is a complete program.

    `broker` is a broker or the address of RabbitMQ. Each function in `connection_tasks` is called
    with every consuming connection. It must use its own channels and run until the connection is
    closed. Exceptions are logged. `foreign_queues` are declared by another library. The service
    does not declare them, and the hazard checks assume that they exist.
    """

    def __init__(
        self,
        app: App,
        broker: Broker | str,
        *,
        options: ServiceOptions | None = None,
        environment: Environment | None = None,
        connection_tasks: Sequence[Callable[[Connection], Awaitable[None]]] = (),
        foreign_queues: Sequence[Queue] = (),
    ) -> None:
        given: object = app
        if not isinstance(given, App):
            raise TypeError(f"app: expected an App, as in `Service(app, broker)`, got {given!r}")
        self.app = app
        self._runs = False
        self.broker: Broker = broker_at(broker)
        self._connection_tasks = tuple(connection_tasks)
        self.options: ServiceOptions = options or ServiceOptions()
        self.environment: Environment = environment or Environment()
        topology = app.topology
        self._publisher = MessageSender(
            self.broker,
            name=f"{app.name} publisher",
            backoff=self.environment.reconnect,
            on_state=self._emit_state("publishing"),
            on_failure=partial(self._log_failure, "publishing"),
            keyless=self._exchanges_without_topics(topology),
        )
        self._line = Supervised(
            self.broker,
            f"{app.name} consumer",
            self._session,
            backoff=self.environment.reconnect,
            on_state=self._emit_state("consuming"),
            on_failure=partial(self._log_failure, "consuming"),
        )
        self.upkeep: Upkeep = Upkeep(
            topology,
            self.options.ownership,
            self.environment,
            accept=self.options.accept,
            foreign_queues=foreign_queues,
        )
        self.delays: DelayQueues = DelayQueues(
            lambda: self.topology, self.environment.clock, longest=app.longest_delay
        )
        self.requests: RequestClient = RequestClient(
            self.broker,
            name=f"{app.name} requests",
            backoff=self.environment.reconnect,
        )
        """Sends requests and waits for replies. It connects with the first request."""
        self.outlet: Outlet = Outlet(self.send)
        self.isolation: Isolation = Isolation()
        self._member = _Member(app, topology, self._find_queues(), self)
        self._added: dict[App, tuple[_Member, AsyncExitStack]] = {}
        self._opening: set[str] = set()
        """The queues of applications whose lifespan is being opened."""
        self._session_group: tuple[Connection, asyncio.TaskGroup] | None = None
        self._handled_by_removed = 0
        self._stopping = StopRequest()
        self.ready: _ReadyEvent = _ReadyEvent()
        """Set when every consumer of `app` has started. `wait` raises the exception of `run`."""
        self._failures: dict[str, str] = {}
        self._has_advised = False

    def _exchanges_without_topics(self, topology: Topology) -> list[str]:
        """Return the declared exchanges that are known not to be topic exchanges."""
        if self.options.ownership is Ownership.EXTERNAL:
            return []
        known = (ExchangeType.DIRECT, ExchangeType.FANOUT, ExchangeType.HEADERS)
        return [one.name for one in topology.exchanges if one.type in known]

    def _find_queues(self) -> tuple[str, ...]:
        wanted = self.options.queues
        unknown = [queue for queue in wanted or () if queue not in self.app.handlers]
        if unknown:
            known = f"one of {', '.join(self.app.handlers) or 'no queues'}"
            raise InvalidDeclaration(
                tuple(Problem("queues", known, repr(queue)) for queue in unknown),
                where=f"app {self.app.name!r}",
            )
        return tuple(queue for queue in self.app.handlers if wanted is None or queue in wanted)

    def _emit_state(self, purpose: str) -> OnState:
        def emit(state: SupervisedState, reason: str) -> None:
            fields = {"purpose": purpose, "state": str(state), "reason": reason}
            self.environment.bus.emit("connection.state", fields)

        return emit

    def _log_failure(self, purpose: str, error: Exception) -> None:
        """Log a connection failure. If it affects both connections, it is only logged once."""
        failure = f"{type(error).__name__}: {error}"
        if self._failures.get("consuming" if purpose == "publishing" else "publishing") == failure:
            self._failures.clear()
            return
        self._failures[purpose] = failure
        if isinstance(error, HopbackError) and not self._has_advised:
            self._has_advised = True
            _LOG.warning("%s. %s Trying again.", str(error).rstrip("."), error.remedy)
        else:
            _LOG.warning("%s", error)

    @property
    def lines(self) -> dict[str, SupervisedState]:
        """Return the state of each connection by its purpose."""
        return {"consuming": self._line.state, "publishing": self._publisher.state}

    def consumer(self, queue: str) -> Consumer:
        """Return the consumer of a queue. Raises KeyError if this service does not consume it."""
        found = next((one for one in self.consumers if one.queue == queue), None)
        if found is None:
            known = ", ".join(one.queue for one in self.consumers) or "none"
            raise KeyError(f"expected a queue that is consumed here ({known}), got {queue!r}")
        return found

    @property
    def topology(self) -> Topology:
        """The combined topology of all applications in this service."""
        return self.upkeep.topology

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        return tuple(consumer for member in self._members for consumer in member.consumers)

    @property
    def _members(self) -> list[_Member]:
        return [self._member, *(member for member, _ in self._added.values())]

    async def add(self, app: App) -> None:
        """Run another application in this service. It shares the connections, events and health
        checks.

        Its queues are declared and consumed right away, or once the service is connected. A queue
        that cannot be used does not stop the service, but is reported by `Health.ready` and
        `topology.unusable`.

        Raises:
            InvalidDeclaration: If this service already consumes one of the queues.
            UnsafeOperation: If there are hazards with the severity error.
        """
        consumed = {consumer.queue for consumer in self.consumers} | self._opening
        if twice := [queue for queue in app.handlers if queue in consumed]:
            problems = (
                Problem(
                    f"handlers.{queue}", "one handler per queue", f"a second in app {app.name!r}"
                )
                for queue in twice
            )
            raise InvalidDeclaration(tuple(problems), where=f"app {self.app.name!r}")
        topology = app.topology
        self.upkeep.add(topology)
        self._opening.update(app.handlers)
        stack = AsyncExitStack()
        try:
            member = _Member(app, topology, tuple(app.handlers), self)
            await stack.enter_async_context(member.open())
            stack.push_async_callback(member.assembly.close)
            if self._stopping.asked.is_set():
                raise RuntimeError(f"{self.app.name} is stopping: {app.name} was not added")
        except BaseException:
            self.upkeep.forget(topology)
            await stack.aclose()
            raise
        finally:
            self._opening.difference_update(app.handlers)
        self._added[app] = member, stack
        if self._session_group is not None:
            self._serve(member, *self._session_group)

    async def remove(self, app: App, *, unbind: bool = True) -> None:
        """Stop consuming the queues of an application that was added.

        The queues are unbound first, so that they do not receive any more messages. Periodic
        messages are not sent any more by this process. Running
        handlers may finish within the grace time. The queues and their messages are not deleted.
        With any ownership other than `declare`, bindings are left unchanged. If a call is cancelled,
        call `remove` again to complete it.

        Raises:
            BrokerError: If a queue cannot be unbound. The application keeps running.
            UnsafeOperation: If retries depend on the binding. The application keeps running.
        """
        member, stack = self._added[app]
        async with member.removal:
            if member not in self._members:  # removed by another call
                return
            queues = [consumer.queue for consumer in member.consumers] if unbind else []
            await self.upkeep.remove(member.assembly.topology, queues)
            member.stop_sending()
            ending = Shutdown(member.consumers, self._stopping, Bus(), self.options.grace)
            handled = (await ending.run()).handled
            try:
                await stack.aclose()  # does nothing if the service has ended
            finally:
                if self._added.pop(app, None) is not None:
                    self._handled_by_removed += handled
                for consumer in member.consumers:
                    self.environment.bus.emit("consumer.removed", {"queue": consumer.queue})

    def _serve(self, member: _Member, connection: Connection, group: asyncio.TaskGroup) -> None:
        member.sending = []
        several: tuple[Consumer | PeriodicSender, ...] = (*member.consumers, *member.periodic)
        for one in several:
            serving = one.serve(connection, self.upkeep.usable)
            try:
                task = group.create_task(serving)
            except RuntimeError:  # the connection was just closed and the next one takes over
                serving.close()
                continue
            if isinstance(one, PeriodicSender):
                member.sending.append(task)

    async def send(self, message: Message, ended: asyncio.Event | None = None) -> None:
        """Publish a message on the publishing connection and wait for the confirm.

        Raises DeliveryLost if `ended` is set before the message was sent.
        """
        if message.delay is not None:
            message = await self.delays.wrap(message)
        try:
            try:
                await self._publisher.send(message, ended=ended)
            except PublishInterrupted as error:
                await self._publish_again(message, ended, error)
        except DeliveryLost:
            raise  # the message was not sent, and the run is reported as `delivery.abandoned`
        except BrokerError as error:
            self.upkeep.report(message, error)
            self.environment.bus.emit(
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
        """Publish again on the next connection if a connection is lost during a run.

        Otherwise the run would fail, and the retry would publish the message again anyway.
        """
        if ended is None or not isinstance(error.__cause__, ConnectionLost):
            raise error
        try:
            await self._publisher.send(message, ended=ended)
        except ConnectionFailed:
            # the broker may have stored it, so don't claim that it was not sent
            raise error from error.__cause__

    def report(self, name: str, fields: Mapping[str, Any]) -> None:
        """Emit an event for the message that is being handled. Also called from handler threads."""
        context = current_context.get(None)
        properties = None if context is None else context.delivery.properties
        details = {
            **fields,
            "queue": context and context.queue,
            "routing_key": context and context.routing_key,
            "message_id": properties and properties.message_id,
            "message_type": properties and properties.type,
        }
        if is_on_loop():
            self.environment.bus.emit(name, details)
        elif self.outlet.loop is not None:
            self.outlet.loop.call_soon_threadsafe(self.environment.bus.emit, name, details)

    async def run(self) -> Report:
        """Run until `stop` is called. Raises errors that cannot be fixed by reconnecting."""
        if self._runs:
            raise RuntimeError("this Service already runs: await the first `run()`, or stop it")
        token = reporter.set(self.report)
        self.outlet.loop = asyncio.get_running_loop()
        self._runs = True
        try:
            return await self._run()
        finally:
            self._runs = False
            reporter.reset(token)

    async def _run(self) -> Report:
        self._publisher.start()
        report: Report | None = None
        forced: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(None) as limit, self._member.open():
                line = asyncio.create_task(self._line.run(), name="hopback-consuming")
                looking = asyncio.create_task(self._look(), name="hopback-slow-runs")
                try:
                    await first_of(line, self._stopping.asked.wait())
                    report = await self._shut_down()
                except asyncio.CancelledError:
                    self._stopping.force()
                    await self._shut_down()
                    raise
                finally:
                    looking.cancel()
                    self._line.stop()
                    self._stopping.asked.set()  # applications cannot be added any more
                    async with AsyncExitStack() as closing:  # continues if a step fails
                        closing.push_async_callback(lambda: line)  # raises its error
                        closing.push_async_callback(self._member.assembly.close)
                        for _, stack in self._added.values():
                            closing.push_async_callback(stack.aclose)
                        self._added.clear()
                forced = asyncio.create_task(self._limit_lifespan(limit))
            return report
        except BaseException as error:
            if isinstance(error, TimeoutError) and report is not None and limit.expired():
                _LOG.warning("the lifespan of %s did not end and was cancelled", self.app.name)
                return report
            self.ready.end(error)
            raise
        finally:
            if forced is not None:
                forced.cancel()
            self.ready.end(RuntimeError(f"{self.app.name} was stopped before it was ready"))
            await self.requests.close()
            await self._publisher.close()

    async def _limit_lifespan(self, limit: asyncio.Timeout) -> None:
        """After a second stop request, cancel the end of the lifespan if it takes too long."""
        await self._stopping.forced.wait()
        limit.reschedule(asyncio.get_running_loop().time() + _LIFESPAN_S)

    async def _shut_down(self) -> Report:
        shutdown = Shutdown(
            self.consumers, self._stopping, self.environment.bus, self.options.grace
        )
        # An application that is removed during the shutdown is counted by the shutdown.
        handled_by_removed = self._handled_by_removed
        report = await shutdown.run()
        return replace(report, handled=report.handled + handled_by_removed)

    def stop(self) -> None:
        """Shut down in order. Calling this again stops immediately."""
        self._stopping.ask()

    async def _session(self, connection: Connection) -> None:
        """Consume on a connection until it is closed."""
        await self.upkeep.begin(connection)
        self.delays.connection = connection
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.upkeep.attend(connection))
                group.create_task(self.upkeep.watch(connection, self.options.upkeep))
                group.create_task(self._watch(connection))
                group.create_task(self._announce())
                for attend in self._connection_tasks:
                    group.create_task(_attend(attend, connection))
                self._session_group = connection, group
                for member in self._members:
                    self._serve(member, connection, group)
        except BaseExceptionGroup as failures:
            # Raise errors that reconnecting cannot fix first, then errors in our own code.
            kinds = ((TopologyError, UnsafeOperation), HopbackError, BaseException)
            found = (one for kind in kinds for one in failures.exceptions if isinstance(one, kind))
            raise next(found) from failures
        finally:
            self._session_group = None
            self.delays.connection = None

    async def _announce(self) -> None:
        for consumer in self._member.consumers:
            await consumer.started.wait()
        self.ready.set()

    async def _look(self) -> None:
        """Check all consumers for slow runs. The interval is shorter while handlers are running."""
        while True:
            pause = self.options.watch / 3
            for consumer in self.consumers:
                consumer.look()
                if consumer.in_flight:
                    pause = min(pause, self.options.watch / 6, consumer.slow_runs.look_every)
            await asyncio.sleep(pause)

    async def _watch(self, connection: Connection) -> None:
        """Check periodically that the broker still has our consumers."""
        while True:
            await asyncio.sleep(self.options.watch)
            for consumer in self.consumers:
                try:
                    state = await count_now(connection, consumer.queue)
                except BrokerError:
                    continue  # reported by the consumer's own channel
                if state is not None and consumer.looks_forgotten(state):
                    consumer.restore("the broker does not know the consumer any more")


async def _attend(attend: Callable[[Connection], Awaitable[None]], connection: Connection) -> None:
    try:
        await attend(connection)
    except Exception:
        _LOG.exception("an attendant of the consuming connection failed")
