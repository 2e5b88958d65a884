"""One sweep for everybody, with a memory; the live lines of the page; a database that is away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from msgspec import structs
from sqlalchemy.exc import OperationalError

from hopback.clock import ManualClock
from hopback.errors import ConnectionFailed, StoreUnavailable
from hopback.ops.contract.requests import JobKind
from hopback.ops.contract.values import Counts, Depth, Job, JobState, Moment, QueueSummary
from hopback.ops.http.events import changes_of_board
from hopback.ops.http.overview import JobSpeeds, Sweep
from hopback.ops.http.problems import refusal_of
from hopback.ops.http.turns import TurnKeeper
from hopback.store.database import store_errors
from tests.unit.ops.admin_service import DLQ, NOW, admin, dead_letter

if TYPE_CHECKING:
    from collections.abc import Callable

_ONE = QueueSummary(
    queue="a.dlq",
    main_queue="a",
    origins=("a",),
    label="a",
    known_by="plan",
    depth=Depth(3, 0, 0, "amqp", Moment(NOW)),
)


def _reading(*answers: int | Exception) -> tuple[Callable[[], object], list[int]]:
    """A reader that gives these depths, or fails so, one after the other; how often it was asked."""
    waiting, asked = list(answers), [0]

    async def read() -> tuple[QueueSummary, ...]:
        asked[0] += 1
        answer = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        await asyncio.sleep(0)
        if isinstance(answer, Exception):
            raise answer
        return (structs.replace(_ONE, depth=structs.replace(_ONE.depth, ready=answer)),)

    return read, asked


async def test_many_who_ask_at_once_cost_one_sweep() -> None:
    """A hundred callers within a second share what one sweep read."""
    clock, (read, asked) = ManualClock(NOW), _reading(3)
    sweep = Sweep(read, clock)  # type: ignore[arg-type]
    found = await asyncio.gather(*(sweep.get() for _ in range(100)))
    assert asked == [1]
    assert {swept.at for swept in found} == {NOW}
    clock.advance(1.0)
    await sweep.get()
    assert asked == [2]


async def test_while_the_broker_is_away_the_last_numbers_stay_with_their_age() -> None:
    """The error is told with what was last known; when the broker is back, so are the numbers."""
    clock = ManualClock(NOW)
    read, _ = _reading(3, ConnectionFailed("gone"), 5)
    sweep = Sweep(read, clock)  # type: ignore[arg-type]
    await sweep.get()
    clock.advance(2.0)
    stale = await sweep.get_or_last()
    assert (stale.queues[0].depth.ready, stale.age(clock.now())) == (3, 2.0)
    with pytest.raises(ConnectionFailed):
        await sweep.get()
    clock.advance(1.0)
    assert (await sweep.get()).queues[0].depth.ready == 5


async def test_a_trend_has_a_sample_every_few_seconds() -> None:
    """However often it is asked for."""
    clock = ManualClock(NOW)
    read, _ = _reading(1, 2, 3, 4, 5, 6, 7)
    sweep = Sweep(read, clock)  # type: ignore[arg-type]
    for _ in range(7):
        await sweep.get()
        clock.advance(2.0)
    assert sweep.trend("a.dlq") == ((NOW, 1), (NOW + 6, 4), (NOW + 12, 7))
    assert sweep.trend("unknown") == ()


def test_each_caller_has_turns_of_their_own() -> None:
    """A burst, then the rate; another caller is not held back."""
    now = [0.0]
    turns = TurnKeeper(2.0, 3, lambda: now[0])
    assert [turns.take("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert turns.take("b") == 0.0
    now[0] = 0.5
    assert turns.take("a") == 0.0


def test_a_database_that_does_not_answer_is_a_503() -> None:
    """Without the statement, which could hold what nobody should read."""
    with pytest.raises(StoreUnavailable, match="no such host") as caught, store_errors():
        raise OperationalError("SELECT secret", {}, Exception("no such host"))
    assert "secret" not in str(caught.value)
    refused = refusal_of(caught.value)
    assert refused is not None
    assert (refused.status, refused.code) == (503, "database-unavailable")
    assert "secret" not in refused.detail


async def test_a_job_is_followed_on_the_page_until_it_ends() -> None:
    """The line says change and end; the page fetches the rest itself."""
    async with admin(dead_letter(1)) as service:
        order = {"kind": "re-drive", "queue": DLQ, "reason": "x"}
        job = (await service.client.post("/admin/dlq/jobs", json=order)).json()["id"]
        answer = await service.client.get(f"/jobs/{job}/live")
    assert answer.text.startswith("event: change")
    assert answer.text.endswith("event: end\ndata: {}\n\n")


async def test_what_changed_before_the_stream_stood_is_told() -> None:
    """A page says when it was made; the stream says at once that it is out of date, and nothing else."""
    clock = ManualClock(NOW)
    read, _ = _reading(3, 3, 0)
    sweep = Sweep(read, clock)  # type: ignore[arg-type]
    shown_at = (await sweep.get()).at
    clock.advance(1.0)
    assert (await sweep.get()).queues[0].depth.ready == 3
    assert sweep.changed_at == shown_at
    clock.advance(1.0)
    changes = changes_of_board([sweep], shown_at)
    assert await anext(changes) == b"event: change\ndata: {}\n\n"
    assert sweep.changed_at == NOW + 2.0


async def test_a_queue_refreshes_itself_as_the_list_does() -> None:
    """Both follow the same stream, from the moment of what they show."""
    async with admin(dead_letter(1)) as service:
        for path in ("/", f"/queues/{DLQ}"):
            shown = (await service.client.get(path)).text
            assert f'data-live="/live?at={NOW:.3f}" hx-get="{path}"' in shown


async def test_sessions_that_are_kept_or_ended_are_audited() -> None:
    """Who renewed and who released stands in the audit."""
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


def test_a_job_goes_as_fast_as_it_went_in_the_last_seconds() -> None:
    """Not as fast as since it began: that counts every watch and every hour of standing still."""
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
