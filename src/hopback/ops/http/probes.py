"""Probes and metrics of the service."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct
from starlette.responses import PlainTextResponse, Response

from hopback import __version__
from hopback.errors import HopbackError
from hopback.ops.contract.queue_rules import EVERY_QUEUE, NO_QUEUE
from hopback.ops.contract.roles import Role
from hopback.ops.http.api import ApiAnswer, ApiTable, Call
from hopback.ops.http.problems import Refused, trouble_title

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hopback.ops.contract.endpoints import Empty
    from hopback.ops.http.services import Services

PROBES = ApiTable()
"""The endpoints of probes and metrics."""


class ReadyAnswer(Struct, frozen=True, rename="camel"):
    """Whether the service is ready. The address and the error are only included for identified callers."""

    ready: bool
    version: str
    broker: str
    reason: str


@PROBES.row("GET", "/healthz", None, NO_QUEUE, media=("text/plain",), public=True)
async def _healthz(_call: Call[Empty, None]) -> Response:
    """Report whether the process is alive."""
    return PlainTextResponse("ok\n")


@PROBES.row(
    "GET",
    "/readyz",
    None,
    NO_QUEUE,
    answer=ReadyAnswer,
    public=True,
    further=((503, ReadyAnswer),),
)
async def _readyz(call: Call[Empty, None]) -> ApiAnswer:
    """Report whether the broker responds."""
    services = call.services
    error = (await services.recent.sweep.get_or_last()).error
    known = None
    with suppress(Refused):  # a probe with wrong credentials also gets a response
        known = await services.shared.gate.identify(call.request)
    reason = ""
    if error is not None:
        title = trouble_title(error)
        reason = title[0].lower() + title[1:]
    if known is not None and isinstance(error, HopbackError):
        reason = str(error)
    broker = "" if known is None else services.broker.address
    answer = ReadyAnswer(error is None, __version__, broker, reason)
    return ApiAnswer(answer, status=200 if error is None else 503)


@PROBES.row("GET", "/metrics", Role.VIEWER, EVERY_QUEUE, media=("text/plain",))
async def _metrics(call: Call[Empty, None]) -> Response:
    """Return depths and browse sessions for Prometheus."""
    await call.services.recent.sweep.get_or_last()
    return Response(
        metrics_of([call.services]), media_type="text/plain; version=0.0.4; charset=utf-8"
    )


def metrics_of(brokers: Sequence[Services], *, labelled: bool = False) -> str:
    """Return the metrics of the last sweep. If `labelled` is True, they have a `broker` label."""
    up, dead_letters, sessions = [], [], []
    for each in brokers:
        name = f'broker="{_escape(each.name)}"' if labelled else ""
        alone, beside = (f"{{{name}}}", f"{name},") if name else ("", "")
        swept = each.recent.sweep.known
        up.append(
            f"hopback_admin_broker_up{alone} {int(swept is not None and swept.error is None)}"
        )
        dead_letters += [
            f'hopback_dead_letters{{{beside}queue="{_escape(one.queue)}"}} {one.depth.total}'
            for one in (() if swept is None else swept.queues)
            if one.depth.total is not None
        ]
        sessions.append(f"hopback_admin_sessions{alone} {len(each.operations.sessions())}")
    lines = [
        "# HELP hopback_admin_broker_up Whether the broker answered the last sweep.",
        "# TYPE hopback_admin_broker_up gauge",
        *up,
        "# HELP hopback_dead_letters Messages in each dead-letter queue.",
        "# TYPE hopback_dead_letters gauge",
        *dead_letters,
        "# HELP hopback_admin_sessions Open browse sessions.",
        "# TYPE hopback_admin_sessions gauge",
        *sessions,
    ]
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
