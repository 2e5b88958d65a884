"""Jobs, wishes and failures as JSON, and back. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from hopback.deadletters.jobs import (
    Checkpoint,
    Counts,
    FailedMessage,
    Frozen,
    Job,
    JobKind,
    JobSpec,
    JobState,
)
from hopback.deadletters.journal import Wish
from hopback.deadletters.pacing import Pace
from hopback.deadletters.requests import Who
from hopback.deadletters.targets import Target, TargetKind

__all__ = [
    "read_failure",
    "read_job",
    "read_wish",
    "write_failure",
    "write_job",
    "write_wish",
]


def write_job(job: Job) -> str:
    """The job as JSON."""
    return _json(_shallow(job))


def _shallow(value: Any) -> Any:
    """As `asdict`, without copying the marks and digests one by one: there may be thousands."""
    if not is_dataclass(value):
        return value
    return {field.name: _shallow(getattr(value, field.name)) for field in fields(value)}


def read_job(text: str) -> Job:
    """The job that `write_job` wrote."""
    said = json.loads(text)
    said["spec"] = _spec(said["spec"])
    said["state"] = JobState(said["state"])
    said["counts"] = Counts(**said["counts"])
    mark = said["checkpoint"]
    said["checkpoint"] = Checkpoint(
        mark["kept"],
        tuple(mark["window"]),
        mark["rest"],
        mark.get("end_is_sure", False),  # a job of an earlier version does not tell
        mark.get("saw_fresh", False),
        mark.get("has_twins", False),
    )
    return Job(**said)


def _spec(said: dict[str, Any]) -> JobSpec:
    frozen = said["selection"]
    digests = frozen["digests"]
    said["kind"] = JobKind(said["kind"])
    said["selection"] = Frozen(
        frozen["count"],
        frozen["filter"],
        None if digests is None else tuple(digests),
        frozen.get("behind"),  # a job of an earlier version does not tell
    )
    said["by"] = Who(**said["by"])
    said["target"] = Target(**said["target"] | {"kind": TargetKind(said["target"]["kind"])})
    said["pace"] = Pace(**said["pace"] | {"ramp": tuple(said["pace"]["ramp"])})
    return JobSpec(**said)


def write_wish(wish: Wish) -> str:
    """The wish as JSON."""
    return _json(asdict(wish))


def read_wish(text: str) -> Wish:
    """The wish that `write_wish` wrote."""
    return Wish(**json.loads(text))


def write_failure(failed: FailedMessage) -> str:
    """The failure as JSON."""
    return _json(asdict(failed))


def read_failure(text: str) -> FailedMessage:
    """The failure that `write_failure` wrote."""
    return FailedMessage(**json.loads(text))


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))
