"""Health checks, metrics and logs of web applications. They are similar to those of `hopback run`.

| path | response |
|---|---|
| `/healthz` | 200 as long as the process answers |
| `/readyz` | 200, or 503 with the reason if the broker or the database is not available |
| `/metrics` | Prometheus metrics of requests by path and status, and their duration |

`web_application` adds these paths. The module that the web server loads calls `log_as_json()`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hopback.observe.logs import SEVERITY, JsonLog, LogBridge
from hopback.runtime import SystemClock
from hopback.systems.language import Language, choose_language, language

Check: TypeAlias = "Callable[[], Awaitable[str | None]]"
"""Returns why a dependency cannot be used, or None if it can."""

_CHECK_S = 3.0
"""How many seconds a dependency may take to respond. Container engines wait for 5 s or longer."""
_PATHS = ("/healthz", "/readyz", "/metrics")
_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_SECONDS = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10)
"""The buckets for the duration of requests. There are two per decade, up to the usual timeouts of
clients.
"""


class WebHealth:
    """Responds to health checks and counts the requests of a web application."""

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._checks = checks
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "hopback_web_requests",
            "Requests by method, path and status.",
            ("method", "path", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "hopback_web_request_seconds",
            "Duration of requests.",
            ("path",),
            buckets=_SECONDS,
            registry=self._registry,
        )

    @property
    def routes(self) -> list[BaseRoute]:
        """The routes for health checks and metrics."""
        return [
            Route("/healthz", self._alive),
            Route("/readyz", self._ready),
            Route("/metrics", self._metrics),
        ]

    def count(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count a request. `path` is the path of its route, which limits the number of series."""
        self._requests.labels(method if method in _METHODS else "other", path, status).inc()
        self._seconds.labels(path).observe(seconds)

    async def _alive(self, _request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    async def _ready(self, _request: Request) -> JSONResponse:
        found = await asyncio.gather(*(_reason(check) for check in self._checks.values()))
        reasons = [
            f"{name}: {reason}"
            for name, reason in zip(self._checks, found, strict=True)
            if reason is not None
        ]
        status = "not ready" if reasons else "ok"
        return JSONResponse({"status": status, "reasons": reasons}, 503 if reasons else 200)

    async def _metrics(self, _request: Request) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)


async def _reason(check: Check) -> str | None:
    try:
        async with asyncio.timeout(_CHECK_S):
            return await check()
    except TimeoutError:
        return f"no answer within {_CHECK_S:g} s"


class RequestMiddleware:
    """Chooses the language of responses and counts requests."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        health: WebHealth,
        routes: Sequence[BaseRoute],
        languages: Sequence[Language],
    ) -> None:
        self._app = app
        self._health = health
        self._paths: dict[Any, str] = {
            one.endpoint: one.path for one in routes if isinstance(one, Route)
        }
        self._languages = languages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request. All other events are passed through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        accepted = headers.get(b"accept-language", b"").decode("latin-1")
        chosen = choose_language(accepted, self._languages)
        status, start = 500, time.perf_counter()

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                found = dict(message["headers"])
                has_text = status >= 400 and b"content-language" not in found
                if len(self._languages) > 1 and has_text:
                    more = ((b"content-language", chosen.encode()), (b"vary", b"Accept-Language"))
                    message["headers"] = [*message["headers"], *more]
            await send(message)

        token = language.set(chosen)
        try:
            await self._app(scope, receive, answer)
        finally:
            language.reset(token)
            path = self._paths.get(scope.get("endpoint"), "other")
            self._health.count(scope["method"], path, status, time.perf_counter() - start)


def log_as_json(level: str = "info") -> None:
    """Log JSON lines, also for uvicorn. Health checks are not logged.

    This must be called in the module that the web server loads. Repeated calls have no effect.
    """
    root = logging.getLogger()
    if not any(isinstance(one, LogBridge) for one in root.handlers):
        root.addHandler(LogBridge(JsonLog(SystemClock(), level=level)))
    root.setLevel(SEVERITY[level])
    for name in ("uvicorn", "uvicorn.access"):
        logger = logging.getLogger(name)
        if logger.handlers:  # `uvicorn --no-access-log` has removed those of the access log
            logger.handlers.clear()
            logger.propagate = True
    logging.getLogger("uvicorn.access").addFilter(_is_no_probe)


def _is_no_probe(record: logging.LogRecord) -> bool:
    """Return False if the log record is for a health check or for metrics."""
    given: Any = record.args
    return not (isinstance(given, tuple) and len(given) > 2 and str(given[2]).endswith(_PATHS))
