"""Describes a system and how to run it.

A `System` consists of parts. They can run as separate processes that use RabbitMQ and PostgreSQL
and are configured with environment variables, or together in one process with a `Host`.
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
"""A web application of any ASGI framework."""


@dataclass(frozen=True, slots=True)
class Host:
    """The resources with which a system runs in one process.

    `url` is the address of its web application, without a trailing slash. `variables` contains its
    settings with the same names as the environment variables of a separate process.
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
    """A part of a system that can run as a separate process: either handlers or a web application."""

    target: str
    """An `App`, a web application, or a function `create_…` that returns one, as
    `module:attribute`.
    """
    summary: str
    is_web: bool = False

    @property
    def command(self) -> str:
        """The command that runs the part. The broker and the settings are taken from the
        environment.
        """
        if not self.is_web:
            return f"hopback run {self.target}"
        option = "--factory " if ":create_" in self.target else ""
        return f"uvicorn {option}{self.target}"


@dataclass(frozen=True, slots=True)
class Try:
    """A shell command that readers can try, and its effect. `{url}` is replaced by the address of
    the system.
    """

    shows: str
    command: str


@dataclass(frozen=True, slots=True)
class Running:
    """A system that is running, with its services and its web application."""

    services: tuple[Service, ...]
    web: ASGI | None = None


@dataclass(frozen=True, slots=True)
class System:
    """A documented system as an application.

    `start` runs all parts until its context ends. `traffic` sends HTTP requests until it is
    cancelled, and some of them fail on purpose.
    """

    name: str
    title: str
    parts: tuple[Part, ...]
    start: Callable[[Host], AbstractAsyncContextManager[Running]]
    traffic: Callable[[Host], Awaitable[None]]
    tries: tuple[Try, ...] = ()


@asynccontextmanager
async def running(
    host: Host, app: App, options: ServiceOptions | None = None
) -> AsyncIterator[Service]:
    """Run an application until the block ends. If it cannot start, the error is raised."""
    service = Service(app, host.broker, options=options, environment=host.environment)
    task = asyncio.create_task(service.run(), name=f"{app.name} service")
    try:
        await service.ready.wait()
        yield service
    finally:
        service.stop()
        await task


def run_together(
    settings: type[S],
    create_api: Callable[[S, Broker], Starlette],
    create_app: Callable[[S], App],
    *,
    accepts: tuple[str, ...] = (),
) -> Callable[[Host], AbstractAsyncContextManager[Running]]:
    """Return the function `start` for a system that has one web application and one application of
    handlers. `accepts` lists errors of `topology check` that do not prevent it from starting.
    """

    @asynccontextmanager
    async def start(host: Host) -> AsyncIterator[Running]:
        changes: Any = {"database": host.database, "hardened": host.hardened}
        found = replace(settings.read(host.variables), **changes)
        web, options = create_api(found, host.broker), ServiceOptions(accept=accepts)
        async with running(host, create_app(found), options) as service, opened(web):
            yield Running((service,), web)

    return start
