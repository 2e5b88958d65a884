"""What the five systems have in common: where they run, their parts, and how to run them.

A system is a description (`System`). Its parts run as processes of their own, on RabbitMQ and
PostgreSQL by environment variables; or all together in one process, on a `Host`.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from hopback import Service, ServiceOptions
from hopback.runtime import Environment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from hopback import App
    from hopback.broker import Broker

ASGI: TypeAlias = "Callable[[Any, Any, Any], Awaitable[None]]"
"""A web application as every Python web server understands it."""


@dataclass(frozen=True, slots=True)
class Host:
    """Where a system runs when all of it runs in one process.

    `database` and `folder` are the system's own; `url` is where its web application is served,
    without a slash at the end. `variables` holds its settings, as in a process of its own.
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
    """A part that can run as a process of its own: handlers, or a web application."""

    target: str
    """`module:attribute` of an `App`, of a web application, or of a function `create_…` that returns one."""
    summary: str
    is_web: bool = False

    @property
    def command(self) -> str:
        """The command that runs it; the broker and the settings come from the environment."""
        if not self.is_web:
            return f"hopback run {self.target}"
        option = "--factory " if ":create_" in self.target else ""
        return f"uvicorn {option}{self.target}"


@dataclass(frozen=True, slots=True)
class Try:
    """Something to try: what it shows, and a shell command in which `{url}` is the system's."""

    shows: str
    command: str


@dataclass(frozen=True, slots=True)
class Running:
    """A system at work on a host: what handles its queues, and its web application."""

    services: tuple[Service, ...]
    web: ASGI | None = None


@dataclass(frozen=True, slots=True)
class System:
    """A documented system as an application.

    `start` runs all of it for as long as its context lasts. `traffic` produces a little traffic
    with deliberate failures, through its front door, until it is cancelled. `accepts` names the
    errors of `topology check` that its documented form is run despite.
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
    """Run an application for as long as the block lasts; what keeps it from starting is raised."""
    service = Service(app, host.broker, options=options, environment=host.environment)
    running = asyncio.create_task(service.run(), name=f"{app.name} service")
    try:
        ready = asyncio.ensure_future(service.ready.wait())
        await asyncio.wait({ready, running}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if running.done():
            await running
        yield service
    finally:
        service.stop()
        await running
