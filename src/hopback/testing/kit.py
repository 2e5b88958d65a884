"""Run an application in a test with the embedded broker and virtual time.

Delays don't slow down tests: a retry after half an hour only takes milliseconds. The embedded
broker behaves like RabbitMQ and can inject faults.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import time
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeAlias, Unpack, overload

from hopback.broker.embedded import (
    EmbeddedBroker,
    EventKind,
    Faults,
    Node,
    Refusal,
    StoredMessage,
    VirtualTimeLoop,
    run_virtual,
)
from hopback.broker.embedded.refusal import channel_error, publish_refused
from hopback.broker.embedded.virtual_time import LoopClock
from hopback.broker.port import Broker, Channel, Connection, count_now
from hopback.durations import LONGEST_MS, Duration, format_duration, read_seconds
from hopback.errors import InvalidDeclaration, Problem, PublishRefused
from hopback.message import require_message
from hopback.observe.events import Bus
from hopback.rehearse.engine import EngineKind
from hopback.rehearse.engine import rehearse as play
from hopback.rehearse.quantities import parse_seconds, show_count, show_seconds
from hopback.runtime.address import broker_at
from hopback.runtime.app import App
from hopback.runtime.context import REQUEST_TIMEOUT, PublishOptions, compose
from hopback.runtime.publish_arguments import explain_arguments
from hopback.runtime.requests import RequestClient
from hopback.runtime.service import Service, ServiceOptions
from hopback.runtime.settling import Environment
from hopback.testing.captured import EventRecord, Happening, Tally, tally_of
from hopback.topology.delays import DUE, is_delay_level
from hopback.topology.expand import retry_queues
from hopback.waiting import first_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping
    from datetime import datetime

    from hopback.broker.embedded.stored import UnackedDelivery
    from hopback.durations import Duration
    from hopback.message import Message
    from hopback.rehearse.forecast import Forecast
    from hopback.rehearse.scenario import Scenario
    from hopback.runtime.dependencies import Overrides
    from hopback.runtime.shutdown import Report
    from hopback.topology.plan import Plan

P = ParamSpec("P")

_INSTANT = 1e-5
"""Seconds. In virtual time, any delay lets all pending work run first."""
_UPKEEP_S = 86_400.0  # virtual seconds between topology checks
_DAY = 86_400.0  # virtual seconds; longer than the retry delays of any sensible plan
_MINUTE = 60.0  # real seconds; enough for tests with short delays on a real broker
_LOOK_S = 0.1  # real seconds between polls of a real broker
_QUIET_LOOKS = 3
"""The number of times that the queues have to be empty. Once is not enough, because an expired
message is not in any queue while the broker moves it.
"""


AsyncTest: TypeAlias = "Callable[P, Coroutine[Any, Any, None]]"


@overload
def in_virtual_time(test: AsyncTest[P]) -> Callable[P, None]: ...


@overload
def in_virtual_time(*, start: datetime) -> Callable[[AsyncTest[P]], Callable[P, None]]: ...


def in_virtual_time(test: AsyncTest[P] | None = None, *, start: datetime | None = None) -> Any:
    """Decorator that runs an async test in virtual time.

    The test becomes a regular function, so no pytest plugin is needed. When all tasks are waiting,
    the clock of the event loop jumps to the next deadline.

    Args:
        test: The async test function.
        start: The initial time. Defaults to the current time.
    """

    if start is not None and start.tzinfo is None:
        problem = Problem("start", "a datetime with a time zone", repr(start))
        raise InvalidDeclaration((problem,), where="in_virtual_time")

    def decorate(test: AsyncTest[P]) -> Callable[P, None]:
        @functools.wraps(test)
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            # Use whole seconds so that adding delays is exact.
            began = math.floor(time.time() if start is None else start.timestamp())
            body: object = test(*args, **kwargs)
            if not inspect.iscoroutine(body):
                name = getattr(test, "__name__", repr(test))
                raise TypeError(f"in_virtual_time: expected an async function, got def {name}")
            run_virtual(body, start=began)

        return run

    return decorate if test is None else decorate(test)


class AppTest(EventRecord):
    """Runs an application on its own embedded broker.

    This is an async context manager. Pass `broker="amqp://…"` to run the same test against a real
    broker in real time. In this case `dead_letters` returns the messages found by the last call to
    `drain`.

    Attributes:
        events: All events emitted by the application.
        broker: The embedded broker.
        service: The running service.
        report: The final report, available after `stop`.
    """

    def __init__(
        self,
        app: App,
        *,
        broker: Broker | str | None = None,
        options: ServiceOptions | None = None,
        chance: float = 0.5,
        overrides: Overrides | None = None,
    ) -> None:
        given: object = app
        if not isinstance(given, App):
            raise TypeError(f"app: expected an App, as in `AppTest(app)`, got {given!r}")
        self.app = app
        self._overrides = overrides or {}
        if broker is not None:
            broker = broker_at(broker)
        live = broker is not None and not isinstance(broker, EmbeddedBroker)
        self._live = QueuesUnderTest(broker) if broker is not None and live else None
        self._embedded = broker if isinstance(broker, EmbeddedBroker) else EmbeddedBroker()
        self._used: Broker = self._embedded if broker is None else broker
        super().__init__()
        self.failures: list[BaseException] = []
        """The exceptions raised by handlers."""
        self.report: Report | None = None
        self._producer = Producer(self._embedded.node)
        self._clock = LoopClock(time.time)
        # In a test, no other program deletes queues. A check every few seconds would slow down long
        # virtual delays.
        embedded = ServiceOptions(upkeep=_UPKEEP_S) if self._live is None else None
        self._options = options or embedded
        self._chance = chance
        self._stirred = asyncio.Event()
        self._seen: dict[str, int] = {}
        self._counted = 0
        self._shown = 0
        self._running: asyncio.Task[Report] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        if self._live is not None:
            if isinstance(asyncio.get_running_loop(), VirtualTimeLoop):
                raise RuntimeError(
                    f"{self._live.address} runs in real time. Run this test without "
                    "`in_virtual_time` and with delays of milliseconds, or use the embedded broker."
                )
            await self._live.open()
        environment = Environment(
            bus=Bus(self._note),
            clock=self._clock,
            chance=lambda: self._chance,
            host="test",
            on_exception=self.failures.append,
        )
        self._embedded.node.listen(lambda _event: self._stirred.set())
        with self.app.override(self._overrides):
            self.service: Service = Service(
                self.app, self._used, options=self._options, environment=environment
            )
        self._running = asyncio.create_task(self.service.run(), name="app under test")
        await first_of(self._running, self.service.ready.wait())
        if self._running.done():
            await self._running
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._require_own_loop()
        self.service.stop()
        if kind is not None:
            self.service.stop()  # the test has already failed, no need to wait
        try:
            await self.stop()
        finally:
            if self._live is not None:
                await self._live.close()

    async def stop(self) -> Report:
        """Stop the application gracefully and return its report."""
        self._require_own_loop()
        if self.report is None:
            assert self._running is not None  # noqa: S101 - entered before it is left
            self.service.stop()
            self.report = await self._running
        return self.report

    def _require_own_loop(self) -> None:
        """Raise RuntimeError when called from a different event loop."""
        if self._loop is None:
            raise RuntimeError("expected `async with AppTest(app) as test:` before this call")
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                "this AppTest was entered on another event loop, for example by an async fixture. Its "
                "application does not run while this loop runs. Write `async with AppTest(app) as "
                "test:` inside the test, or let fixture and test use the same loop"
            )

    def _note(self, name: str, fields: Mapping[str, Any]) -> None:
        self.events.append(Happening(name, fields, self._clock.now()))
        self._stirred.set()

    @explain_arguments
    async def publish(
        self,
        routing_key: str,
        payload: object,
        *,
        exchange: str = "",
        **options: Unpack[PublishOptions],
    ) -> None:
        """Publish a message to a queue or an exchange, like a producer would.

        Injected faults do not affect this method.

        Raises:
            Returned: If the message is unroutable.
        """
        codecs = self.app.codecs
        await self.send(compose(routing_key, payload, exchange=exchange, codecs=codecs, **options))

    async def send(self, message: Message) -> None:
        """Publish a composed message, like a producer would."""
        self._require_own_loop()
        require_message(message)
        if message.delay is not None:
            message = await self.service.delays.wrap(message)
        if self._live is not None:
            await self._live.send(message)
            return
        self._producer.send(message)
        await asyncio.sleep(_INSTANT)

    @explain_arguments
    async def request(
        self,
        routing_key: str,
        payload: object,
        *,
        exchange: str = "",
        timeout: Duration = REQUEST_TIMEOUT,  # noqa: ASYNC109 - as the client has it
        returns: Any = Any,
        **options: Unpack[PublishOptions],
    ) -> Any:
        """Send a request and return the reply. Raises NoReply if there is no reply in time."""
        self._require_own_loop()
        async with RequestClient(self._used, name="test", codecs=self.app.codecs) as client:
            return await client.request(
                routing_key, payload, exchange=exchange, timeout=timeout, returns=returns, **options
            )

    async def drain(self, *, reraise: bool = False, within: Duration | None = None) -> Tally:
        """Wait until all messages have been processed, including retries.

        Returns when there are no messages left in the handled queues and the retry queues, and no
        handler is running.

        Args:
            reraise: If True, raise the first exception that a handler has raised since the last drain.
            within: Maximum time to wait. Defaults to one day of virtual time, or one minute on a
                real broker.

        Returns:
            The number of deliveries per outcome since the last drain.

        Raises:
            TimeoutError: If messages are left when the time is up.
        """
        self._require_own_loop()
        most = _DAY if self._live is None else _MINUTE
        if within is not None:
            most = read_seconds(within, "within", where="AppTest.drain")
        try:
            async with asyncio.timeout(most):
                await (self._until_idle() if self._live is None else self._until_quiet(self._live))
        except TimeoutError:
            left = self._left() if self._live is None else self._seen
            limit = format_duration(round(most * 1000))
            enough = most + max(most, self._longest_wait(left))
            longer = format_duration(min(round(enough * 1000), LONGEST_MS))
            raise TimeoutError(
                f"not drained within {limit}: {left}. If waits are longer, raise the limit:"
                f' `drain(within="{longer}")`'
            ) from None
        since, self._counted = self.events[self._counted :], len(self.events)
        shown, self._shown = self.failures[self._shown :], len(self.failures)
        if reraise:
            # Raise the first exception, or the reason if the handler returned an outcome.
            if shown:
                if len(shown) > 1:
                    shown[0].add_note(f"and {len(shown) - 1} more failed runs")
                raise shown[0]
            said = [one for one in since if one.name in ("delivery.retried", "delivery.parked")]
            if said:
                raise AssertionError(said[0].summary)
        # Delayed messages are counted when they are handled, not when they are forwarded.
        return tally_of(
            one for one in since if (one.name, one.fields.get("queue")) != ("delivery.done", DUE)
        )

    async def advance(self, duration: Duration) -> None:
        """Advance the virtual time and run everything that becomes due."""
        seconds = read_seconds(duration, "duration", where="AppTest.advance")
        self._require_own_loop()
        if not isinstance(asyncio.get_running_loop(), VirtualTimeLoop):
            raise RuntimeError(
                "advance needs virtual time: decorate the test with `in_virtual_time`"
            )
        await asyncio.sleep(seconds)
        await asyncio.sleep(_INSTANT)

    async def _until_idle(self) -> None:
        while True:
            self._stirred.clear()
            await asyncio.sleep(_INSTANT)
            if self._running is not None and self._running.done():
                await self._running
                return
            if not self._left():
                return
            await self._stirred.wait()

    async def _until_quiet(self, live: QueuesUnderTest) -> None:
        """Poll the queues until they are empty. A message may be in transit between two queues."""
        quiet = 0
        while quiet < _QUIET_LOOKS:
            before = len(self.events)
            await asyncio.sleep(_LOOK_S)
            if self._running is not None and self._running.done():
                await self._running
                return
            self._seen = await live.count(self._queues_to_drain())
            running = any(one.in_flight for one in self.service.consumers)
            quiet = 0 if self._seen or running or len(self.events) > before else quiet + 1
        for consumer in self.service.consumers:
            await live.look(self._plan(consumer.queue).parking.queue)

    def _left(self) -> dict[str, int]:
        """Return the number of remaining messages per queue."""
        counts: dict[str, int] = {}
        for name in self._queues_to_drain():
            queue = self._embedded.node.queues.get(name)
            if queue is not None:
                waiting = len(queue.safe.dead_letters) + len(queue.delays.entries)
                counts[name] = len(queue.ready) + queue.unacked + waiting
        counts["in flight"] = sum(one.in_flight for one in self.service.consumers)
        return {name: count for name, count in counts.items() if count}

    def _longest_wait(self, names: Iterable[str]) -> float:
        """Return the longest time in seconds that a message may wait in one of these queues."""
        plans = [self._plan(one.queue) for one in self.service.consumers]
        waits = {queue: ms / 1000 for plan in plans for queue, ms in retry_queues(plan)}
        longest = self.app.longest_delay
        delay = 0.0 if longest is None else read_seconds(longest, "longest", where="app.delays")
        return max(
            (delay if is_delay_level(name) else waits.get(name, 0.0) for name in names), default=0.0
        )

    def _queues_to_drain(self) -> list[str]:
        """Return the names of the queues that `drain` waits for."""
        plans = [self._plan(one.queue) for one in self.service.consumers]
        waiting = [queue for plan in plans for queue, _ in retry_queues(plan)]
        later = [one.name for one in self.service.topology.queues if is_delay_level(one.name)]
        return [*(plan.queue for plan in plans), *waiting, *later]

    def _plan(self, queue: str) -> Plan:
        plan = self.service.topology.plan(queue)
        if plan is None:
            known = ", ".join(one.queue for one in self.service.topology.plans)
            raise LookupError(f"expected a queue with a failure plan ({known}), got {queue!r}")
        return plan

    @property
    def broker(self) -> EmbeddedBroker:
        """The embedded broker. Raises RuntimeError if the test runs on a real broker."""
        if self._live is not None:
            raise RuntimeError(
                f"this test runs on {self._live.address}. Snapshots and faults are only available "
                "with the embedded broker."
            )
        return self._embedded

    @property
    def faults(self) -> Faults:
        """Controls for injecting faults."""
        return self.broker.faults

    def dead_letters(self, queue: str) -> tuple[StoredMessage, ...]:
        """Return the messages in the dead-letter queue of `queue`, oldest first."""
        parking = self._plan(queue).parking.queue
        if self._live is not None:
            return self._live.parked.get(parking, ())
        return self.broker.snapshot().queue(parking).messages

    def assert_parked(
        self, queue: str, *, times: int | None = None, reason: str = "", **fields: Any
    ) -> None:
        """Assert that messages of the queue were dead-lettered and are in its dead-letter queue."""
        super().assert_parked(queue, times=times, reason=reason, **fields)
        found = len(self.find_events("delivery.parked", queue=queue, reason=reason, **fields))
        resting = len(self.dead_letters(queue))
        if resting < found:
            raise AssertionError(
                f"{queue}: {found} parked, but its dead-letter queue has {resting}"
            )


#
# Access to the queues of a real broker.


class QueuesUnderTest:
    """A connection to a real broker. `parked` contains the dead letters of each queue at the last
    look.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._connection: Connection | None = None
        self._channel: Channel | None = None
        self.parked: dict[str, tuple[StoredMessage, ...]] = {}

    @property
    def address(self) -> str:
        """The address of the broker."""
        return self._broker.address

    async def open(self) -> None:
        """Connect to the broker."""
        self._connection = await self._broker.connect("hopback test")
        self._channel = await self._connection.open_channel()

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def send(self, message: Message) -> None:
        """Publish a message and wait for the confirm. Reopens the channel if the last publish
        closed it.
        """
        assert self._connection is not None  # noqa: S101 - opened before it is used
        if self._channel is None:
            self._channel = await self._connection.open_channel()
        channel, self._channel = self._channel, None
        await channel.publish(message, mandatory=message.mandatory)
        self._channel = channel

    async def count(self, queues: Iterable[str]) -> dict[str, int]:
        """Return the number of ready messages per queue. Empty queues are omitted."""
        assert self._connection is not None  # noqa: S101 - opened before it is used
        found = {queue: await count_now(self._connection, queue) for queue in queues}
        return {queue: state.messages for queue, state in found.items() if state and state.messages}

    async def look(self, queue: str) -> None:
        """Read all messages of a dead-letter queue. They are requeued when the channel is closed."""
        assert self._connection is not None  # noqa: S101 - opened before it is used
        channel = await self._connection.open_channel()
        seen: list[StoredMessage] = []
        while (held := await channel.get(queue)) is not None:
            number = len(seen)
            seen.append(
                StoredMessage(
                    copy=number,
                    origin=number,
                    exchange=held.exchange,
                    routing_key=held.routing_key,
                    body=held.body,
                    properties=held.properties,
                    redelivered=held.redelivered,
                    returns=0,
                    failures=0,
                    expires=None,
                )
            )
        await channel.close()
        self.parked[queue] = tuple(seen)


# A producer that injected faults do not affect.


class Producer:
    """Publishes messages directly to a node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def send(self, message: Message) -> None:
        """Publish a message. Raises Returned, Nacked or PublishRefused if it fails."""
        session = self._node.connect("test")
        try:
            fate = session.open_channel(self).publish(message, mandatory=message.mandatory)
        except Refusal as refusal:
            error = channel_error(refusal)
            raise PublishRefused(message.exchange, message.routing_key, error) from error
        finally:
            session.close()
        if fate in (EventKind.RETURNED, EventKind.REFUSED):
            raise publish_refused(fate, message)

    def deliver(self, taken: UnackedDelivery) -> None:
        """Not used, since the producer does not consume."""

    def on_cancel(self, tag: str) -> None:
        """Not used, since the producer does not consume."""

    def on_close(self, refusal: Refusal) -> None:
        """Ignored, since `send` has already raised the error."""


def rehearse(app: App, scenario: Scenario, *, engine: EngineKind = EngineKind.FLUID) -> Forecast:
    """Simulate the effect of a scenario on the queues of the application.

    Handlers are not called. The result is reproducible for a given seed. This function must not be
    called from a coroutine.
    """
    return play(app.topology, scenario, EngineKind(engine))


def assert_no_dead_letters(forecast: Forecast) -> None:
    """Assert that the forecast does not contain dead letters."""
    parked = [one for one in forecast.stations if one.dead_letters >= 0.5]
    if parked:
        told = "; ".join(
            f"{one.queue}: {show_count(one.dead_letters)}, the first after"
            f" {show_seconds(one.first_dead_letter_s or 0.0)}"
            for one in parked
        )
        raise AssertionError(f"expected no dead letters, got {told}")


def assert_recovered_within(forecast: Forecast, limit: str | int) -> None:
    """Assert that the queues recover within `limit` after the last disruption.

    Example: `assert_recovered_within(forecast, "15m")`.
    """
    recovery, most = forecast.recovery_s, parse_seconds(limit)
    if recovery is None:
        left = sum(one.left for one in forecast.stations)
        raise AssertionError(
            f"expected recovery within {show_seconds(most)}, got none by the end: {show_count(left)} wait"
        )
    if recovery > most:
        raise AssertionError(
            f"expected recovery within {show_seconds(most)}, got it after {show_seconds(recovery)}"
        )
