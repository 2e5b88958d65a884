"""The admin application: API and page over the operations, put together."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from hopback.admin.api_access import ACCESS
from hopback.admin.api_jobs import JOBS
from hopback.admin.api_queues import QUEUES
from hopback.admin.api_topology import TOPOLOGY
from hopback.admin.cookies import SessionCookies
from hopback.admin.denials import Denials
from hopback.admin.documented import documented_routes
from hopback.admin.documented_schema import DOCUMENTED_PATHS
from hopback.admin.endpoints import admitted, api_routes
from hopback.admin.gate import Gate, LoginLink, new_secret
from hopback.admin.keys import KeyRing
from hopback.admin.limiting import TurnKeeper
from hopback.admin.livebroker import LiveBroker
from hopback.admin.openapi import openapi_document
from hopback.admin.page_routes import page_routes
from hopback.admin.pages import problem_page
from hopback.admin.problems import Refused, problem_response, unexpected
from hopback.admin.rendering import renderer
from hopback.admin.services import Services, who, write_denial
from hopback.admin.settings import AdminSettings
from hopback.admin.shell import Shell
from hopback.admin.streams import EventStreams
from hopback.admin.sweep import Sweep
from hopback.admin.tokens import Jwks, SharedSecret, TokenReader, fetch_json
from hopback.clock import SystemClock
from hopback.deadletters.retention import Retention, forget_old

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from jinja2 import Environment
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from hopback.admin.cookies import EndedSessions
    from hopback.admin.endpoints import Endpoint
    from hopback.admin.keys import KeyStore
    from hopback.broker.port import Broker
    from hopback.clock import Clock
    from hopback.deadletters.operations import Operations
    from hopback.deadletters.overview import QueueSummary
    from hopback.deadletters.places import LiveView
    from hopback.deadletters.requests import Who
    from hopback.topology.model import Topology

__all__ = ["ENDPOINTS", "LOOPBACK", "create_app"]

ENDPOINTS: tuple[Endpoint, ...] = (*QUEUES, *JOBS, *TOPOLOGY, *ACCESS)
"""Every row of the API."""

_LOG = logging.getLogger("hopback.admin")

_COUNTS_EVERY_S = 10.0  # a window of refusals is a minute: its count is at most so much late

_RETENTION_EVERY_S = 3600.0  # what is kept for days may go an hour late

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""The names under which a service that asks nobody who they are may be called."""


def create_app(
    operations: Operations,
    broker: Broker,
    *,
    view: LiveView | None = None,
    vhost: str = "/",
    topologies: Iterable[Topology] = (),
    settings: AdminSettings | None = None,
    environment: Mapping[str, str] | None = None,
    clock: Clock | None = None,
    link: str | None = None,
    keys: KeyStore | None = None,
    ended: EndedSessions | None = None,
) -> ASGIApp:
    """The admin service as an ASGI application.

    `operations` does the work; `broker`, `view` and `topologies` are those it was made with. Who may
    come in is in `settings`; without tokens and keys there, nobody is asked and only this machine is
    served. `link` is a secret that opens as an admin, once: the login link of the dev mode. `keys` is where
    API keys are kept that are made here (`hopback.store.keys.KeyTable`), `ended` where sessions that were
    signed out (`hopback.store.sessions.EndedSessionTable`); without, both end with the process.
    """
    settings = settings or AdminSettings()
    clock = clock or SystemClock()
    services = Services(
        operations,
        LiveBroker(broker, view, clock, vhost=vhost, declared=topologies),
        _gate(
            settings, os.environ if environment is None else environment, clock, link, keys, ended
        ),
        Sweep(operations.queues, clock),
        settings,
        clock,
        Denials(clock, lambda denial: write_denial(operations, denial)),
        EventStreams(settings.limits),
    )
    templates = renderer()
    inner = Starlette(
        routes=[
            *_documented(services),
            *api_routes(ENDPOINTS, services),
            _openapi_route(),
            *page_routes(services, templates),
        ],
        exception_handlers={
            404: _not_found,
            405: _wrong_method,
            Exception: _last_resort(services, templates),
        },
        lifespan=_lifespan(services),
    )
    hosts = None if services.gate.asks_who else LOOPBACK
    return Shell(_Undecoded(inner), limits=settings.limits, hosts=hosts)


def _gate(
    settings: AdminSettings,
    environment: Mapping[str, str],
    clock: Clock,
    link: str | None,
    store: KeyStore | None,
    ended: EndedSessions | None,
) -> Gate:
    auth, limits = settings.auth, settings.limits
    keys = KeyRing(auth.keys, store)
    secret = environment.get(auth.session_secret_env)
    if secret is None and (settings.asks_who or link is not None):
        _LOG.info(
            "sessions of the page end with this process:"
            " auth.session_secret_env names no variable that is set, so a random secret is used"
        )
    return Gate(
        clock=clock,
        cookies=SessionCookies(
            secret or new_secret(), keys, seconds=auth.session_hours * 3600, ended=ended
        ),
        keys=keys,
        turns=TurnKeeper(limits.requests_per_second, limits.burst, clock.now),
        sign_ins=TurnKeeper(limits.sign_ins_per_minute / 60, limits.sign_ins_per_minute, clock.now),
        failures=TurnKeeper(limits.failures_per_minute / 60, limits.failures_per_minute, clock.now),
        tokens=_tokens(settings, environment, clock),
        link=None if link is None else LoginLink(link),
        asks_who=settings.asks_who or link is not None,
    )


def _tokens(
    settings: AdminSettings, environment: Mapping[str, str], clock: Clock
) -> TokenReader | None:
    jwt = settings.auth.jwt
    if jwt is None:
        return None
    if jwt.secret_env:
        return TokenReader(jwt, settings.auth.grants, SharedSecret(environment[jwt.secret_env]))
    return TokenReader(jwt, settings.auth.grants, Jwks(lambda: fetch_json(jwt.jwks_url), clock))


def _documented(services: Services) -> list[Route]:
    """The three documented endpoints, for admins."""

    async def authorize(request: Request) -> Who:
        return who(await admitted(services, request))

    async def read() -> tuple[QueueSummary, ...]:
        return (await services.sweep.get()).queues

    routes = documented_routes(services.operations, authorize, services.clock, read=read)
    for route in routes:
        route.app = _Decoded(route.app)
    return routes


def _openapi_route() -> Route:
    document = msgspec.json.encode(openapi_document(ENDPOINTS, DOCUMENTED_PATHS))

    async def answer(_request: Request) -> Response:
        return Response(document, media_type="application/json")

    return Route("/openapi.json", answer)


async def _not_found(request: Request, _error: Exception) -> Response:
    refused = Refused(404, "not-found", f"There is nothing at {request.url.path}.")
    return problem_response(refused, request.url.path, request.state.correlation)


async def _wrong_method(request: Request, error: Exception) -> Response:
    headers = dict(getattr(error, "headers", None) or {})
    detail = f"{request.method} cannot be done here; expected {headers.get('Allow', 'another')}."
    refused = Refused(405, "method-not-allowed", detail, headers=headers)
    return problem_response(refused, request.url.path, request.state.correlation)


def _last_resort(services: Services, templates: Environment) -> Any:
    """What is answered when nobody expected what happened; the shell writes the cause to the log."""

    async def answer(request: Request, _error: Exception) -> Response:
        refused = unexpected()
        path = request.url.path
        if "text/html" in request.headers.get("accept", "") and not path.startswith("/admin/"):
            # The page itself may be what fails.
            with suppress(Exception):
                return problem_page(services, templates, request, services.nobody, refused)
        return problem_response(refused, path, request.state.correlation)

    return answer


def _lifespan(services: Services) -> Any:
    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        """Keep the sweep and the counts of refusals going while the service runs."""
        tasks = [
            asyncio.create_task(services.sweep.run(), name="sweep"),
            asyncio.create_task(_write_counts(services), name="counts of refusals"),
            asyncio.create_task(_keep_retention(services), name="retention"),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await services.denials.flush(everything=True)

    return lifespan


async def _write_counts(services: Services) -> None:
    while True:
        await asyncio.sleep(_COUNTS_EVERY_S)
        await services.denials.flush()


async def _keep_retention(services: Services) -> None:
    """Delete what is older than it is kept: now, and again in a while."""
    said = services.settings.retention
    retention = Retention(said.audit_days, said.job_days)
    while True:
        try:
            await forget_old(services.operations.journal, services.clock, retention)
        except Exception as error:  # a database that is away today is tried again
            _LOG.warning("old jobs and audit could not be deleted", exc_info=error)
        await asyncio.sleep(_RETENTION_EVERY_S)


class _Decoded:
    """Gives what it serves the names in the path as they were meant."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        names = {name: unquote(value) for name, value in scope["path_params"].items()}
        await self._app({**scope, "path_params": names}, receive, send)


class _Undecoded:
    """Routes by the path as it was sent: a queue's name may hold an encoded slash."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path")
        if raw:
            scope = {**scope, "path": raw.partition(b"?")[0].decode("latin-1")}
        await self._app(scope, receive, send)
