"""The web server of the demo: every system's application, the page, health and metrics.

One port serves them all: a system under its name, the admin page at the root.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route, Router

from hopback.admin.app import LOOPBACK, host_of
from hopback.admin.auth import is_same_origin
from hopback.cli.demo_page import counters_of, front_page

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from hopback.cli.demo_page import ShownSystem
    from hopback.observe.metrics import Metrics
    from hopback.runtime.health import Condition, Health
    from hopback.runtime.service import Service

__all__ = ["DemoWeb", "lifespan", "open_socket", "serve_on"]

_GRACE_S = 1  # who ends the demo does not wait for a browser that keeps a stream open
_BACKLOG = 128  # what Linux long took at most; a browser opens six connections
_KEEP_ALIVE_S = 60  # a reader of the page thinks for a while between two clicks
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class DemoWeb:
    """What the one web server answers with; systems and the page are added as they come up."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._running: list[tuple[Service, Health]] = []
        self._guide = ""
        self._systems: tuple[ShownSystem, ...] = ()
        self._router = Router(
            [
                Route("/demo", self._show_page),
                Route("/demo/counters", self._count),
                Route("/metrics", self._scrape),
                Route("/healthz", self._alive),
                Route("/readyz", self._ready),
            ],
            default=Starlette(routes=[Route("/", self._show_page)]),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, if it is made to this machine by its own name and by no other site."""
        answer: ASGIApp = self._router
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if host_of(headers) not in LOOPBACK:
                answer = PlainTextResponse("This demo serves localhost and 127.0.0.1 only.\n", 421)
            elif scope["method"] not in _SAFE and not is_same_origin(headers, silent=True):
                answer = PlainTextResponse("Changes from other sites are refused.\n", 403)
        await answer(scope, receive, send)

    def add(self, name: str, web: ASGIApp) -> None:
        """Serve a system's web application under its name."""
        self._router.routes.append(Mount(f"/{name}", web))

    def watch(self, service: Service, health: Health) -> None:
        """Include a service in the probes and the metrics."""
        self._running.append((service, health))

    def open_page(self, page: ASGIApp) -> None:
        """Serve the admin page at the root."""
        self._router.default = page

    def show(self, systems: Sequence[ShownSystem], guide: str) -> None:
        """What `/demo` shows."""
        self._systems, self._guide = tuple(systems), guide

    async def _show_page(self, _request: Request) -> Response:
        return HTMLResponse(front_page(self._systems, self._guide))

    async def _count(self, _request: Request) -> Response:
        return JSONResponse(counters_of(self._systems, self._metrics.render().decode()))

    async def _scrape(self, _request: Request) -> Response:
        for service, _ in self._running:
            for consumer in service.consumers:
                self._metrics.set_in_flight(consumer.queue, consumer.in_flight)
        return Response(self._metrics.render(), media_type=self._metrics.content_type)

    async def _alive(self, _request: Request) -> Response:
        return self._judged({one.app.name: health.alive() for one, health in self._running})

    async def _ready(self, _request: Request) -> Response:
        return self._judged({one.app.name: health.ready() for one, health in self._running})

    def _judged(self, conditions: dict[str, Condition]) -> Response:
        """No if any system says no."""
        reasons = [why for condition in conditions.values() for why in condition.reasons]
        told = {"systems": list(conditions), "reasons": reasons}
        return JSONResponse(told, 503 if reasons else 200)


class _ServerWithoutSignals(uvicorn.Server):
    """Leaves signals to the command."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take none."""
        yield


def open_socket(host: str, port: int) -> socket.socket:
    """A listening socket; OSError if the port is taken. Port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    listening.setblocking(False)
    return listening


@asynccontextmanager
async def serve_on(app: ASGIApp, listening: socket.socket) -> AsyncIterator[None]:
    """Serve on the socket for as long as the block lasts."""
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
    """The life of a web application, as the ASGI protocol tells it when no server does."""
    told: asyncio.Queue[str] = asyncio.Queue()
    said: asyncio.Queue[str] = asyncio.Queue()

    async def receive() -> dict[str, Any]:
        return {"type": await told.get()}

    async def send(message: Any) -> None:
        said.put_nowait(message["type"])

    scope = {"type": "lifespan", "asgi": {"version": "3.0"}}
    life = asyncio.ensure_future(app(scope, receive, send))
    told.put_nowait("lifespan.startup")
    await said.get()
    try:
        yield
    finally:
        told.put_nowait("lifespan.shutdown")
        await life
