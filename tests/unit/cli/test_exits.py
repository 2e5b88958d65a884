"""Every kind of ending has its code."""

from __future__ import annotations

import pytest

from hopback import errors
from hopback.cli.exits import CommandFailed, Exit, exit_of
from hopback.errors import (
    BadFilter,
    BadRequest,
    CountMismatch,
    JobConflict,
    LeaseLost,
    NoSuch,
    NotAllowed,
    QueueBusy,
    SessionOver,
)
from hopback.ops.contract.requests import RedriveRequest
from hopback.ops.jobs.job_record import JobRecord, JobSpec

_JOB = JobRecord(
    "j-1",
    JobSpec(
        request=RedriveRequest(queue="q.dlq", reason="t"),
        broker="here",
    ),
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidTopology(()), 1),
        (errors.AccessRefused(403, "no"), 4),
        (errors.UnsafeOperation("no"), 4),
        (errors.NotFound(404, "no queue"), 5),
        (errors.PreconditionFailed(406, "inequivalent arg"), 6),
        (errors.TopologyConflict("other type"), 6),
        (errors.ConnectionFailed("refused"), 7),
        (errors.ConnectionLost("reset"), 7),
        (errors.ManagementRefused("no", status=401), 4),
        (errors.ManagementNotFound("no queue", status=404), 5),
        (errors.ManagementError("broken", status=500), 1),
        (errors.Nacked("full"), 1),
        (CommandFailed("x", do="y", code=Exit.CANCELLED), 8),
        (BadFilter("x", "a term"), 2),
        (BadRequest("limit", "1 or more"), 2),
        (NotAllowed("off"), 4),
        (NoSuch("queue", "x"), 5),
        (SessionOver("s-1", "expired"), 5),
        (CountMismatch(1, 2), 6),
        (QueueBusy("another request reads it"), 6),
        (JobConflict("busy", _JOB), 6),
        (LeaseLost("gone"), 6),
    ],
    ids=lambda value: type(value).__name__,
)
def test_error_class_selects_exit_code(error: errors.HopbackError, code: int) -> None:
    """Classes without a code exit with 1."""
    assert exit_of(error) == code


def test_exit_codes_are_the_documented_ones() -> None:
    """Scripts rely on the numbers."""
    assert {code.name: int(code) for code in Exit} == {
        "OK": 0,
        "FAILED": 1,
        "USAGE": 2,
        "PARTIAL": 3,
        "NOT_ALLOWED": 4,
        "NOT_FOUND": 5,
        "CONFLICT": 6,
        "UNREACHABLE": 7,
        "CANCELLED": 8,
        "FOUND": 10,
        "INTERRUPTED": 130,
    }
