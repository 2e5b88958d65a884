"""Live updates of the page, rate limits, and an unreachable database."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import OperationalError

from hopback.errors import StoreUnavailable
from hopback.ops.contract.requests import JobKind
from hopback.ops.contract.values import Counts, Job, JobState, Moment
from hopback.ops.http.overview import JobSpeeds
from hopback.ops.http.problems import refusal_of
from hopback.ops.http.turns import TurnKeeper
from hopback.store.database import store_errors
from tests.unit.ops.admin_service import DLQ, NOW, admin, dead_letter


def test_rate_limit_is_per_caller() -> None:
    """A burst is allowed first."""
    now = [0.0]
    turns = TurnKeeper(2.0, 3, lambda: now[0])
    assert [turns.take("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert turns.take("b") == 0.0
    now[0] = 0.5
    assert turns.take("a") == 0.0


def test_unavailable_database_is_503_without_sql_statement() -> None:
    with pytest.raises(StoreUnavailable, match="no such host") as caught, store_errors():
        raise OperationalError("SELECT secret", {}, Exception("no such host"))
    assert "secret" not in str(caught.value)
    refused = refusal_of(caught.value)
    assert refused is not None
    assert (refused.status, refused.code) == (503, "database-unavailable")
    assert "secret" not in refused.detail


async def test_live_stream_of_job_sends_change_and_end() -> None:
    async with admin(dead_letter(1)) as service:
        order = {"kind": "re-drive", "queue": DLQ, "reason": "x"}
        job = (await service.client.post("/admin/dlq/jobs", json=order)).json()["id"]
        answer = await service.client.get(f"/jobs/{job}/live")
    assert answer.text.startswith("event: change")
    assert answer.text.endswith("event: end\ndata: {}\n\n")


async def test_queue_page_refreshes_from_same_stream_as_list() -> None:
    async with admin(dead_letter(1)) as service:
        for path in ("/", f"/queues/{DLQ}"):
            shown = (await service.client.get(path)).text
            assert f'data-live="/live?at={NOW:.3f}" hx-get="{path}"' in shown


async def test_session_renewal_and_release_are_audited() -> None:
    async with admin(dead_letter(1)) as service:
        session = await service.session(ttlSeconds=10)
        renewed = await service.client.post(f"{session['url']}/renew", json={"ttlSeconds": 60})
        await service.client.delete(session["url"])
        audit = (await service.client.get("/admin/audit")).json()["items"]
    assert renewed.json()["expiresAt"] > session["expiresAt"]
    assert [entry["action"] for entry in audit] == [
        "session.release",
        "session.renew",
        "session.open",
    ]


def test_job_rate_covers_only_the_last_seconds() -> None:
    """An average since the start would include watches and pauses."""
    speeds = JobSpeeds()

    def shown(done: int, at: float, state: JobState = JobState.RUNNING) -> float | None:
        job = Job(
            id="j-1",
            kind=JobKind.REDRIVE,
            queue=DLQ,
            state=state,
            counts=Counts(selected=50_000, done=done),
            created=Moment(NOW - 3600),
            updated=Moment(NOW),
        )
        return speeds.of(job, NOW + at)

    assert shown(31, 0) is None
    assert shown(31, 5) is None
    assert shown(4031, 9) == pytest.approx(4000 / 9)
    assert shown(6031, 13) == pytest.approx(6000 / 8)
    assert shown(6031, 20, JobState.PAUSED) is None
    assert shown(6031, 21) is None
