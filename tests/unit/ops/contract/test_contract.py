"""The contract: values that are checked where they are read, and both implementations of the interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hopback.errors import BadRequest
from hopback.ops.contract.codec import convert, encode, from_json, schemas, to_json
from hopback.ops.contract.requests import (
    DiscardRequest,
    EditRequest,
    JobKind,
    JobRequest,
    Pace,
    RedriveRequest,
    Selection,
    Target,
    TargetKind,
)
from hopback.ops.contract.values import Counts, Job, JobState, Moment, QueueDetail

if TYPE_CHECKING:
    from hopback.ops.client import RemoteDeadLetters
    from hopback.ops.contract.interface import DeadLetters
    from hopback.ops.operations import Operations

_JOB: Any = JobRequest  # a union is not a `type` for the type checker


def _here(operations: Operations) -> DeadLetters:
    """Let the type checker compare the local operations with the interface."""
    return operations


def _by_http(remote: RemoteDeadLetters) -> DeadLetters:
    """And so is a server."""
    return remote


def test_job_round_trips_through_json() -> None:
    """Names are in camelCase and times in RFC 3339. Computed fields are included."""
    job = Job(
        id="j-1",
        kind=JobKind.REDRIVE,
        queue="q.dlq",
        state=JobState.PAUSED,
        state_reason="asked to",
        reason="the database is back",
        counts=Counts(selected=5, done=2, skipped=1),
        created=Moment(0),
        updated=Moment(1.5),
    )
    said = to_json(job)
    assert (said["url"], said["stateReason"], said["reason"]) == (
        "/admin/dlq/jobs/j-1",
        "asked to",
        "the database is back",
    )
    assert (said["createdAt"], said["updatedAt"]) == (
        "1970-01-01T00:00:00.000Z",
        "1970-01-01T00:00:01.500Z",
    )
    assert said["counts"]["remaining"] == 2
    assert from_json(Job, encode(job)) == job


def test_job_request_round_trips_through_json() -> None:
    pace = Pace(rate=5.0, in_flight=7, ramp=(1, 2), watch_s=3.0)
    redrive = RedriveRequest(
        queue="q.dlq",
        selection=Selection(session="s-1", ids=("1-a",)),
        reason="repaired",
        target=Target(TargetKind.QUEUE, routing_key="q", reset=True),
        pace=pace,
        max_redrives=0,
        expected_count=1,
        force=True,
    )
    discard = DiscardRequest(
        queue="q.dlq",
        selection=Selection(session="s-1"),
        reason="junk",
        confirm="q.dlq",
        export=False,
        pace=pace,
    )
    for request in (redrive, discard):
        assert from_json(_JOB, encode(request)) == request


def test_invalid_document_reports_every_field_with_its_path() -> None:
    wrong = {
        "kind": "re-drive",
        "queue": "",
        "reason": 7,
        "pace": {"inFlight": 0, "rate": 1e9},
        "target": {"kind": "moon"},
    }
    with pytest.raises(BadRequest) as refused:
        convert(_JOB, wrong)
    text = str(refused.value)
    for part in (
        "queue: expected text of length >= 1, got ''",
        "reason: expected text, got 7",
        "pace.inFlight: expected a whole number >= 1, got 0",
        "pace.rate: expected a number <= 1000000.0, got 1000000000.0",
        "target.kind: expected",
    ):
        assert part in text, text
    with pytest.raises(BadRequest, match=r"colour: expected one of .*, got 'colour'"):
        convert(_JOB, {"kind": "discard", "queue": "q", "reason": "x", "colour": "red"})
    with pytest.raises(BadRequest, match="queue: expected a value, got none"):
        convert(_JOB, {"kind": "discard", "reason": "x"})
    with pytest.raises(BadRequest, match="body: expected JSON"):
        from_json(_JOB, b"{")


@pytest.mark.parametrize(
    ("target", "wrong"),
    [
        (
            {"routingKey": "q"},
            "routingKey only with kind queue or exchange, got 'q' with kind design",
        ),
        (
            {"kind": "failed-queue", "routingKey": "q"},
            "routingKey only with kind queue or exchange, got 'q' with kind failed-queue",
        ),
        ({"exchange": "e"}, "exchange only with kind exchange, got 'e' with kind design"),
        (
            {"kind": "queue", "exchange": "e", "routingKey": "q"},
            "exchange only with kind exchange, got 'e' with kind queue",
        ),
    ],
)
def test_target_refuses_names_that_its_kind_ignores(target: dict[str, str], wrong: str) -> None:
    redrive = {"kind": "re-drive", "queue": "q.dlq", "reason": "x", "target": target}
    copy = {"edit": {}, "reason": "x", "target": target}
    for kind, said in ((_JOB, redrive), (EditRequest, copy)):
        with pytest.raises(BadRequest) as refused:
            convert(kind, said)
        assert str(refused.value) == f"target: expected {wrong}"


def test_schema_contains_date_times_and_bounds() -> None:
    """OpenAPI is generated from it."""
    _, parts = schemas([QueueDetail, JobRequest])
    assert parts["Depth"]["properties"]["readAt"] == {"type": "string", "format": "date-time"}
    assert parts["Pace"]["properties"]["inFlight"]["maximum"] == 10_000
