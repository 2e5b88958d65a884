"""Run the demo. It consists of a broker, a web server, the systems with their traffic, and the
admin page.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import sys
import tempfile
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from hopback import RabbitMQ
from hopback.broker.management import Management, ManagementAddress, virtual_host
from hopback.broker.server import BrokerServer, ServerSettings
from hopback.cli.broker_options import rabbitmq
from hopback.cli.exits import CommandFailed
from hopback.cli.options import cannot_listen, url_host
from hopback.designs import DESIGNS
from hopback.errors import BrokerError
from hopback.observe import Bus
from hopback.observe.logs import EventLog, LogBridge
from hopback.observe.metrics import Metrics
from hopback.ops import ManagedBroker, Operations
from hopback.ops.http import create_app, refuse_public
from hopback.private_files import private_folder
from hopback.runtime import Environment, Health, SystemClock
from hopback.runtime.depths import Depths, Watched, queues_to_watch
from hopback.systems import load_system
from hopback.systems.demo.page import ShownSystem
from hopback.systems.demo.web import DemoWeb, lifespan, open_socket, serve_on
from hopback.systems.host import Host
from hopback.text import one_line

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Mapping
    from datetime import datetime

    from hopback import Service
    from hopback.systems.host import Running, System

_PORTS = ((5673, 15673), (0, 0))
"""Ports for AMQP and for the management API. RabbitMQ uses other ports, so both can run on the same
machine. If these ports are in use, free ones are chosen.
"""
_RECONNECT_S = 1  # Seconds. The broker of a demo runs on this machine and restarts quickly.
_TRAFFIC_AGAIN_S = (
    5  # Seconds until traffic starts again after an error. A shorter delay would fill the log.
)
_COUNT_EVERY_S = 1.0  # Seconds. The page requests the counters at the same interval.
_LOG = logging.getLogger("hopback.demo")


@dataclass(frozen=True, slots=True)
class DemoSettings:
    names: tuple[str, ...]
    broker: str | None
    management: str | None
    database: str | None
    folder: str | None
    http: tuple[str, int]
    hardened: bool
    traffic: bool
    log_level: str
    environment: Mapping[str, str]


class Demo:
    """Runs the systems in one process. `stack` closes everything in reverse order."""

    def __init__(self, settings: DemoSettings, stack: AsyncExitStack) -> None:
        self._settings = settings
        self._stack = stack
        self._metrics = Metrics()
        self._warnings = 0
        self._services: list[Service] = []
        self._by_system: dict[str, tuple[Service, ...]] = {}
        self._amqp = self._address = ""
        self._management: str | None = None

    async def start(self) -> Guide:
        """Start the broker, the web server, the systems, the admin page and the traffic."""
        if self._settings.folder is not None:
            folder = private_folder(Path(self._settings.folder))
        else:
            temporary = tempfile.TemporaryDirectory(
                prefix="hopback-demo-", ignore_cleanup_errors=True
            )
            folder = Path(self._stack.enter_context(temporary))
        await self._open_broker()
        web = DemoWeb(self._metrics)
        name, port = self._settings.http
        refuse_public(name, asks_who=False)
        try:
            listening = open_socket(name, port)
        except OSError as error:
            raise cannot_listen((name, port), error.strerror or str(error)) from error
        await self._stack.enter_async_context(serve_on(web, listening))
        url = f"http://{url_host(name, listening.getsockname()[1])}"
        systems = []
        for name in self._settings.names:
            system = load_system(name)
            host = self._host(system, folder, url)
            await self._start_system(system, host, web)
            systems.append((system, host))
        await self._open_page(web)
        self._run_in_background(self._count_depths(), "depths")
        if self._settings.traffic:
            for system, host in systems:
                self._run_in_background(_produce(system, host), f"{system.name} traffic")
        guide = Guide(url, self._address, self._management, tuple(systems), self._warnings)
        shown = [
            ShownSystem(
                system.name,
                system.title,
                host.url,
                tuple(one.topology for one in self._by_system[system.name]),
                tuple((one.shows, one.command.replace("{url}", host.url)) for one in system.tries),
            )
            for system, host in systems
        ]
        web.show(shown, "\n".join(guide.lines()))
        return guide

    async def _open_broker(self) -> None:
        """Connect to the configured broker, or start an embedded one that listens on a port."""
        if self._settings.broker is not None:
            self._amqp = self._settings.broker
            broker = rabbitmq(self._amqp)
            self._address = broker.address
            self._management = self._settings.management
            await (await broker.connect("hopback demo")).close()
            return
        for port, http_port in _PORTS:
            server = BrokerServer(ServerSettings(port=port, http_port=http_port))
            with suppress(OSError):
                await self._stack.enter_async_context(server)
                self._amqp = self._address = (
                    f"amqp://guest:guest@{server.url.removeprefix('amqp://')}"
                )
                self._management = server.http_url
                return
        raise CommandFailed(
            "cannot listen on any port of this machine for the broker",
            do="Free a port, or name a RabbitMQ with --broker.",
        )

    def _host(self, system: System, folder: Path, url: str) -> Host:
        own = private_folder(folder / system.name)
        log = ShortLog(
            SystemClock(),
            level=self._settings.log_level,
            codes=DESIGNS[system.name].codes,
            # `delivery.retried` and `delivery.parked` already contain the reason why a run failed.
            silent=frozenset({"topology.warning", "handler.failed"}),
        )
        logging.basicConfig(level=logging.WARNING, handlers=[LogBridge(log)])
        return Host(
            RabbitMQ(self._amqp),
            self._settings.database or f"sqlite:///{own}/{system.name}.db",
            own,
            f"{url}/{system.name}",
            self._settings.hardened,
            Environment(bus=Bus(log, self._metrics, self._count)),
            self._settings.environment,
        )

    async def _start_system(self, system: System, host: Host, web: DemoWeb) -> None:
        started: Running = await self._stack.enter_async_context(system.start(host))
        self._by_system[system.name] = started.services
        for service in started.services:
            health = Health(service, time=asyncio.get_running_loop().time)
            web.watch(service, health)
            self._services.append(service)
            self._run_in_background(health.run(), "health")
        if started.web is not None:
            web.add(system.name, started.web)

    async def _open_page(self, web: DemoWeb) -> None:
        """Add the admin page, which shows the dead letters of all systems."""
        broker, vhost = RabbitMQ(self._amqp), virtual_host(self._amqp)
        view: Management | None = None
        try:
            address = ManagementAddress.derive(self._amqp, self._management)
            client = await self._stack.enter_async_context(Management(address))
            await client.overview()
            view = client
        except (ValueError, BrokerError) as error:
            _LOG.warning("continuing without the management API: %s", error)
        topologies = [service.topology for service in self._services]
        managed = ManagedBroker(broker, management=view, vhost=vhost, topologies=topologies)
        operations = await self._stack.enter_async_context(Operations(managed))
        page = create_app(operations)
        await self._stack.enter_async_context(lifespan(page))
        web.open_page(page)

    async def _count_depths(self) -> None:
        """Count the messages in all queues of the systems. This uses a separate connection."""

        def watched() -> list[Watched]:
            return [
                one
                for service in self._services
                for one in queues_to_watch(
                    service.topology, (consumer.queue for consumer in service.consumers)
                )
            ]

        depths = Depths(watched, self._metrics.set_depth, every=_COUNT_EVERY_S)
        while True:
            with suppress(BrokerError):
                connection = await RabbitMQ(self._amqp).connect("hopback demo depths")
                try:
                    await depths.attend(connection)
                finally:
                    await connection.close()
            await asyncio.sleep(_RECONNECT_S)

    def _run_in_background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run a coroutine until the demo ends. If it raises an exception, the exception is logged."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(_log_end)

        async def end() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self._stack.push_async_callback(end)

    def _count(self, name: str, _fields: Mapping[str, Any]) -> None:
        self._warnings += name == "topology.warning"


def _log_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _LOG.error("%s has ended", task.get_name(), exc_info=task.exception())


async def _produce(system: System, host: Host) -> None:
    """Produce the traffic of a system. After a failure of the broker or the database it starts
    again.
    """
    while True:
        with suppress(httpx.HTTPError, BrokerError, KeyError, ValueError):
            await system.traffic(host)
        await asyncio.sleep(_TRAFFIC_AGAIN_S)


class ShortLog(EventLog):
    """Logs a table row for each delivery, and a line for each other event."""

    def line(self, moment: datetime, level: str, event: str, details: Mapping[str, Any]) -> str:
        if not event.startswith("delivery."):
            shown = {key: value for key, value in details.items() if key != "traceback"}
            rest = " ".join(f"{key}={one_line(str(value))}" for key, value in shown.items())
            return f"{moment:%H:%M:%S} {event} {rest}"
        code = f" [{details['code']}]" if "code" in details else ""
        return _ROW.format(
            f"{moment:%H:%M:%S}",
            details["queue"],
            event.removeprefix("delivery."),
            f"{details['attempt']} of {details['maxAttempts']}",
            details.get("tier", ""),
            one_line(str(details.get("reason", ""))) + code,
        ).rstrip()


_ROW = "{:<8} {:<28} {:<8} {:<8} {:<5} {}"
HEADINGS = _ROW.format("time", "queue", "outcome", "run", "wait", "reason")


@dataclass(frozen=True, slots=True)
class Guide:
    """The addresses and example commands. The command prints them and the page `/demo` shows them."""

    url: str
    amqp: str
    management: str | None
    systems: tuple[tuple[System, Host], ...]
    warnings: int

    def lines(self) -> Iterator[str]:
        yield f"Start here: systems at work      {self.url}/demo"
        yield f"Dead letters, topology, checks   {self.url}/"
        yield f"Health and metrics               {self.url}/readyz {self.url}/metrics"
        yield f"Broker (AMQP)                    {self.amqp}"
        yield ""
        yield "In another terminal:"
        yield f"  export HOPBACK_BROKER={self.amqp}"
        if self.management:
            yield f"  export HOPBACK_MANAGEMENT={self.management}"
        yield f"  {_command()} dlq ls"
        for system, host in self.systems:
            yield from ("", f"{system.name}: {system.title}")
            for one in system.tries:
                yield f"  # {one.shows}"
                yield f"  {one.command.replace('{url}', host.url)}"
        if self.warnings:
            yield ""
            yield (
                f"The documented forms have {self.warnings} known hazards. `{_command()} topology "
                "check NAME` explains them. The hardened forms (--hardened) have none."
            )


def _command() -> str:
    """Return the command with which this process was started."""
    if shutil.which("hopback"):
        return "hopback"
    path = Path(sys.argv[0])
    return f"{sys.executable} -m hopback" if path.name == "__main__.py" else str(path)
