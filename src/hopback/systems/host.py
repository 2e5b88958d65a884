"""The description of a system: its parts, and how to run them.

The parts of a `System` run as separate processes, on RabbitMQ and PostgreSQL by environment variables, or
together in one process, on a `Host`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from starlette.applications import Starlette

from hopback import App, Service, ServiceOptions
from hopback.broker import Broker
from hopback.runtime import Environment
from hopback.systems.settings import EnvironmentSettings
from hopback.systems.web import opened

S = TypeVar("S", bound=EnvironmentSettings)

ASGI: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]
"""A web application of any framework."""


@dataclass(frozen=True, slots=True)
class Host:
    """The surroundings of a system that runs in one process.

    `url` is the address of its web application, without a slash at the end. `variables` has its settings, as
    the environment of a separate process has them.
    """

    broker: Broker
    database: str
    folder: Path
    url: str
    hardened: bool = False
    environment: Environment = field(default_factory=Environment)
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Part:
    """A part that can run as a separate process: handlers, or a web application."""

    target: str
    """`module:attribute` of an `App`, of a web application, or of a function `create_…` that returns one."""
    summary: str
    is_web: bool = False

    @property
    def command(self) -> str:
        """The command that runs it. The broker and the settings come from the environment."""
        if not self.is_web:
            return f"hopback run {self.target}"
        option = "--factory " if ":create_" in self.target else ""
        return f"uvicorn {option}{self.target}"


@dataclass(frozen=True, slots=True)
class Try:
    """A shell command to try, in which `{url}` is the address of the system, and its effect."""

    shows: str
    command: str


@dataclass(frozen=True, slots=True)
class Running:
    """A running system: the services of its queues, and its web application."""

    services: tuple[Service, ...]
    web: ASGI | None = None


@dataclass(frozen=True, slots=True)
class System:
    """A documented system as an application.

    `start` runs all parts until its context ends. `traffic` produces some traffic with deliberate failures
    over HTTP until it is cancelled. `accepts` names the errors of `topology check` that do not prevent the
    start of the documented form.
    """

    name: str
    title: str
    parts: tuple[Part, ...]
    start: Callable[[Host], AbstractAsyncContextManager[Running]]
    traffic: Callable[[Host], Awaitable[None]]
    tries: tuple[Try, ...] = ()
    accepts: tuple[str, ...] = ()


@asynccontextmanager
async def running(
    host: Host, app: App, options: ServiceOptions | None = None
) -> AsyncIterator[Service]:
    """Run an application until the block ends. Raises the error that prevents its start."""
    service = Service(app, host.broker, options=options, environment=host.environment)
    running = asyncio.create_task(service.run(), name=f"{app.name} service")
    try:
        await service.ready.wait()
        yield service
    finally:
        service.stop()
        await running


def run_together(
    settings: type[S],
    create_api: Callable[[S, Broker], Starlette],
    create_app: Callable[[S], App],
    *,
    accepts: tuple[str, ...] = (),
) -> Callable[[Host], AbstractAsyncContextManager[Running]]:
    """Return the `start` of a system with a web application and one application of handlers."""

    @asynccontextmanager
    async def start(host: Host) -> AsyncIterator[Running]:
        changes: Any = {"database": host.database, "hardened": host.hardened}
        found = replace(settings.read(host.variables), **changes)
        web, options = create_api(found, host.broker), ServiceOptions(accept=accepts)
        async with running(host, create_app(found), options) as service, opened(web):
            yield Running((service,), web)

    return start
