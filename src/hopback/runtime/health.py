"""Health checks of a service, and the HTTP endpoint that exposes them.

A service is alive as long as its consumers are running or being restored. If a consumer has been
lost for too long even though the connection works, the service reports that it is not alive,
because a restart may help. A service is ready when it is connected and all consumers are receiving
messages.

    GET  /healthz                  liveness, 200 or 503
    GET  /readyz                   readiness, 200 or 503
    GET  /metrics                  Prometheus metrics

Commands are accepted on a Unix socket (`private_files.control_socket`) that only the user of the
process can access.

    POST /queues/{queue}/pause     pause consuming
    POST /queues/{queue}/resume    resume consuming
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import unquote

from hopback.broker.supervise import SupervisedState
from hopback.durations import Duration, read_seconds
from hopback.endpoint import Request, Response
from hopback.policy.breaker import BreakerState
from hopback.runtime.consumer import ConsumerState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hopback.runtime.service import Service

_LOOK_EVERY = 1.0  # seconds between checks


@dataclass(frozen=True, slots=True)
class Condition:
    """The result of a health check. `reasons` explains why it failed."""

    connections: dict[str, str]
    consumers: dict[str, str]
    reasons: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.reasons


class Health:
    """Checks the health of a service. `patience` is the time a consumer may be lost, in seconds."""

    def __init__(
        self, service: Service, *, time: Callable[[], float], patience: Duration = 60.0
    ) -> None:
        self._service = service
        self._time = time
        self._patience = read_seconds(patience, "patience", where="Health")
        self._lost_since: dict[str, float] = {}

    async def run(self) -> None:
        """Check once per second, so that we know how long a consumer has been lost."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_EVERY)

    def look(self) -> None:
        now = self._time()
        up = self._service.lines["consuming"] in (SupervisedState.READY, SupervisedState.BLOCKED)
        starting = (
            each for each in self._service.consumers if each.state is ConsumerState.STARTING
        )
        lost = {consumer.queue for consumer in starting if up}
        kept = {queue: since for queue, since in self._lost_since.items() if queue in lost}
        self._lost_since = dict.fromkeys(lost, now) | kept

    def alive(self) -> Condition:
        self.look()
        now = self._time()
        return self._condition(
            f"{queue} has had no consumer for {now - since:.0f} s though the broker is up"
            for queue, since in sorted(self._lost_since.items())
            if now - since > self._patience
        )

    def ready(self) -> Condition:
        reasons = [
            f"the {purpose} connection is {state}"
            for purpose, state in self._service.lines.items()
            if state is not SupervisedState.READY
        ]
        for one in self._service.consumers:
            if one.state is not ConsumerState.CONSUMING:
                trouble = f": {one.trouble}" if one.trouble else ""
                reasons.append(f"{one.queue} is {one.state}{trouble}")
            elif one.standstill:
                reasons.append(
                    f"{one.queue} does not progress: all deliveries ({one.held_count}) are held: "
                    f"{one.standstill}"
                )
            elif one.stuck_runs:
                reasons.append(
                    f"{one.queue} has no free handler, because these calls have not returned for "
                    f"minutes: {one.stuck_runs}"
                )
            elif one.kept_count:
                reasons.append(
                    f"{one.queue} holds {one.kept_count} deliveries that could be neither settled nor moved: "
                    "see their delivery.held and delivery.abandoned events, then restart the service"
                )
            elif one.breaker is not BreakerState.CLOSED:
                reasons.append(f"{one.queue} is paused: everything fails")
        return self._condition(reasons)

    def _condition(self, reasons: Iterable[str]) -> Condition:
        return Condition(
            {purpose: str(state) for purpose, state in self._service.lines.items()},
            {one.queue: str(one.state) for one in self._service.consumers},
            tuple(reasons),
        )


class ControlEndpoint:
    """The HTTP endpoint of a service. `metrics` renders the Prometheus metrics, if available."""

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
            case _:
                return _said(HTTPStatus.NOT_FOUND, error=_WHAT_THERE_IS)

    async def command(self, request: Request) -> Response:
        """Handle a command from the control socket."""
        match request.method, request.path.strip("/").split("/"):
            case "POST", ["queues", queue, "pause" | "resume" as verb]:
                return self._command(unquote(queue), verb)
            case _:
                return _said(HTTPStatus.NOT_FOUND, error=_COMMANDS)

    def _command(self, queue: str, verb: str) -> Response:
        try:
            consumer = self._service.consumer(queue)
        except KeyError as error:
            return _said(HTTPStatus.NOT_FOUND, error=str(error.args[0]))
        if verb == "pause":
            consumer.pause("by command")
        else:
            consumer.resume("by command")
        return _said(HTTPStatus.OK, queue=queue, state=str(consumer.state))


_WHAT_THERE_IS = "expected GET /healthz, /readyz or /metrics"
_COMMANDS = "expected POST /queues/{queue}/pause or /queues/{queue}/resume"
_NO_METRICS = "metrics need the extra `metrics`: install hopback[metrics]"


def _probe(condition: Condition) -> Response:
    status = HTTPStatus.OK if condition.ok else HTTPStatus.SERVICE_UNAVAILABLE
    return _said(status, ok=condition.ok, **asdict(condition))


def _said(status: HTTPStatus, **content: object) -> Response:
    return Response(status, json.dumps(content).encode() + b"\n")
