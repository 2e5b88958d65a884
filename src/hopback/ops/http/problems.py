"""Convert errors to problem documents (RFC 9457) with a code and the correlation id of the request."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from starlette.responses import Response

from hopback import errors
from hopback.errors import (
    BadFilter,
    BadRequest,
    CountMismatch,
    JobConflict,
    NoSuch,
    NotAllowed,
    QueueBusy,
    SessionOver,
)
from hopback.text import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.types import Scope

MEDIA_TYPE = "application/problem+json"

_LOG = logging.getLogger("hopback.ops.http")
_LOGGED_PATH = 500
"""Characters of a path that are logged. The rest is cut off."""


class Refused(errors.HopbackError):
    """The service refuses a request. Programs can read the reason from `status` and `code`."""

    remedy: ClassVar[str] = (
        "Read the detail, which contains the value found and the value expected."
    )

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        more: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self.code = code
        self.detail = detail
        self.more: dict[str, object] = dict(more or {})
        self.headers: dict[str, str] = dict(headers or {})
        super().__init__(detail)


_KINDS: tuple[tuple[type[BaseException], int, str], ...] = (
    (BadFilter, 400, "bad-filter"),
    (BadRequest, 422, "invalid"),
    (CountMismatch, 409, "count-mismatch"),
    (QueueBusy, 409, "queue-busy"),
    (SessionOver, 404, "session-over"),
    (NoSuch, 404, "not-found"),
    (NotAllowed, 403, "switched-off"),
    (errors.ConnectionFailed, 503, "broker-unreachable"),
    (errors.ConnectionLost, 503, "broker-unreachable"),
    (errors.ManagementNotFound, 404, "not-found"),
    (errors.ManagementRefused, 503, "management-refused"),
    (errors.ManagementError, 503, "management-unavailable"),
    (errors.NotFound, 404, "not-found"),
    (errors.AccessRefused, 503, "broker-refused"),
    (errors.InvalidTopology, 422, "invalid-topology"),
    (errors.UnsafeOperation, 409, "unsafe"),
    (errors.BrokerError, 503, "broker-failed"),
    (errors.HopbackError, 400, "refused"),
)


def refusal_of(error: Exception, request: Request | None = None) -> Refused | None:
    """Return the response for an error, or None if the error is unexpected.

    The error is stored in the request, so that it is logged with it.
    """
    if request is not None:
        request.state.refused_for = error
    if isinstance(error, Refused):
        return error
    if isinstance(error, JobConflict) and error.job is not None:
        url = f"/admin/dlq/jobs/{error.job.id}"
        return Refused(409, "job-conflict", str(error), more={"job": url})
    if isinstance(error, errors.StoreUnavailable):
        # The error may contain file and host names, and this response is also sent to
        # unauthenticated callers.
        is_damaged = isinstance(error, errors.StoreDamaged)
        return Refused(
            503,
            "database-damaged" if is_damaged else "database-unavailable",
            f"The database of jobs and audit {'is damaged' if is_damaged else 'does not answer'}.",
            more={"remedy": error.remedy},
            headers={} if is_damaged else {"Retry-After": "5"},
        )
    for kind, status, code in _KINDS:
        if isinstance(error, kind):
            remedy = getattr(error, "remedy", "")
            headers = {"Retry-After": "5"} if status == 503 else {}
            more: dict[str, object] = {"remedy": remedy} if remedy else {}
            if isinstance(error, errors.UnsafeOperation) and not error.can_lift:
                more["canLift"] = False
            return Refused(status, code, str(error), more=more, headers=headers)
    return None


def trouble_title(error: BaseException | None, broker: str = "The broker") -> str:
    """Return a title for an error that prevents reading queues. `broker` names the broker in the title."""
    if isinstance(error, errors.StoreDamaged):
        return "The database is damaged"
    if isinstance(error, errors.StoreUnavailable):
        return "The database does not answer"
    if isinstance(error, errors.ManagementError):
        return f"The management API of {broker[0].lower()}{broker[1:]} does not answer"
    return f"{broker} does not answer"


def internal_error() -> Refused:
    """Return the response for an unexpected error. The cause is only logged."""
    return Refused(
        500,
        "internal",
        "An unexpected error occurred. The log contains it under the correlation id.",
    )


def log_refusal(scope: Scope, status: int) -> None:
    """Log an error response with its correlation id, so that operators can find the cause."""
    state = scope["state"]
    cause = state.get("refused_for")
    code = f" {cause.code}" if isinstance(cause, Refused) else ""
    _LOG.log(
        logging.WARNING if status >= 500 else logging.INFO,
        "request %s: %s %s answered %d%s%s",
        state["correlation"],
        scope["method"],
        one_line(scope["path"][:_LOGGED_PATH]),
        status,
        code,
        f": {one_line(str(cause))}" if cause is not None else "",
    )


def problem_body(refused: Refused, path: str, correlation: str) -> dict[str, Any]:
    return {
        "type": "about:blank",
        "title": HTTPStatus(refused.status).phrase,
        "status": refused.status,
        "detail": refused.detail,
        "instance": path,
        "code": refused.code,
        "correlationId": correlation,
        **refused.more,
    }


def problem_response(refused: Refused, path: str, correlation: str) -> Response:
    return Response(
        msgspec.json.encode(problem_body(refused, path, correlation)),
        refused.status,
        {**refused.headers, "Cache-Control": "no-store"},
        MEDIA_TYPE,
    )
