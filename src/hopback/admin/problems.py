"""Errors as answers: RFC 9457 problem documents with a code and the correlation id of the request."""

from __future__ import annotations

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
    SessionOver,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MEDIA_TYPE", "Refused", "problem_body", "problem_response", "refusal_of", "unexpected"]

MEDIA_TYPE = "application/problem+json"


class Refused(errors.HopbackError):
    """The service does not do what was asked; `status` and `code` say why to programs."""

    remedy: ClassVar[str] = "Read the detail: it says what was found and what was expected."

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


def refusal_of(error: Exception) -> Refused | None:
    """The answer to an error that is known; None for one that nobody expected."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, JobConflict) and error.job is not None:
        url = f"/admin/dlq/jobs/{error.job.id}"
        return Refused(409, "job-conflict", str(error), more={"job": url})
    if isinstance(error, errors.StoreUnavailable):
        return Refused(
            503, "database-unavailable", "The database of jobs and audit does not answer."
        )
    for kind, status, code in _KINDS:
        if isinstance(error, kind):
            remedy = getattr(error, "remedy", "")
            headers = {"Retry-After": "5"} if status == 503 else {}
            more = {"remedy": remedy} if remedy else {}
            return Refused(status, code, str(error), more=more, headers=headers)
    return None


def unexpected() -> Refused:
    """The answer to what nobody expected: nothing of the cause, which is in the log."""
    return Refused(
        500,
        "internal",
        "Something went wrong that nobody expected; the log has it under the correlation id.",
    )


def problem_body(refused: Refused, path: str, correlation: str) -> dict[str, Any]:
    """The problem document."""
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
    """The answer that holds it."""
    return Response(
        msgspec.json.encode(problem_body(refused, path, correlation)),
        refused.status,
        {**refused.headers, "Cache-Control": "no-store"},
        MEDIA_TYPE,
    )
