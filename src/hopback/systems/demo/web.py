"""The web server of the demo.

A single port serves everything. Each system is mounted at its name, the demo page is at `/demo`,
and the admin page is at `/`.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, contextmanager
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route, Router

from hopback.ops.http import LOOPBACK, host_of, is_same_origin
from hopback.systems import HOMES
from hopback.systems.demo.page import ShownSystem, counters_of, front_page

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from hopback import Service
    from hopback.observe.metrics import Metrics
    from hopback.runtime import Health

_GRACE_S = 1  # Seconds. A browser with an open event stream must not delay the end of the demo.
# Connections. This was the maximum of Linux for a long time, and a browser only opens six.
_BACKLOG = 128
_KEEP_ALIVE_S = 60  # Seconds. Users may need some time between two clicks.
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class DemoWeb:
    """The web application of the demo. Systems and the admin page are added when they start."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._running: list[tuple[Service, Health]] = []
        self._guide = ""
        self._systems: tuple[ShownSystem, ...] = ()
        self._router = Router(
            [
                Route("/demo", self._show_page),
                Route("/demo/counters", self._count),
                Route("/demo/{name}/readme", self._show_readme),
                Route("/metrics", self._scrape),
                Route("/healthz", self._alive),
                Route("/readyz", self._ready),
            ],
            default=Starlette(routes=[Route("/", self._show_page)]),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request. Requests with the host name of another machine are refused, and so are
        changes that a page of another site has sent.
        """
        answer: ASGIApp = self._router
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if host_of(headers) not in LOOPBACK:
                answer = PlainTextResponse("This demo serves localhost and 127.0.0.1 only.\n", 421)
            elif scope["method"] not in _SAFE and not is_same_origin(headers, silent=True):
                answer = PlainTextResponse("Changes from other sites are refused.\n", 403)
        await answer(scope, receive, send)

    def add(self, name: str, web: ASGIApp) -> None:
        """Mount the web application of a system at its name."""
        self._router.routes.append(Mount(f"/{name}", web))

    def watch(self, service: Service, health: Health) -> None:
        """Include a service in health checks and metrics."""
        self._running.append((service, health))

    def open_page(self, page: ASGIApp) -> None:
        self._router.default = page

    def show(self, systems: Sequence[ShownSystem], guide: str) -> None:
        """Set the content of `/demo`."""
        self._systems, self._guide = tuple(systems), guide

    async def _show_page(self, _request: Request) -> Response:
        return HTMLResponse(front_page(self._systems, self._guide))

    async def _show_readme(self, request: Request) -> Response:
        home = HOMES.get(request.path_params["name"])
        if home is None:
            return PlainTextResponse("There is no such system.\n", 404)
        readme = files(home).joinpath("README.md").read_text(encoding="utf-8")
        return PlainTextResponse(readme)

    async def _count(self, _request: Request) -> Response:
        return JSONResponse(counters_of(self._systems, self._metrics.render().decode()))

    async def _scrape(self, _request: Request) -> Response:
        for service, _ in self._running:
            for consumer in service.consumers:
                self._metrics.set_in_flight(consumer.queue, consumer.in_flight)
        return Response(self._metrics.render(), media_type=self._metrics.content_type)

    async def _alive(self, _request: Request) -> Response:
        return _health_response(
            {one.app.name: health.alive().reasons for one, health in self._running}
        )

    async def _ready(self, _request: Request) -> Response:
        return _health_response(
            {one.app.name: health.ready().reasons for one, health in self._running}
        )


def _health_response(reasons_by_system: dict[str, tuple[str, ...]]) -> Response:
    """Return status 503 and the reasons if any system is unhealthy, otherwise 200."""
    reasons = [reason for each in reasons_by_system.values() for reason in each]
    body = {"systems": list(reasons_by_system), "reasons": reasons}
    return JSONResponse(body, 503 if reasons else 200)


class _ServerWithoutSignals(uvicorn.Server):
    """A server that does not install signal handlers, because the command handles the signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Keep the signal handlers of the command."""
        yield


def open_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket. Port 0 selects a free port. Raises OSError if the port is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


@asynccontextmanager
async def serve_on(app: ASGIApp, listening: socket.socket) -> AsyncIterator[None]:
    """Serve the application on the socket until the block ends."""
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACE_S,
    )
    server = _ServerWithoutSignals(config)
    serving = asyncio.create_task(server.serve([listening]), name="demo web server")
    try:
        yield
    finally:
        server.should_exit = True
        await serving
        listening.close()


@asynccontextmanager
async def lifespan(app: ASGIApp) -> AsyncIterator[None]:
    """Run the lifespan of a web application through the ASGI protocol. No server is needed."""
    events: asyncio.Queue[str] = asyncio.Queue()
    answers: asyncio.Queue[str] = asyncio.Queue()

    async def receive() -> dict[str, Any]:
        return {"type": await events.get()}

    async def send(message: Any) -> None:
        answers.put_nowait(message["type"])

    scope = {"type": "lifespan", "asgi": {"version": "3.0"}}
    life = asyncio.ensure_future(app(scope, receive, send))
    events.put_nowait("lifespan.startup")
    await answers.get()
    try:
        yield
    finally:
        events.put_nowait("lifespan.shutdown")
        await life
