"""Create the application with its routes, services and gate."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

import msgspec
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Mount, Route, Router
from starlette.staticfiles import StaticFiles

from hopback.broker.named_brokers import broker_path
from hopback.ops.alerts.http import ALERT_PAGES, ALERTS
from hopback.ops.alerts.watch import Alerting, AlertReader
from hopback.ops.contract.endpoints import SHARED
from hopback.ops.http.access import ACCESS, ACCESS_PAGES
from hopback.ops.http.api import ApiTable, api_routes
from hopback.ops.http.archives import ARCHIVE_PAGES, ARCHIVES
from hopback.ops.http.auth import Gate, LoginLink, new_secret
from hopback.ops.http.brokers import BROKERS
from hopback.ops.http.dead_letters import DEADLETTERS
from hopback.ops.http.denials import Denials, write_denial
from hopback.ops.http.events import EventStreams
from hopback.ops.http.heavy_requests import HeavyRequests
from hopback.ops.http.keys import KeyRing
from hopback.ops.http.lifespan import lifespan_of
from hopback.ops.http.openapi import openapi_document
from hopback.ops.http.overview import RecentAnswers
from hopback.ops.http.path_route import sent_path
from hopback.ops.http.probes import PROBES
from hopback.ops.http.problems import Refused, internal_error, problem_response
from hopback.ops.http.services import NOBODY, Services, SharedServices
from hopback.ops.http.session_cookies import SessionCookies
from hopback.ops.http.settings import AdminSettings
from hopback.ops.http.shell import Shell
from hopback.ops.http.sign_in import sign_in_routes
from hopback.ops.http.tokens import token_reader
from hopback.ops.http.topology import TOPOLOGY, TOPOLOGY_PAGES
from hopback.ops.http.turns import TurnKeeper
from hopback.ops.notes.http import NOTE_PAGES, NOTES
from hopback.ops.page.board import BOARD_PAGES
from hopback.ops.page.dead_letters import DEADLETTER_PAGES
from hopback.ops.page.edit import EDIT_PAGES
from hopback.ops.page.errors import ERROR_PAGES
from hopback.ops.page.jobs import JOB_PAGES
from hopback.ops.page.long_work import WORK_PAGES
from hopback.ops.page.pages import problem_page
from hopback.ops.page.rehearsal import REHEARSAL_PAGES
from hopback.ops.page.rendering import STATIC, renderer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from jinja2 import Environment
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from hopback.clock import Clock
    from hopback.ops.operations import Operations
    from hopback.sql.database import SqlDatabase

ENDPOINTS = ApiTable(
    [*DEADLETTERS, *ARCHIVES, *NOTES, *ALERTS, *TOPOLOGY, *ACCESS, *PROBES]
).complete(SHARED)
"""The API endpoints for one broker."""
PAGES = (
    WORK_PAGES,
    BOARD_PAGES,
    DEADLETTER_PAGES,
    EDIT_PAGES,
    ERROR_PAGES,
    ARCHIVE_PAGES,
    NOTE_PAGES,
    JOB_PAGES,
    ALERT_PAGES,
    TOPOLOGY_PAGES,
    REHEARSAL_PAGES,
    ACCESS_PAGES,
)
"""The pages for one broker. Paths are matched in this order."""

_LOG = logging.getLogger("hopback.ops.http")

_BAD_PATH = Refused(400, "bad-path", "The path: expected UTF-8, percent-encoded.")

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""If the service does not require a sign-in, requests must be addressed to one of these hosts."""

FIRST_READ_S = 0.15
"""Seconds to wait for the first reading of a broker. Most brokers respond within this time, and
pages are still served within 0.3 s.
"""


def create_app(
    *operations: Operations,
    settings: AdminSettings | None = None,
    environment: Mapping[str, str] | None = None,
    link: str | None = None,
    first_read_s: float | None = FIRST_READ_S,
) -> ASGIApp:
    """Create the service as an ASGI application.

    One object in `operations` is needed for each broker. Paths without a broker name refer to the
    first one. Brokers with a name are also served below `/brokers/NAME`.

    `settings` define who can sign in. If they contain neither tokens nor keys, no sign-in is
    required, and only requests from this machine are served. `link` is a secret that can be used
    once to sign in as admin, which is needed for the login link of the dev mode. The database of
    the first journal also stores keys, sessions and alerts.

    Until a broker has been read for the first time, pages wait for at most `first_read_s` seconds
    and then show that it is being read. If this is None, they wait without a limit.
    """
    settings = settings or AdminSettings()
    environment = os.environ if environment is None else environment
    clock = operations[0].clock
    gate = _gate(settings, environment, clock, link, operations[0].journal.database)
    brokers = _services(operations, settings, environment, gate, first_read_s)
    services = replace(brokers[0], prefix="")
    templates = renderer()
    named = {
        each.name: Router([*api_routes(ENDPOINTS, each), *page_routes(each, templates)])
        for each in brokers
        if each.prefix
    }
    inner = Starlette(
        routes=[
            *api_routes((*ENDPOINTS, *BROKERS), services),
            Route("/openapi.json", _openapi(tuple(named))),
            *sign_in_routes(services, templates),
            *page_routes(services, templates),
            # Rehearsals provide the colours and the styles of charts.
            Mount("/static", _Files(directory=STATIC, packages=[("hopback.rehearse", "static")])),
            *([BrokerPaths(named)] if named else []),
        ],
        exception_handlers={
            400: _refusal_handler(services, templates, _BAD_PATH),
            404: _not_found(services, templates),
            405: _wrong_method,
            # The shell logs the cause.
            Exception: _refusal_handler(services, templates, internal_error()),
        },
        lifespan=lifespan_of(services, templates),
    )
    hosts = None if gate.asks_who else LOOPBACK
    return Shell(inner, limits=settings.limits, hosts=hosts)


def _services(
    operations: Sequence[Operations],
    settings: AdminSettings,
    environment: Mapping[str, str],
    gate: Gate,
    first_read_s: float | None,
) -> tuple[Services, ...]:
    """Create the services of each broker."""
    clock = operations[0].clock
    recent = [RecentAnswers(each) for each in operations]
    sources = [
        AlertReader(
            each.broker.name,
            answers.sweep,
            each.resumable_jobs,
            each.surveys.by_queue,
            each.remember_consumed,
        )
        for each, answers in zip(operations, recent, strict=True)
    ]
    first = operations[0]
    alerting = Alerting(
        settings.alerts, first.alert_book, sources, clock, environment, first.broker.address
    )
    shared = SharedServices(
        settings,
        gate,
        EventStreams(settings.limits),
        HeavyRequests(settings.limits),
        alerting,
        first_read_s,
    )
    shared.brokers = tuple(
        Services(
            each,
            answers,
            shared,
            Denials(clock, partial(write_denial, each)),
            broker_path(each.broker.name) if each.broker.name else "",
        )
        for each, answers in zip(operations, recent, strict=True)
    )
    return shared.brokers


def _gate(
    settings: AdminSettings,
    environment: Mapping[str, str],
    clock: Clock,
    link: str | None,
    database: SqlDatabase,
) -> Gate:
    auth, limits = settings.auth, settings.limits
    keys = KeyRing(auth.keys, database)
    secret = environment.get(auth.session_secret_env)
    if secret is None and (settings.asks_who or link is not None):
        _LOG.info(
            "sessions of the page end with this process:"
            " the variable of auth.session_secret_env is not set, so a random secret is used"
        )
    tokens = None
    if (jwt := auth.jwt) is not None:
        shared = environment[jwt.secret_env] if jwt.secret_env else ""
        tokens = token_reader(jwt, auth.grants, shared, clock)
    secret, seconds = secret or new_secret(), auth.session_hours * 3600
    sign_in = None
    if auth.oidc is not None:
        from hopback.ops.oidc.sign_in import OidcSignIn

        variable = auth.oidc.client_secret_env
        sign_in = OidcSignIn(
            auth.oidc,
            auth.grants,
            client_secret=environment[variable] if variable else "",
            session_secret=secret,
            session_s=seconds,
            database=database,
            clock=clock,
        )
    return Gate(
        clock=clock,
        cookies=SessionCookies(secret, keys, seconds=seconds, database=database, oidc=sign_in),
        keys=keys,
        turns=TurnKeeper(limits.requests_per_second, limits.burst, clock.now),
        sign_ins=TurnKeeper(limits.sign_ins_per_minute / 60, limits.sign_ins_per_minute, clock.now),
        failures=TurnKeeper(limits.failures_per_minute / 60, limits.failures_per_minute, clock.now),
        tokens=tokens,
        link=None if link is None else LoginLink(link),
        oidc=sign_in,
        asks_who=settings.asks_who or link is not None,
    )


def _openapi(brokers: tuple[str, ...]) -> Callable[[Request], Awaitable[Response]]:
    @cache
    def write() -> bytes:
        rows = (*ENDPOINTS, *BROKERS)
        return msgspec.json.encode(openapi_document(rows, brokers))

    async def answer(_request: Request) -> Response:
        return Response(write(), media_type="application/json")

    return answer


def _not_found(services: Services, templates: Environment) -> Any:
    """Return the handler for paths that do not exist."""

    async def answer(request: Request, error: Exception) -> Response:
        path = sent_path(request.scope)
        refused = Refused(404, "not-found", f"Path {path} does not exist.")
        return cast(
            "Response", await _refusal_handler(services, templates, refused)(request, error)
        )

    return answer


async def _wrong_method(request: Request, _error: Exception) -> Response:
    """Name the methods of every route with this path. Starlette knows only those of the first."""
    routes = request.app.routes
    routes = [
        *routes,
        *(one for each in routes if isinstance(each, BrokerPaths) for one in each.routes),
    ]
    allowed = {
        method
        for route in routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }
    methods = ", ".join(sorted(allowed)) or "GET, HEAD"  # of a static file
    detail = f"Expected the method {methods}, got {request.method}."
    refused = Refused(405, "method-not-allowed", detail, headers={"Allow": methods})
    return problem_response(refused, request.url.path, request.state.correlation)


def _refusal_handler(services: Services, templates: Environment, refused: Refused) -> Any:
    """Return an error handler. Browsers get a page, and other clients get a problem document."""

    async def answer(request: Request, _error: Exception) -> Response:
        path = sent_path(request.scope)
        if "text/html" in request.headers.get("accept", "") and not path.startswith("/admin/"):
            # fall back to a problem document if the page fails too
            with suppress(Exception):
                return problem_page(services, templates, request, NOBODY, refused)
        return problem_response(refused, path, request.state.correlation)

    return answer


class _Files(StaticFiles):
    """Static files. Browsers may cache them, but have to revalidate them before each use."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "no-cache"
        return response


def page_routes(services: Services, templates: Environment) -> list[BaseRoute]:
    return [route for part in PAGES for route in part.routes(services, templates)]


class BrokerPaths(BaseRoute):
    """Dispatch paths below `/brokers/NAME` to the routes of this broker."""

    def __init__(self, routers: Mapping[str, Router]) -> None:
        self._routers = routers
        self.routes: list[BaseRoute] = [one for each in routers.values() for one in each.routes]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        _, first, name, *_ = *sent_path(scope).split("/", 3), "", ""
        known = scope["type"] == "http" and first == "brokers" and unquote(name) in self._routers
        return (Match.FULL if known else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the routes of the broker. Its name may be encoded in different ways."""
        _, _, sent, *rest = sent_path(scope).split("/", 3)
        name = unquote(sent)
        path = "/".join([broker_path(name), *rest])
        await self._routers[name](
            {**scope, "raw_path": path.encode("latin-1"), "path": unquote(path)}, receive, send
        )
