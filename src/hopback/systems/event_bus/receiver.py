"""A sample receiver. It accepts the events of any service, lists them, and fails on request."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hopback.runtime import Clock, SystemClock
from hopback.systems.web import RequestRefused, json_body, web_application

_TOO_EARLY = 425
"""The HTTP status for events that are not due yet."""
_MOST_REMEMBERED = 1000
"""How many events of each service are listed. Older ones are dropped, because the demo may run for
hours.
"""


@dataclass(slots=True)
class _Behaviour:
    """How a service answers. Without `times` it applies to all events."""

    status: int
    times: int | None
    delay_ms: int

    def answers(self) -> bool:
        """Return whether this behaviour applies, and decrement the number of remaining events."""
        if self.times == 0:
            return False
        if self.times is not None:
            self.times -= 1
        return True


class _Receiver:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._behaviours: dict[str, dict[str | None, _Behaviour]] = defaultdict(dict)
        self._seen: dict[str, deque[dict[str, Any]]] = defaultdict(
            lambda: deque(maxlen=_MOST_REMEMBERED)
        )

    async def receive(self, request: Request) -> Response:
        service, event = request.path_params["service"], await json_body(request, with_nul=True)
        kind = event.get("type")
        known = (self._behaviours[service].get(each) for each in (str(kind), None))
        status = 200
        if _due_at(event) > self._clock.now():
            status = _TOO_EARLY
        elif behaviour := next((each for each in known if each and each.answers()), None):
            await asyncio.sleep(behaviour.delay_ms / 1000)
            status = behaviour.status
        self._seen[service].append(
            {
                "id": event.get("id"),
                "type": kind,
                "attempt": int(request.headers.get("x-attempt", "0")),
                "answered": status,
            }
        )
        return Response(status_code=status)  # statuses such as 204 must not have a body

    async def show(self, request: Request) -> JSONResponse:
        """List the events that a service has received, with the status of each response."""
        return JSONResponse({"events": list(self._seen[request.path_params["service"]])})

    async def behave(self, request: Request) -> JSONResponse:
        """Set how a service answers to one type of event, or to all other types. `{}` resets the
        service.
        """
        body = await json_body(request)
        kind = body.get("type")
        if not isinstance(kind, str | None):
            raise RequestRefused("type: expected text")
        behaviours = self._behaviours[request.path_params["service"]]
        if not body:
            behaviours.clear()
        behaviours[kind] = _Behaviour(
            _number(body, "status", 200, 200, 599) or 200,
            _number(body, "times", None, 0, 1_000_000),
            _number(body, "delayMs", 0, 0, 600_000) or 0,
        )
        return JSONResponse(dict(body))


def create_receiver(clock: Clock | None = None) -> Starlette:
    """Return the web application of the sample receiver."""
    plays = _Receiver(clock or SystemClock())
    return web_application(
        [
            Route("/{service}/events", plays.receive, methods=["POST"]),
            Route("/{service}/events", plays.show),
            Route("/{service}/behaviour", plays.behave, methods=["PUT"]),
        ]
    )


def _due_at(event: Mapping[str, Any]) -> float:
    """Return the time when an event is due, in seconds since 1970. Returns 0 if it has no delay."""
    delay_ms, occurred = event.get("processAfterDelayMs"), event.get("occurredAt")
    if not isinstance(delay_ms, int | float) or not isinstance(occurred, str):
        return 0.0
    try:
        return datetime.fromisoformat(occurred).timestamp() + delay_ms / 1000
    except ValueError:
        return 0.0


def _number(
    body: Mapping[str, Any], name: str, default: int | None, least: int, most: int
) -> int | None:
    found = body.get(name, default)
    if found is None or (type(found) is int and least <= found <= most):
        return found
    raise RequestRefused(f"{name}: expected a number from {least} to {most}")
