"""Two ways to consume: a minimal loop around `decide` and `effects`, and the runtime.

Both run the same consumers on the same broker, so a scenario verifies that they behave the same.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Protocol, assert_never

import httpx
import pytest

from hopback.broker.declare import declare
from hopback.clock import SystemClock
from hopback.errors import BrokerError
from hopback.headers import failure_from_exception
from hopback.observe.events import Bus
from hopback.policy import (
    Occasion,
    Park,
    attempt_of,
    classify,
    decide,
    effects,
    original_routing_key,
    outcome_for_status,
)
from hopback.policy.decision import Hold, Publish, Settle, Settlement
from hopback.runtime.app import App
from hopback.runtime.context import Context  # noqa: TC001  read by the runtime
from hopback.runtime.service import Service, ServiceOptions
from hopback.runtime.settling import Environment
from hopback.topology.expand import dead_letters_park
from tests.scenarios.consumers import Run, ScriptedConsumer, Status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from hopback.broker.port import Broker, Channel, Connection
    from hopback.message import Delivery
    from hopback.policy import Outcome
    from hopback.policy.decision import Effect
    from hopback.topology.model import Topology
    from hopback.topology.plan import Plan

__all__ = ["PolicyRunner", "Runner", "RuntimeRunner", "ScenarioView"]

CHANCE = 0.5
HOST = "scenario"
_KNOWN_HAZARDS = frozenset({"delivery-limit-feeds-retry", "looking-deletes"})
"""Findings that ratatoskr's document accepts on 4.x. Without them the runtime refuses to start."""


class ScenarioView(Protocol):
    """The part of a scenario that runners use."""

    broker: Broker
    topology: Topology
    consumers: dict[str, ScriptedConsumer]

    def now(self) -> float:
        """Return the time in seconds since 1970."""

    def elapsed(self) -> float:
        """Return the seconds since the first publish."""

    def plan(self, queue: str) -> Plan:
        """Return the failure plan of a queue."""


class Runner(Protocol):
    """Runs all consumers of a scenario."""

    events: list[tuple[str, Mapping[str, Any]]]

    async def start(self) -> None:
        """Declare the topology, consume every queue, then return."""

    async def stop(self) -> None:
        """Stop all consumers, then return."""

    @property
    def busy(self) -> bool:
        """Whether a delivery is unacked."""


class PolicyRunner:
    """Consumes, decides and applies the effects: the minimum of a consumer."""

    def __init__(self, scenario: ScenarioView) -> None:
        self._scenario = scenario
        self._ready = asyncio.Event()
        self._in_hand: set[asyncio.Task[None]] = set()
        self._session_task: asyncio.Task[None] | None = None
        self._errors: list[BaseException] = []
        self.events: list[tuple[str, Mapping[str, Any]]] = []

    @property
    def busy(self) -> bool:
        """Whether a delivery is unacked."""
        return bool(self._in_hand)

    async def start(self) -> None:
        self._session_task = asyncio.create_task(self._run_sessions())
        ready = asyncio.ensure_future(self._ready.wait())
        await asyncio.wait({self._session_task, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._session_task.done():
            await self._session_task

    async def stop(self) -> None:
        """Stop consuming and raise errors of the runner itself."""
        if self._session_task is not None:
            self._session_task.cancel()
            await asyncio.gather(self._session_task, return_exceptions=True)
        for mistake in self._errors:
            raise mistake

    async def _run_sessions(self) -> None:
        """Reconnect after each lost connection."""
        while True:
            connection = await self._scenario.broker.connect("policy runner")
            try:
                await self._consume(connection)
            except BrokerError:
                await asyncio.sleep(0.01)
            finally:
                for task in tuple(self._in_hand):
                    task.cancel()
                await connection.close()

    async def _consume(self, connection: Connection) -> None:
        await declare(connection, self._scenario.topology)
        channel = await connection.open_channel()
        await channel.qos(20)
        for consumer in self._scenario.consumers.values():
            await channel.consume(consumer.queue, self._on_delivery(consumer, channel, connection))
        self._ready.set()
        await channel.wait_closed()

    def _on_delivery(
        self, consumer: ScriptedConsumer, channel: Channel, connection: Connection
    ) -> Callable[[Delivery], object]:
        def take(delivery: Delivery) -> None:
            task = asyncio.create_task(self._handle(consumer, delivery, channel, connection))
            self._in_hand.add(task)
            task.add_done_callback(self._done)

        return take

    def _done(self, task: asyncio.Task[None]) -> None:
        self._in_hand.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._errors.append(error)

    async def _handle(
        self,
        consumer: ScriptedConsumer,
        delivery: Delivery,
        channel: Channel,
        connection: Connection,
    ) -> None:
        plan = self._scenario.plan(consumer.queue)
        outcome, occasion = self._outcome(consumer, delivery, plan)
        decision = decide(
            delivery,
            outcome,
            plan,
            version=connection.version,
            chance=CHANCE,
            dead_letters_park=dead_letters_park(self._scenario.topology, plan),
        )
        try:
            for effect in effects(decision, delivery, plan, occasion):
                await _apply(effect, delivery, channel)
        except BrokerError:
            # No message is settled yet: close the connection, and the broker redelivers.
            await connection.close()

    def _outcome(
        self, consumer: ScriptedConsumer, delivery: Delivery, plan: Plan
    ) -> tuple[Outcome, Occasion]:
        """Return the outcome of the consumer's reaction, and its occasion."""
        bare = Occasion(self._scenario.now(), HOST)
        try:
            _ = json.loads(delivery.body) if consumer.reads_json else None
        except ValueError as error:
            reason = f"undecodable payload: {error}"
            return Park(reason), bare._replace(failure=failure_from_exception(error))
        match reaction := consumer.react(_run(delivery, plan, self._scenario.elapsed())):
            case Exception():
                occasion = bare._replace(failure=failure_from_exception(reaction))
                return classify(reaction, consumer.rules), occasion
            case Status(code=code, due_in=due_in):
                return outcome_for_status(code, due_in=due_in), bare._replace(status=code)
            case _:
                return reaction, bare


def _run(delivery: Delivery, plan: Plan, at: float) -> Run:
    return Run(
        at,
        attempt_of(delivery, plan),
        original_routing_key(delivery, plan),
        delivery.body,
        delivery.properties.headers,
        (delivery.exchange, delivery.routing_key),
        delivery.redelivered,
    )


async def _apply(effect: Effect, delivery: Delivery, channel: Channel) -> None:
    match effect:
        case Publish(message=message):
            await channel.publish(message)
        case Hold(delay=delay):
            await asyncio.sleep(delay)
        case Settle(how=Settlement.ACK):
            channel.ack(delivery.tag)
        case Settle(how=how):
            channel.nack(delivery.tag, requeue=how is Settlement.RELEASE)
        case _:
            assert_never(effect)


class RuntimeRunner:
    """The runtime with handlers of an application and services behind HTTP."""

    def __init__(self, scenario: ScenarioView) -> None:
        self._scenario = scenario
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        self._app = App(scenario.topology.name, topology=scenario.topology)
        self._service: Service | None = None
        self._service_task: asyncio.Task[Any] | None = None
        self._patch = pytest.MonkeyPatch()

    @property
    def busy(self) -> bool:
        """Whether a delivery is unacked."""
        assert self._service is not None
        return any(consumer.in_flight for consumer in self._service.consumers)

    async def start(self) -> None:
        """Start the service with a handler for every consumer."""
        for consumer in self._scenario.consumers.values():
            self._register(consumer)
        # The services are function calls instead of HTTP connections.
        services = httpx.MockTransport(self._answer)
        self._patch.setattr("httpx._client.AsyncHTTPTransport", lambda **_: services)
        environment = Environment(
            bus=Bus(lambda name, fields: self.events.append((name, fields))),
            clock=_ScenarioClock(self._scenario),
            chance=lambda: CHANCE,
            host=HOST,
        )
        options = ServiceOptions(accept=_KNOWN_HAZARDS, watch=600.0)
        self._service = Service(
            self._app, self._scenario.broker, options=options, environment=environment
        )
        self._service_task = asyncio.create_task(self._service.run())
        ready = asyncio.ensure_future(self._service.ready.wait())
        await asyncio.wait({self._service_task, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._service_task.done():
            await self._service_task

    async def stop(self) -> None:
        """Stop the service as on SIGTERM."""
        self._patch.undo()
        if self._service is not None and self._service_task is not None:
            self._service.stop()
            await self._service_task

    def _register(self, consumer: ScriptedConsumer) -> None:
        if consumer.pushes:
            self._app.push(consumer.queue, f"http://services.test/{consumer.queue}")
            return
        register = self._app.handler(consumer.queue, rules=consumer.rules)

        async def handle(context: Context) -> Any:
            reaction = consumer.react(
                _run(context.delivery, context.plan, self._scenario.elapsed())
            )
            if isinstance(reaction, Exception):
                raise reaction
            return reaction

        async def handle_json(payload: Any, context: Context) -> Any:
            return await handle(context)

        register(handle_json if consumer.reads_json else handle)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        consumer = self._scenario.consumers[request.url.path.removeprefix("/")]
        run = Run(
            self._scenario.elapsed(),
            int(request.headers["x-attempt"]),
            request.headers.get("x-routing-key", ""),
            request.content,
        )
        reaction = consumer.react(run)
        if isinstance(reaction, Exception):
            raise reaction
        assert isinstance(reaction, Status)
        return httpx.Response(reaction.code, stream=_NoBody())


class _NoBody(httpx.AsyncByteStream):
    """An empty response body that is not read yet, as from a network."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b""


class _ScenarioClock(SystemClock):
    def __init__(self, scenario: ScenarioView) -> None:
        self._scenario = scenario

    def now(self) -> float:
        return self._scenario.now()
