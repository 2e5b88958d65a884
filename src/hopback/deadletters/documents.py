"""Jobs, wishes and failures as JSON, and back. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from msgspec import Struct, structs

from hopback.deadletters.contract import Counts, FailedMessage, JobState, Moment
from hopback.deadletters.journal import Checkpoint, JobRecord, JobSpec, SelectionSnapshot, Wish
from hopback.deadletters.requests import JobKind, Pace, Target, TargetKind, Who

__all__ = [
    "read_failure",
    "read_job",
    "read_wish",
    "write_failure",
    "write_job",
    "write_wish",
]


def write_job(job: JobRecord) -> str:
    """The job as JSON."""
    return _json(_shallow(job))


def _shallow(value: Any) -> Any:
    """As `asdict`, without copying the marks and digests one by one: there may be thousands."""
    if isinstance(value, Struct):
        return {name: _shallow(getattr(value, name)) for name in value.__struct_fields__}
    if not is_dataclass(value):
        return value
    return {field.name: _shallow(getattr(value, field.name)) for field in fields(value)}


def read_job(text: str) -> JobRecord:
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
    return JobRecord(**said)


def _spec(said: dict[str, Any]) -> JobSpec:
    frozen = said["selection"]
    digests = frozen["digests"]
    said["kind"] = JobKind(said["kind"])
    said["selection"] = SelectionSnapshot(
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
    said = structs.asdict(failed)
    return _json({"letter_id": said.pop("id"), **said})


def read_failure(text: str) -> FailedMessage:
    """The failure that `write_failure` wrote."""
    said = json.loads(text)
    return FailedMessage(
        said["letter_id"], said["digest"], said["message_id"], said["reason"], Moment(said["at"])
    )


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))
