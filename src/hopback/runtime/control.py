"""What a service answers over HTTP: probes, metrics, and the pausing of queues.

    GET  /healthz                  alive? 200 or 503, with the reasons
    GET  /readyz                   ready? 200 or 503, with the reasons
    GET  /metrics                  Prometheus
    POST /queues/{queue}/pause     take no deliveries for now
    POST /queues/{queue}/resume    take them again

Commands are for whoever is on this machine: they are taken from loopback addresses alone, and never
from a page in a browser.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from hopback.endpoint import Response, is_loopback
from hopback.renamed import OldNameLookup, old_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.endpoint import Request
    from hopback.runtime.health import Condition, Health
    from hopback.runtime.service import Service

__all__ = ["ControlEndpoint"]

_FORWARDED = ("origin", "sec-fetch-site", "forwarded", "x-forwarded-for")
"""A browser sends the first two, a proxy the others: neither is a person on this machine."""


class ControlEndpoint:
    """Answers requests about one service; `metrics` renders a scrape where the extra is there."""

    def __init__(
        self,
        service: Service,
        health: Health,
        metrics: Callable[[], tuple[str, bytes]] | None = None,
    ) -> None:
        self._service = service
        self._health = health
        self._metrics = metrics

    async def __call__(self, request: Request) -> Response:
        """Answer one request."""
        match request.method, request.path.strip("/").split("/"):
            case "GET" | "HEAD", ["healthz"]:
                return _probe(self._health.alive())
            case "GET" | "HEAD", ["readyz"]:
                return _probe(self._health.ready())
            case "GET" | "HEAD", ["metrics"]:
                if self._metrics is None:
                    return _said(HTTPStatus.NOT_IMPLEMENTED, error=_NO_METRICS)
                content_type, body = self._metrics()
                return Response(HTTPStatus.OK, body, content_type)
            case "POST", ["queues", queue, "pause" | "resume" as verb]:
                return self._command(request, unquote(queue), verb)
            case _:
                return _said(HTTPStatus.NOT_FOUND, error=_WHAT_THERE_IS)

    def _command(self, request: Request, queue: str, verb: str) -> Response:
        if not _is_allowed(request):
            return _said(HTTPStatus.FORBIDDEN, error=_LOOPBACK_ONLY)
        try:
            consumer = self._service.consumer(queue)
        except KeyError as error:
            return _said(HTTPStatus.NOT_FOUND, error=str(error.args[0]))
        if verb == "pause":
            consumer.pause("by command")
        else:
            consumer.resume("by command")
        return _said(HTTPStatus.OK, queue=queue, state=str(consumer.state))


_WHAT_THERE_IS = "expected GET /healthz, /readyz, /metrics or POST /queues/{queue}/pause|resume"
_NO_METRICS = "metrics need the extra `metrics`: install hopback[metrics]"
_LOOPBACK_ONLY = "commands are taken from this machine alone, and not from a browser or a proxy"


def _is_allowed(request: Request) -> bool:
    """From loopback, and addressed to it: a page that makes its name point here is still a page."""
    try:
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return False
    local = host == "localhost" or is_loopback(host)
    foreign = any(name in request.headers for name in _FORWARDED)
    return is_loopback(request.peer) and local and not foreign


def _probe(condition: Condition) -> Response:
    status = HTTPStatus.OK if condition.ok else HTTPStatus.SERVICE_UNAVAILABLE
    return _said(status, ok=condition.ok, **asdict(condition))


def _said(status: HTTPStatus, **content: object) -> Response:
    return Response(status, json.dumps(content).encode() + b"\n")


__getattr__: OldNameLookup = old_names(__name__, {"Control": "ControlEndpoint"})
