"""The operations of a server: the same interface, over the real application without a socket."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from msgspec import structs

from hopback.errors import (
    BadFilter,
    BadRequest,
    CountMismatch,
    JobConflict,
    NoSuch,
    ServerUnavailable,
    UnsafeOperation,
)
from hopback.ops.client import RemoteDeadLetters
from hopback.ops.contract.requests import (
    DiscardRequest,
    GroupBy,
    Pace,
    RedriveRequest,
    Selection,
    SessionRequest,
    Submission,
    Target,
    TargetKind,
)
from hopback.ops.contract.search import survey_queue
from hopback.ops.http.app import create_app
from hopback.testing import in_virtual_time
from tests.unit.ops.cli.raffle import DLQ, MAIN, raffle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.unit.ops.cli.raffle import Raffle


@asynccontextmanager
async def _open_server(
    version: str = "3.13", exports: Path | None = None
) -> AsyncIterator[tuple[Raffle, RemoteDeadLetters]]:
    async with raffle(version=version, exports=exports) as found:
        app = create_app(found.operations)
        transport = httpx.ASGITransport(app)
        async with RemoteDeadLetters("http://localhost", transport=transport) as remote:
            yield found, remote


def _request(**more: Any) -> RedriveRequest:
    said: dict[str, Any] = {
        "queue": DLQ,
        "selection": Selection(),
        "reason": "the database is back",
        "target": Target(TargetKind.QUEUE, routing_key=MAIN),
    }
    return RedriveRequest(**{**said, **more})


@in_virtual_time
async def test_remote_client_returns_same_values_as_library() -> None:
    async with _open_server() as (found, remote):
        await found.park(6)
        library = found.operations
        (here,), (there,) = await library.queues(), await remote.queues()
        assert structs.replace(there, depth=here.depth) == here
        detail = await library.queue(DLQ)
        assert structs.replace(await remote.queue(DLQ), depth=detail.depth) == detail
        session = await remote.open_session(DLQ, SessionRequest(limit=5))
        assert (session.held, session.complete) == (5, False)
        page = await remote.messages(session.id, "error:TimeoutError", limit=2)
        assert (len(page.dead_letters), page.matching, page.next) == (2, 3, "3")
        rest = await remote.messages(session.id, "error:TimeoutError", cursor=page.next or 0)
        assert [dead_letter.place for dead_letter in rest.dead_letters] == [5]
        assert await library.messages(session.id, limit=5) == await remote.messages(
            session.id, limit=5
        )
        first = page.dead_letters[0].id
        assert await remote.message(session.id, first) == await library.message(session.id, first)
        assert await remote.body(session.id, first) == b'{"number":0}'
        assert await remote.groups(session.id, GroupBy.ERROR) == await library.groups(
            session.id, GroupBy.ERROR
        )
        assert (await remote.renew(session.id, 60.0)).expires_at < session.expires_at
        await remote.release(session.id)
        await remote.release(session.id)
        assert await survey_queue(remote, DLQ, GroupBy.ERROR, "error:TimeoutError") == (
            await survey_queue(library, DLQ, GroupBy.ERROR, "error:TimeoutError")
        )


@in_virtual_time
async def test_remote_job_is_planned_started_followed_and_listed() -> None:
    """The messages move at the server."""
    async with _open_server() as (found, remote):
        await found.park(6)
        plan = await remote.plan(_request(pace=Pace(rate=5.0, ramp=(1, 2), watch_s=7.0)))
        assert (plan.selected, plan.may_start, plan.watch_s) == (6, True, 7.0)
        job = await remote.start(_request(), Submission(key="once"))
        assert (await remote.start(_request(), Submission(key="once"))).id == job.id
        states = [one.state async for one in remote.events(job.id)]
        assert states[-1] == "completed"
        done = await remote.wait(job.id)
        assert (done.counts.done, done.counts.remaining) == (6, 0)
        assert [one.id for one in await remote.jobs(queue=DLQ)] == [job.id]
        assert await remote.failures(job.id) == ()
        assert (await remote.audit())[0].action == "job.end"
        assert (found.held(DLQ), len(found.held(MAIN))) == ([], 6)


@in_virtual_time
async def test_remote_job_is_paused_resumed_and_cancelled() -> None:
    """An interrupt of the client process leaves the job running."""
    async with _open_server() as (found, remote):
        await found.park(9)
        job = await remote.start(_request(pace=Pace(rate=1.0)))
        await asyncio.sleep(2)  # virtual time, the list is refreshed once a second
        (row,) = await remote.queues()
        assert row.active_job is not None
        assert row.active_job.id == job.id
        assert (await remote.set_rate(job.id, 2.0)).rate == 2.0
        await remote.pause(job.id)
        async for now in found.operations.events(job.id):  # a stream ends with the job here
            if now.state == "paused":
                break
        assert (await remote.interrupt(job.id)).state == "paused"
        await remote.resume(job.id)
        await remote.cancel(job.id)
        assert (await remote.wait(job.id)).state == "cancelled"


@in_virtual_time
async def test_remote_client_raises_same_errors_as_library() -> None:
    async with _open_server() as (found, remote):
        await found.park(2)
        discard = DiscardRequest(queue=DLQ, selection=Selection(), reason="junk", confirm="other")
        nowhere = Target(TargetKind.QUEUE, routing_key="no.such")
        for work, kind in (
            (remote.queue("no/such queue"), NoSuch),
            (remote.job("j-none"), NoSuch),
            (remote.start(_request(selection=Selection(session="s-none"))), NoSuch),
            (remote.plan(_request(max_redrives=-1)), BadRequest),
            (remote.start(discard), BadRequest),
            (remote.start(_request(expected_count=99)), CountMismatch),
            (survey_queue(remote, DLQ, where="nonsense>1"), BadFilter),
            (remote.start(_request(target=nowhere)), UnsafeOperation),
        ):
            with pytest.raises(kind) as refused:
                await work
            assert str(refused.value)
            assert refused.value.remedy
        job = await remote.start(_request(pace=Pace(rate=1.0)))
        with pytest.raises(JobConflict, match=job.id):
            await remote.start(_request())


@in_virtual_time
async def test_remote_discard_plan_names_server_file(tmp_path: Path) -> None:
    """A file on this machine is refused."""
    async with _open_server(exports=tmp_path) as (found, remote):
        await found.park(1)
        asked = DiscardRequest(queue=DLQ, selection=Selection(), reason="old", confirm=DLQ)
        assert (await remote.plan(asked)).export_to.startswith(str(tmp_path))
        assert (await remote.plan(structs.replace(asked, export=False))).export_to == ""
        for verb in (remote.plan, remote.start):
            with pytest.raises(BadRequest, match="--export-to"):
                await verb(asked, Submission(export_to="mine.ndjson"))
        assert len(found.held(DLQ)) == 1


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8080",
        "amqp://localhost",
        "http://ann:pw@localhost",
        "http://localhost:x",
        "http://é..",
        "http://[::1",
    ],
)
def test_invalid_server_address_is_refused_without_password(url: str) -> None:
    with pytest.raises(BadRequest) as refused:
        RemoteDeadLetters(url)
    assert "pw" not in str(refused.value)


@in_virtual_time
async def test_unreachable_server_raises_server_unavailable() -> None:
    def away(_request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    async with RemoteDeadLetters("http://x", transport=httpx.MockTransport(away)) as remote:
        with pytest.raises(ServerUnavailable, match="http://x does not answer: refused"):
            await remote.queues()
