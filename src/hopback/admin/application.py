"""The admin application: API and page over the operations, put together."""

from __future__ import annotations

import asyncio
import os
import time
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
from hopback.admin.documented import documented_routes
from hopback.admin.documented_schema import DOCUMENTED_PATHS
from hopback.admin.endpoints import admitted, api_routes
from hopback.admin.gate import Gate, new_secret
from hopback.admin.keys import KeyRing
from hopback.admin.limiting import TurnKeeper
from hopback.admin.livebroker import LiveBroker
from hopback.admin.openapi import openapi_document
from hopback.admin.page_routes import page_routes
from hopback.admin.problems import Refused, problem_response
from hopback.admin.services import Services, who
from hopback.admin.settings import AdminSettings
from hopback.admin.shell import Shell
from hopback.admin.sweep import Sweep
from hopback.admin.tokens import Jwks, SharedSecret, TokenReader, fetch_json
from hopback.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

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
) -> ASGIApp:
    """The admin service as an ASGI application.

    `operations` does the work; `broker`, `view` and `topologies` are those it was made with. Who may
    come in is in `settings`; without tokens and keys there, nobody is asked and only this machine is
    served. `link` is a secret that opens as an admin: the login link of the dev mode. `keys` is where
    API keys are kept that are made here (`hopback.store.keys.KeyTable`); without, they end with the process.
    """
    settings = settings or AdminSettings()
    clock = clock or SystemClock()
    services = Services(
        operations,
        LiveBroker(broker, view, clock, vhost=vhost, declared=topologies),
        _gate(settings, os.environ if environment is None else environment, clock, link, keys),
        Sweep(operations.queues, clock),
        settings,
        clock,
    )
    inner = Starlette(
        routes=[
            *_documented(services),
            *api_routes(ENDPOINTS, services),
            _openapi_route(),
            *page_routes(services),
        ],
        exception_handlers={404: _not_found, 405: _wrong_method},
        lifespan=_lifespan(services),
    )
    hosts = None if services.gate.asks_who else LOOPBACK
    return Shell(_Undecoded(inner), request_bytes=settings.limits.request_bytes, hosts=hosts)


def _gate(
    settings: AdminSettings,
    environment: Mapping[str, str],
    clock: Clock,
    link: str | None,
    store: KeyStore | None,
) -> Gate:
    auth, limits = settings.auth, settings.limits
    keys = KeyRing(auth.keys, store)
    secret = environment.get(auth.session_secret_env) or new_secret()
    return Gate(
        clock=clock,
        cookies=SessionCookies(secret, keys, seconds=auth.session_hours * 3600),
        keys=keys,
        turns=TurnKeeper(limits.requests_per_second, limits.burst, time.monotonic),
        sign_ins=TurnKeeper(
            limits.sign_ins_per_minute / 60, limits.sign_ins_per_minute, time.monotonic
        ),
        tokens=_tokens(settings, environment, clock),
        link=link,
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


def _lifespan(services: Services) -> Any:
    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        """Keep the sweep going while the service runs."""
        sweeping = asyncio.create_task(services.sweep.run(), name="sweep")
        try:
            yield
        finally:
            sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await sweeping

    return lifespan


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
