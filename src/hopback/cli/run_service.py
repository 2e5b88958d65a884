"""One process of `hopback run`. It runs the service with its logs, metrics, health checks and
signal handlers.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from hopback.broker.declare import Ownership
from hopback.broker.management import Management, ManagementAddress, virtual_host
from hopback.cli.broker_options import rabbitmq
from hopback.cli.log import open_log
from hopback.cli.options import cannot_listen, url_host
from hopback.cli.signals import Stopper, listen_to_signals
from hopback.endpoint import Endpoint
from hopback.observe.events import Bus
from hopback.private_files import control_socket
from hopback.runtime.depths import Depths, Watched, queues_to_watch
from hopback.runtime.health import ControlEndpoint, Health
from hopback.runtime.processes import ParentConnection, deaths_in
from hopback.runtime.quarantine import SupervisorLink
from hopback.runtime.queue_readings import (
    HeldBackWatch,
    PolicyWatch,
    QueueReadings,
    consumer_timeouts,
)
from hopback.runtime.service import Service, ServiceOptions
from hopback.runtime.settling import Environment
from hopback.runtime.watchdog import ThreadEndpoint, Watchdog
from hopback.waiting import first_of

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Coroutine,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from hopback.broker.management.readings import QueueReading
    from hopback.broker.port import Connection
    from hopback.broker.rabbitmq import RabbitMQ
    from hopback.cli.run_settings import RunSettings
    from hopback.observe.logs import EventLog
    from hopback.observe.metrics import Metrics
    from hopback.runtime.app import App
    from hopback.runtime.queue_readings import Receiver
    from hopback.runtime.shutdown import Report

_LOG = logging.getLogger("hopback.run")


def log_of(settings: RunSettings, codes: Mapping[str, str]) -> EventLog:
    # The hazards of the topology are only logged by the first process.
    silent = frozenset({"topology.warning"}) if settings.number else frozenset()
    process = None if settings.parent is None else settings.number
    return open_log(
        settings.log_level, settings.log_format, codes=codes, silent=silent, process=process
    )


async def serve(app: App, settings: RunSettings) -> tuple[Report, bool]:
    """Run the application until a signal arrives. Returns its report, and True if there was a
    second signal.
    """
    bus = Bus(log_of(settings, app.codes))
    metrics = _metrics(settings)
    if metrics is not None:
        bus.subscribe(metrics)
    connection = supervisor = None
    if settings.parent is not None:
        # The parent process outlives this one. It keeps the message that is suspected to have
        # killed a process and runs alone here. It also passes on the messages that killed earlier
        # processes.
        connection = parent = ParentConnection(settings.parent)
        supervisor = SupervisorLink(lambda token: parent.send(alone=token), deaths_in(os.environ))
    tracing: dict[str, Any] = {}
    if settings.otel:
        from hopback.runtime.tracing import trace_batch, trace_run

        tracing = {"wrap_run": trace_run, "observe_batch": trace_batch}
    async with AsyncExitStack() as stack:
        service = Service(
            app,
            await _broker(settings, app, stack),
            options=ServiceOptions(
                queues=settings.queues or None,
                ownership=Ownership(settings.ownership),
                accept=settings.accept,
                grace=settings.grace,
                concurrency=settings.concurrency,
            ),
            environment=Environment(bus=bus, supervisor=supervisor, **tracing),
            connection_tasks=await _watchers(lambda: service, settings, metrics, bus, stack),
        )
        stopper = Stopper(service.stop)
        # The parent process may repeat a signal that this process has already received.
        listen_to_signals(stopper if connection is None else stopper.ask_once)
        await _attend(service, settings, metrics, stack)
        if connection is not None:
            await stack.enter_async_context(_background_task(_follow(connection, service, stopper)))
        else:
            await stack.enter_async_context(_background_task(_log_ready(service)))
        report = await service.run()
        if connection is not None:
            connection.send(report=asdict(report))
        return report, stopper.forced


async def _broker(settings: RunSettings, app: App, stack: AsyncExitStack) -> RabbitMQ:
    """Return the broker for --broker. If this is `embedded`, a broker is started in this process."""
    from hopback.cli.embedded import embedded_broker, print_publish_command

    queue = next((name for name in app.handlers if not name.startswith("hopback.")), "QUEUE")
    if not settings.embedded:
        if settings.parent is not None and settings.number == 0:
            print_publish_command(queue, settings.broker)
        return rabbitmq(settings.broker)
    return rabbitmq(await stack.enter_async_context(embedded_broker(settings.target, queue)))


def _metrics(settings: RunSettings) -> Metrics | None:
    """Return the metrics if --http is given and the extra is installed."""
    if settings.http is None:
        return None
    try:
        from hopback.observe.metrics import Metrics
    except ImportError:
        _LOG.warning("/metrics is not available: pip install 'hopback[metrics]'")
        return None
    return Metrics()


async def _watchers(
    service: Callable[[], Service],
    settings: RunSettings,
    metrics: Metrics | None,
    bus: Bus,
    stack: AsyncExitStack,
) -> list[Callable[[Connection], Awaitable[None]]]:
    """Return the tasks that watch queues and policies. They include queues that are added later."""

    def watched() -> Iterable[Watched]:
        return queues_to_watch(service().topology, [one.queue for one in service().consumers])

    def held(queue: str) -> int:
        return sum(one.in_flight for one in service().consumers if one.queue == queue)

    found: list[Callable[[Connection], Awaitable[None]]] = []
    if metrics is not None:
        found.append(Depths(watched, metrics.set_depth, held=held).attend)
    if settings.management is not None and not settings.embedded:
        try:
            address = ManagementAddress.derive(settings.broker, settings.management)
        except ValueError as error:
            raise click.BadParameter(f"{error}.", param_hint="--management") from error
        management = await stack.enter_async_context(Management(address))
        receivers = _receivers(service, metrics, bus, watched)
        found.append(QueueReadings(management, virtual_host(settings.broker), receivers).attend)
    return found


def _receivers(
    service: Callable[[], Service],
    metrics: Metrics | None,
    bus: Bus,
    watched: Callable[[], Iterable[Watched]],
) -> Iterator[Receiver]:
    """Yield the receivers of the queues that the management API returns."""

    def know_timeouts(readings: Sequence[QueueReading] | None) -> None:
        timeouts = dict(consumer_timeouts(readings))
        for consumer in service().consumers:
            if consumer.queue in timeouts:
                consumer.slow_runs.know_timeout(timeouts[consumer.queue])

    def show_changed_waits(queues: int | None) -> None:
        if metrics is not None:
            metrics.set_changed_waits(queues)

    yield know_timeouts
    if metrics is not None:
        yield HeldBackWatch(watched, metrics.set_held_back).receive
    yield PolicyWatch(lambda: service().topology, bus, show_changed_waits).receive


async def _attend(
    service: Service,
    settings: RunSettings,
    metrics: Metrics | None,
    stack: AsyncExitStack,
) -> None:
    """Start the health checks and the HTTP endpoint of the service."""
    watchdog = stack.enter_context(Watchdog())
    health = Health(service, time=asyncio.get_running_loop().time)
    await stack.enter_async_context(_background_task(health.run()))
    if settings.http is not None:
        render = None if metrics is None else _renderer(service, metrics)
        control = ControlEndpoint(service, health, render)
        endpoint = ThreadEndpoint(control, watchdog)
        try:
            host, port = await endpoint.open(*settings.http)
        except OSError as error:
            raise cannot_listen(settings.http, error.strerror or str(error)) from error
        stack.push_async_callback(endpoint.close)
        _LOG.info("listening on http://%s", url_host(host, port))
        await _listen_to_commands(control, port, stack)


async def _listen_to_commands(control: ControlEndpoint, port: int, stack: AsyncExitStack) -> None:
    """Open the socket for `hopback pause`. If this fails, a warning is logged and the service runs
    without it.
    """
    endpoint = Endpoint(control.command)
    try:
        path = control_socket(port)
        await endpoint.open_unix(path)
    except OSError as error:
        _LOG.warning("`hopback pause` and `resume` cannot reach this process: %s", error)
        return
    stack.callback(path.unlink, missing_ok=True)
    stack.push_async_callback(endpoint.close)


async def _log_ready(service: Service) -> None:
    await service.ready.wait()
    _LOG.info("ready, consuming %s", ", ".join(one.queue for one in service.consumers))


async def _follow(parent: ParentConnection, service: Service, stopper: Stopper) -> None:
    """Report to the parent process when the service is ready. Stop the service when the parent
    process requests it or has ended.
    """
    async with _background_task(parent.wait_closed(stopper.force)) as parent_end:
        ready, _ = await first_of(service.ready.wait(), parent_end)
        if ready is not None and not ready.exception():
            parent.send(ready=True)
        await parent_end
    stopper()


def _renderer(service: Service, metrics: Metrics) -> Callable[[], tuple[str, bytes]]:
    def render() -> tuple[str, bytes]:
        for consumer in service.consumers:
            metrics.set_in_flight(consumer.queue, consumer.in_flight)
        return metrics.content_type, metrics.render()

    return render


@asynccontextmanager
async def _background_task(work: Coroutine[Any, Any, Any]) -> AsyncIterator[asyncio.Task[Any]]:
    """Run a coroutine in the background until the block ends."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(task, return_exceptions=True)
