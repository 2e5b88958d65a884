"""The common code for consumers that use other libraries.

The other library consumes the queue and settles its deliveries. Hopback decides how a delivery is
settled, and publishes retries and dead letters on its own connection. If the library is
synchronous, this runs on an event loop in a background thread.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict

from hopback.broker.declare import Ownership
from hopback.broker.rabbitmq import RabbitMQ
from hopback.durations import Duration, read_seconds
from hopback.errors import ConnectionFailed, InvalidDeclaration, Problem
from hopback.integrations.foreign_delivery import ForeignDelivery, PlannedQueue
from hopback.observe.events import Bus
from hopback.observe.logs import LEVELS, SEVERITY
from hopback.policy.outcome import (
    Rule,
    check_rules,
)
from hopback.runtime.app import App, Waits
from hopback.runtime.failures import FailedRuns
from hopback.runtime.handler import waits_ms
from hopback.runtime.service import Service, ServiceOptions
from hopback.runtime.settling import Environment, Settling
from hopback.text import one_line
from hopback.topology.expand import (
    dead_letters_park,
    harden_queues,
    recommend_plan,
    unique_queues,
)
from hopback.topology.model import Queue, Topology
from hopback.waiting import first_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from hopback.broker.port import Broker, Connection
    from hopback.message import Received
    from hopback.policy.decision import Settlement
    from hopback.runtime.answer import Answer
    from hopback.topology.plan import Plan
    from hopback.version import BrokerVersion

_LOG = logging.getLogger("hopback.integrations")
_RETRY = ("30s", "5m", "30m")
"""The default retry delays."""


def _log_end(running: asyncio.Task[object]) -> None:
    """Log the error that has ended the service. After this, failed deliveries stay unsettled."""
    if not running.cancelled() and (error := running.exception()) is not None:
        _LOG.critical(
            "the failure plans are no longer applied: %s: %s", type(error).__name__, error
        )


@dataclass(slots=True, eq=False)
class _LoggedEvents:
    """Writes events to the `logging` module."""

    level: str = "warning"

    def wants(self, name: str) -> bool:
        return SEVERITY[LEVELS.get(name, "info")] >= SEVERITY[self.level]

    def __call__(self, name: str, fields: Mapping[str, Any]) -> None:
        details = ", ".join(
            f"{key}={one_line(str(value))}"
            for key, value in fields.items()
            if key != "traceback" and value is not None
        )
        block = fields.get("traceback")
        text = f"{name}: {details}\n{block}" if block else f"{name}: {details}"
        _LOG.log(SEVERITY[LEVELS.get(name, "info")], "%s", text)


class PlanOptions(TypedDict, total=False):
    """Options that are common to all integrations."""

    name: str
    """The connection name."""
    topology: Topology | None
    """A topology with queues and plans."""
    ownership: Ownership
    """Whether to declare the queues of `topology` (the default), check them or leave them alone."""
    accept: Collection[str]
    """Rules of severity error that should not prevent the start."""
    environment: Environment | None
    """The event bus and clock."""
    timeout: Duration
    """How long to wait for the broker on start, and for pending settlements on close."""
    publish_to: Broker | str | None
    """The broker to publish to. Required if the address cannot be determined from the library."""


class PlannedQueues:
    """The base class for failure plans of queues that another library consumes.

    The library declares its own queues. This class declares the retry queues and dead-letter
    queues.
    """

    _reports_failures = True
    """Whether to report tracebacks. This is False if the library already logs them."""

    def __init__(
        self,
        *,
        name: str = "app",
        topology: Topology | None = None,
        ownership: Ownership = Ownership.DECLARE,
        accept: Collection[str] = (),
        environment: Environment | None = None,
        timeout: Duration = 30.0,
        publish_to: Broker | str | None = None,
    ) -> None:
        self.name = name
        self._given = topology
        self._ownership = ownership
        self._accept = accept
        self._environment = environment or Environment(bus=Bus(_LoggedEvents()))
        self._timeout = read_seconds(timeout, "timeout", where=type(self).__name__)
        self._publish_to = publish_to
        self._plans: dict[str, tuple[Plan, tuple[Rule, ...]]] = {}
        self._planned: dict[str, PlannedQueue] = {}
        self._version: asyncio.Future[BrokerVersion] | None = None
        self._service: Service | None = None
        self._running: asyncio.Task[object] | None = None
        self._concluding: set[asyncio.Future[Any]] = set()

    def queue(
        self,
        name: str,
        *,
        retry: Waits = _RETRY,
        attempts: int | None = None,
        rules: Iterable[Rule] = (),
    ) -> None:
        """Add a plan for a queue. The options are the same as for `App.queue`."""
        if self._running is not None:
            raise RuntimeError("expected all plans before the start, got one after it")
        where = f"plan of queue {name!r}"
        if name in self._plans:
            raise InvalidDeclaration(
                (Problem(f"queues.{name}", "one plan", "a second one"),), where=where
            )
        tiers = waits_ms(() if retry is None else retry, where=where)
        plan = recommend_plan(name, tiers_ms=tiers, attempts=attempts)
        self._plans[name] = plan, check_rules(rules, where=where)

    @property
    def queue_names(self) -> tuple[str, ...]:
        """The names of the queues that have a plan."""
        given = () if self._given is None else self._given.plans
        return tuple({**dict.fromkeys(plan.queue for plan in given), **self._plans})

    @property
    def topology(self) -> Topology:
        """The topology, including the retry and dead-letter queues."""
        given = self._given or Topology(self.name)
        added = [plan for plan, _ in self._plans.values() if given.plan(plan.queue) is None]
        ours = (queue for plan in added for queue in harden_queues(plan)[1:])
        return replace(
            given,
            name=self.name,
            queues=unique_queues((*given.queues, *ours)),
            plans=(*given.plans, *added),
        )

    async def begin(self, broker: Broker | str | list[str]) -> None:
        """Connect and declare the queues of the plans."""
        if self._running is not None:
            return
        broker = self._publish_to or broker
        whole = self.topology
        if not whole.plans:
            raise InvalidDeclaration(
                (Problem("queues", "a plan for at least one queue", "none"),), where=self.name
            )
        loop = asyncio.get_running_loop()
        version: asyncio.Future[BrokerVersion] = loop.create_future()

        async def meet(connection: Connection) -> None:
            if not version.done():
                version.set_result(connection.version)

        service = Service(
            App(self.name, topology=whole),
            RabbitMQ(broker) if isinstance(broker, str | list) else broker,
            options=ServiceOptions(ownership=self._ownership, accept=self._accept),
            environment=self._environment,
            connection_tasks=(meet,),
            foreign_queues=self._foreign_queues(whole),
        )
        self._version, self._service = version, service
        self._running = loop.create_task(service.run(), name="hopback-plans")
        try:
            await first_of(version, self._running, within=self._timeout)
            if not version.done():
                await self._give_up(service)
        except BaseException:
            service.stop()  # also if the caller was cancelled
            self._running = None
            raise
        self._running.add_done_callback(_log_end)
        for plan in whole.plans:
            failed = FailedRuns(self._environment.bus) if self._reports_failures else None
            parks = dead_letters_park(whole, plan)
            settling = Settling(
                plan, service.send, self._environment, dead_letters_park=parks, failed=failed
            )
            rules = self._plans[plan.queue][1] if plan.queue in self._plans else ()
            self._planned[plan.queue] = PlannedQueue(plan, rules, settling)

    def _foreign_queues(self, whole: Topology) -> tuple[Queue, ...]:
        """Return the queues that the library declares.

        Their arguments are unknown, so the safest ones are assumed.
        """
        return tuple(
            harden_queues(plan)[0] for plan in whole.plans if whole.queue(plan.queue) is None
        )

    async def _give_up(self, service: Service) -> None:
        running, self._running = self._running, None
        assert running is not None  # noqa: S101 - started just before
        if running.done():
            await running
        service.stop()
        await asyncio.wait({running})
        states = ", ".join(f"{purpose}: {state}" for purpose, state in service.lines.items())
        raise ConnectionFailed(
            f"no connection to {service.broker.address} within {self._timeout:g} s ({states})"
        )

    async def close(self) -> None:
        """Wait for pending settlements and close the connections. Can be called more than once."""
        running, self._running = self._running, None
        if running is None or self._service is None:
            return
        if self._concluding:
            await asyncio.wait(self._concluding, timeout=self._timeout)
        self._planned.clear()
        self._service.stop()
        await running

    def take(self, delivery: Received, ended: asyncio.Event) -> ForeignDelivery | None:
        """Wrap a delivery. Returns None if its queue does not have a plan."""
        planned = self._planned.get(delivery.queue)
        if planned is None:
            if delivery.queue not in self.queue_names:
                return None
            raise RuntimeError(
                f"the plans of queue {delivery.queue!r} are not active. Start the plans before the "
                "consumer and close them after it."
            )
        assert self._version is not None  # noqa: S101 - known before anything is planned
        return ForeignDelivery(planned, delivery, self._version.result(), ended)

    async def conclude(self, taken: ForeignDelivery, answer: Answer) -> Settlement | None:
        """Apply the plan to a delivery. `close` waits until this is done."""
        work = asyncio.ensure_future(taken.conclude(answer))
        self._concluding.add(work)
        work.add_done_callback(self._concluding.discard)
        # Shield the task. It must not be cancelled between publishing and settling.
        return await asyncio.shield(work)
