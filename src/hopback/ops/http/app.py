"""The admin application: API and page over the operations, and what stands around every answer."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Mount, Route, Router
from starlette.staticfiles import StaticFiles

from hopback.broker.named_brokers import broker_path
from hopback.errors import HopbackError
from hopback.ops.alerts.http import ALERT_PAGES, ALERTS
from hopback.ops.alerts.watch import Alerting, AlertSource
from hopback.ops.contract.endpoints import SHARED
from hopback.ops.http.access import ACCESS, ACCESS_PAGES
from hopback.ops.http.api import ApiTable, api_routes, openapi_document, sent_path
from hopback.ops.http.archives import ARCHIVE_PAGES, ARCHIVES, IMPORT_PATH
from hopback.ops.http.auth import Gate, LoginLink, new_secret
from hopback.ops.http.brokers import BROKERS
from hopback.ops.http.dead_letters import DEADLETTERS
from hopback.ops.http.events import EventStreams
from hopback.ops.http.heavy_requests import HeavyRequests
from hopback.ops.http.keys import KeyRing
from hopback.ops.http.overview import BETWEEN_SWEEPS_S, RecentAnswers
from hopback.ops.http.probes import PROBES
from hopback.ops.http.problems import Refused, log_refusal, problem_response, refusal_of, unexpected
from hopback.ops.http.services import NOBODY, Denials, Services, SharedServices, write_denial
from hopback.ops.http.session_cookies import SessionCookies
from hopback.ops.http.settings import AdminSettings
from hopback.ops.http.sign_in import sign_in_routes
from hopback.ops.http.tokens import token_reader
from hopback.ops.http.topology import TOPOLOGY, TOPOLOGY_PAGES
from hopback.ops.http.turns import TurnKeeper
from hopback.ops.jobs.journal import Retention, forget_old
from hopback.ops.messages.archive import delete_exports
from hopback.ops.notes.http import NOTE_PAGES, NOTES
from hopback.ops.page.dead_letters import DEADLETTER_PAGES
from hopback.ops.page.errors import ERROR_PAGES
from hopback.ops.page.jobs import JOB_PAGES
from hopback.ops.page.pages import WORK_PAGES, problem_page
from hopback.ops.page.rendering import STATIC, renderer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from jinja2 import Environment
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from hopback.clock import Clock
    from hopback.ops.http.settings import RequestLimits
    from hopback.ops.operations import Operations
    from hopback.sql.database import SqlDatabase

ENDPOINTS = ApiTable(
    [*DEADLETTERS, *ARCHIVES, *NOTES, *ALERTS, *TOPOLOGY, *ACCESS, *PROBES]
).complete(SHARED)
"""The API of one broker."""
PAGES = (
    WORK_PAGES,
    DEADLETTER_PAGES,
    ERROR_PAGES,
    ARCHIVE_PAGES,
    NOTE_PAGES,
    JOB_PAGES,
    ALERT_PAGES,
    TOPOLOGY_PAGES,
    ACCESS_PAGES,
)
"""The pages of one broker, in the order in which their paths are matched."""

_LOG = logging.getLogger("hopback.ops.http")

_COUNTS_EVERY_S = 10.0  # a window of refusals is a minute: its count is at most so much late

_TAKE_OVER_EVERY_S = 5.0  # little beside the lease that has to run out before

_WARM_S = 5.0
"""Longest wait of the start for the first answers, in seconds. 2,000 queues take about 1 s. A broker that is
away delays the start by this time at most."""

_DAY_S = 86_400.0  # seconds
_RETENTION_EVERY_S = 3600.0  # what is kept for days may go an hour late

_BAD_PATH = Refused(400, "bad-path", "The path: expected UTF-8, percent-encoded.")

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""The names under which a service that asks nobody who they are may be called."""


def create_app(
    *operations: Operations,
    settings: AdminSettings | None = None,
    environment: Mapping[str, str] | None = None,
    link: str | None = None,
) -> ASGIApp:
    """Return the admin service as an ASGI application.

    `operations` are those of each broker. The first broker is served under the paths without a name, and
    every broker that has a name below `/brokers/NAME`. `settings` specify who may sign in. Without tokens
    and keys there, the service does not ask for a sign-in and serves only this machine. `link` is a secret
    that signs in as an admin, once: the login link of the dev mode. The database of the first journal also
    contains keys, sessions and alerts.
    """
    settings = settings or AdminSettings()
    environment = os.environ if environment is None else environment
    clock = operations[0].clock
    gate = _gate(settings, environment, clock, link, operations[0].journal.database)
    brokers = _services(operations, settings, environment, clock, gate)
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
            Mount("/static", _Files(directory=STATIC)),
            *([BrokerPaths(named)] if named else []),
        ],
        exception_handlers={
            400: _refusing(services, templates, _BAD_PATH),
            404: _not_found(services, templates),
            405: _wrong_method,
            # The shell writes the cause to the log.
            Exception: _refusing(services, templates, unexpected()),
        },
        lifespan=_lifespan(services, templates),
    )
    hosts = None if gate.asks_who else LOOPBACK
    return Shell(inner, limits=settings.limits, hosts=hosts)


def _services(
    operations: Sequence[Operations],
    settings: AdminSettings,
    environment: Mapping[str, str],
    clock: Clock,
    gate: Gate,
) -> tuple[Services, ...]:
    """Return the services of each broker."""
    recent = [RecentAnswers(each) for each in operations]
    sources = [
        AlertSource(
            each.broker.name,
            answers.sweep,
            each.jobs,
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
            " auth.session_secret_env names no variable that is set, so a random secret is used"
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
    """Answers what no path is there for: with a page where a browser asks for one."""

    async def answer(request: Request, error: Exception) -> Response:
        path = sent_path(request.scope)
        refused = Refused(404, "not-found", f"There is nothing at {path}.")
        return cast("Response", await _refusing(services, templates, refused)(request, error))

    return answer


async def _wrong_method(request: Request, error: Exception) -> Response:
    headers = dict(getattr(error, "headers", None) or {})
    detail = f"{request.method} cannot be done here; expected {headers.get('Allow', 'another')}."
    refused = Refused(405, "method-not-allowed", detail, headers=headers)
    return problem_response(refused, request.url.path, request.state.correlation)


def _refusing(services: Services, templates: Environment, refused: Refused) -> Any:
    """Answers with a refusal: a page where a browser asks for one, else a problem document."""

    async def answer(request: Request, _error: Exception) -> Response:
        path = sent_path(request.scope)
        if "text/html" in request.headers.get("accept", "") and not path.startswith("/admin/"):
            # The page itself may be what fails.
            with suppress(Exception):
                return problem_page(services, templates, request, NOBODY, refused)
        return problem_response(refused, path, request.state.correlation)

    return answer


def _lifespan(services: Services, templates: Environment) -> Any:
    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        """Keep the sweep and the counts of refusals going while the service runs."""
        between_s = BETWEEN_SWEEPS_S / len(services.shared.brokers)
        tasks = [
            asyncio.create_task(
                each.recent.sweep.run(between_s * number), name=f"sweep {each.name}"
            )
            for number, each in enumerate(services.shared.brokers)
        ]
        tasks += [
            asyncio.create_task(_write_counts(services), name="counts of refusals"),
            asyncio.create_task(_keep_retention(services), name="retention"),
        ]
        if services.shared.settings.jobs.take_over:
            tasks.append(asyncio.create_task(_take_over(services), name="take over jobs"))
        minutes = services.shared.settings.deadletters.survey_minutes
        tasks += [
            asyncio.create_task(
                each.operations.surveys.keep(minutes * 60.0 if minutes else None),
                name=f"surveys {each.name}",
            )
            for each in services.shared.brokers
        ]
        if services.shared.alerting.has_rules:
            tasks.append(asyncio.create_task(services.shared.alerting.run(), name="alerts"))
        warming = asyncio.create_task(_warm(services, templates), name="first answers")
        tasks.append(warming)
        await asyncio.wait({warming}, timeout=_WARM_S)
        try:
            yield
        finally:
            for each in services.shared.brokers:
                for waiting in tuple(each.working.values()):
                    await waiting.end()
            surveys = [task for each in services.shared.brokers for task in each.recent.surveying]
            for task in (*tasks, *surveys):
                task.cancel()
            await asyncio.gather(*tasks, *surveys, return_exceptions=True)
            for each in services.shared.brokers:
                await each.denials.flush(everything=True)

    return lifespan


async def _warm(services: Services, templates: Environment) -> None:
    """Compute the first answers, so that the first visitors do not wait for them."""
    await asyncio.gather(
        asyncio.to_thread(_compile_pages, templates),
        *(each.recent.compute() for each in services.shared.brokers),
    )


def _compile_pages(templates: Environment) -> None:
    for name in templates.list_templates(extensions=["html"]):
        templates.get_template(name)


async def _write_counts(services: Services) -> None:
    while True:
        await asyncio.sleep(_COUNTS_EVERY_S)
        for each in services.shared.brokers:
            await each.denials.flush()


async def _take_over(services: Services) -> None:
    """Go on with jobs whose processes are gone, of every broker that answers."""
    while True:
        await asyncio.sleep(_TAKE_OVER_EVERY_S)
        for each in services.shared.brokers:
            try:
                for job in await each.operations.take_over():
                    _LOG.warning(
                        "job %s of %s goes on here: its process is gone", job.id, job.queue
                    )
            except HopbackError as error:  # a broker or database that is away is asked again
                _LOG.info("jobs of %s could not be looked after: %s", each.broker.address, error)


async def _keep_retention(services: Services) -> None:
    """Delete what is older than it is kept: now, and again in a while."""
    said = services.shared.settings.retention
    retention = Retention(said.audit_days, said.job_days)
    operations = services.operations
    while True:
        try:
            await forget_old(operations.journal, services.clock, retention)
            if said.export_days and operations.settings.exports is not None:
                before = services.clock.now() - said.export_days * _DAY_S
                gone = await asyncio.to_thread(delete_exports, operations.settings.exports, before)
                if gone:
                    await operations.note("exports.retention", details={"files": gone})
        except Exception as error:  # a database that is away today is tried again
            _LOG.warning("old jobs and audit could not be deleted", exc_info=error)
        await asyncio.sleep(_RETENTION_EVERY_S)


_CORRELATION = re.compile(r"[A-Za-z0-9._:-]{1,128}")

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self';"
    " connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""Nothing inline, nothing from elsewhere."""

_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


_HSTS = "max-age=31536000"
"""Browsers that were here by HTTPS use no other scheme for this host for a year."""


class Shell:
    """The outermost layer of the application."""

    def __init__(
        self, app: ASGIApp, *, limits: RequestLimits, hosts: frozenset[str] | None
    ) -> None:
        self._app = app
        self._limits = limits
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        correlation = _correlation(headers)
        others = [each for each in scope["headers"] if each[0] != b"x-correlation-id"]
        scope = {**scope, "headers": [*others, (b"x-correlation-id", correlation.encode())]}
        scope["state"] = {**scope.get("state", {}), "correlation": correlation}
        sending = _Sending(send, correlation, scope)
        try:
            imports = IMPORT_PATH.fullmatch(sent_path(scope)) is not None
            most = self._limits.import_bytes if imports else self._limits.request_bytes
            seconds = self._limits.import_seconds if imports else self._limits.request_seconds
            self._check(headers, most)
            await self._app(scope, _bounded(receive, most, seconds), sending)
        except Exception as error:  # the last resort: what nobody caught is answered and logged
            refused = refusal_of(error, Request(scope))
            if refused is None:
                _LOG.error("request %s failed", correlation, exc_info=error)
            if not sending.started:
                answer = problem_response(refused or unexpected(), scope["path"], correlation)
                await answer(scope, receive, sending)
            elif not sending.ended:
                raise  # a cut answer must not look like a whole one: the server closes the connection

    def _check(self, headers: Headers, most: int) -> None:
        if self._hosts is not None and host_of(headers) not in self._hosts:
            raise Refused(
                421,
                "foreign-host",
                "This service serves this machine only, under localhost or 127.0.0.1.",
            )
        if "content-length" in headers and "transfer-encoding" in headers:
            # A proxy that goes by the other one would take the rest of the body for a request.
            raise Refused(
                400,
                "bad-request",
                "Expected either Content-Length or Transfer-Encoding, got both.",
                headers={"Connection": "close"},
            )
        length = headers.get("content-length", "0")
        if not re.fullmatch(r"[0-9]{1,18}", length):
            raise Refused(400, "bad-request", "Content-Length: expected a number.")
        if int(length) > most:
            raise too_large(most)


class _Sending:
    """Adds what every answer carries."""

    def __init__(self, send: Send, correlation: str, scope: Scope) -> None:
        self._send = send
        self._scope = scope
        self._correlation = correlation
        self.started = False
        self.ended = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            if message["status"] >= 400:
                log_refusal(self._scope, message["status"])
            headers = MutableHeaders(scope=message)
            headers["X-Correlation-ID"] = self._correlation
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            if self._scope["scheme"] == "https":
                headers["Strict-Transport-Security"] = _HSTS
            headers.setdefault("Cache-Control", "no-store")
        elif message["type"] == "http.response.body":
            self.ended = not message.get("more_body", False)
        await self._send(message)


def _bounded(receive: Receive, most: int, seconds: float) -> Receive:
    """The request, refused when more comes than was announced or is allowed, or too slowly."""
    read, whole = 0, False
    deadline: float | None = None

    async def bounded() -> Message:
        nonlocal read, whole, deadline
        if whole:  # now it is only waited for the caller to hang up, which may take long
            return await receive()
        deadline = deadline or asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            raise Refused(
                408, "too-slow", f"The body did not come within {seconds:g} s.",
                headers={"Connection": "close"},
            ) from None  # fmt: skip
        whole = not message.get("more_body", False)
        read += len(message.get("body", b""))
        if read > most:
            raise too_large(most)
        return message

    return bounded


def too_large(most: int) -> Refused:
    """The answer to a request that is larger than is allowed."""
    return Refused(413, "too-large", f"The request is larger than {most} bytes.")


def _correlation(headers: Headers) -> str:
    """The caller's id if it is harmless, else a new one."""
    given = headers.get("x-correlation-id", "")
    return given if _CORRELATION.fullmatch(given) else secrets.token_hex(16)


def host_of(headers: Headers) -> str:
    """The host that was asked for, without its port."""
    host = headers.get("host", "")
    return host.rpartition(":")[0] if re.search(r":\d+$", host) else host


class _Files(StaticFiles):
    """Files that browsers keep, and ask about before they use them."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "no-cache"
        return response


def page_routes(services: Services, templates: Environment) -> list[BaseRoute]:
    """Return the routes of one broker's pages."""
    return [route for part in PAGES for route in part.routes(services, templates)]


class BrokerPaths(BaseRoute):
    """Leads a path below `/brokers/NAME` to the routes of that broker, found by name."""

    def __init__(self, routers: Mapping[str, Router]) -> None:
        self._routers = routers

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether it names a broker that is served here."""
        _, first, name, *_ = *sent_path(scope).split("/", 3), "", ""
        known = scope["type"] == "http" and first == "brokers" and unquote(name) in self._routers
        return (Match.FULL if known else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the broker's own routes answer, whichever way its name was encoded."""
        _, _, sent, *rest = sent_path(scope).split("/", 3)
        name = unquote(sent)
        path = "/".join([broker_path(name), *rest])
        await self._routers[name](
            {**scope, "raw_path": path.encode("latin-1"), "path": unquote(path)}, receive, send
        )
