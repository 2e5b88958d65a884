"""Commands through a server print the same output and exit with the same status as commands in this
process.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import httpx
import pytest
from msgspec import structs

import hopback.ops.page
from hopback.cli.exits import CommandFailed, Exit, exit_of
from hopback.errors import BadRequest, HopbackError, NoSuch
from hopback.ops.cli.dlq import (
    get,
    groups,
    hold_for,
    lift_if_needed,
    peek,
    show,
)
from hopback.ops.cli.dlq_actions import ActionChoices, redrive, run_job
from hopback.ops.cli.dlq_print import output, print_plan
from hopback.ops.cli.job_options import Ramp
from hopback.ops.client import RemoteDeadLetters
from hopback.ops.contract.codec import convert
from hopback.ops.contract.requests import (
    HIGHEST_RATE,
    LONGEST_WATCH_S,
    MOST_HELD,
    MOST_IN_FLIGHT,
    MOST_REDRIVES,
    RAMP,
    UNHURRIED,
    USUAL_SESSION,
    DiscardRequest,
    Edit,
    EditRequest,
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
from hopback.ops.jobs.edited_copy import COPY_OF
from hopback.ops.jobs.spec_builder import check_request
from hopback.policy.redrive import loop_guard
from hopback.testing import in_virtual_time
from hopback.topology.model import Queue, QueueType
from tests.unit.ops.cli.raffle import DLQ, MAIN, raffle, run_command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hopback.ops.contract.interface import DeadLetters
    from tests.unit.ops.cli.raffle import Raffle

_Output = pytest.CaptureFixture[str]
_INTO_MAIN = Target(TargetKind.QUEUE, routing_key=MAIN)
_BOTH = pytest.mark.parametrize("by", ["library", "server"])


@asynccontextmanager
async def _open_server(
    version: str = "3.13", exports: Path | None = None
) -> AsyncIterator[tuple[Raffle, RemoteDeadLetters, httpx.AsyncClient]]:
    """The raffle, a server of it over the real application, and a plain client of its API."""
    async with raffle(version=version, exports=exports) as found:
        app = create_app(found.operations, first_read_s=None)
        transport = httpx.ASGITransport(app)
        async with (
            RemoteDeadLetters("http://localhost", transport=transport) as remote,
            httpx.AsyncClient(base_url="http://localhost", transport=transport) as client,
        ):
            yield found, remote, client


def _request(**more: Any) -> RedriveRequest:
    return RedriveRequest(
        queue=DLQ, selection=Selection(), reason="repaired", **{"target": _INTO_MAIN, **more}
    )


@in_virtual_time
async def test_command_output_equals_api_documents(capsys: _Output) -> None:
    async with _open_server() as (found, _, client):
        await found.park(3)
        dead_letters = found.operations

        def output_of(value: object) -> Any:
            capsys.readouterr()
            output("json", value, lambda: None)
            return json.loads(capsys.readouterr().out)

        async def answer_of(path: str) -> Any:
            return (await client.get(f"/admin/dlq/{path}")).raise_for_status().json()

        queue = output_of(await dead_letters.queue(DLQ))
        assert {**await answer_of(f"queues/{DLQ}"), "depth": queue["depth"]} == queue
        session = (await dead_letters.open_session(DLQ)).id
        page = await dead_letters.messages(session)
        assert await answer_of(f"sessions/{session}/messages") == output_of(page)
        first = page.dead_letters[0].id
        shown = output_of(await dead_letters.message(session, first))
        assert await answer_of(f"sessions/{session}/messages/{first}") == shown
        groups = output_of(await dead_letters.groups(session))
        assert await answer_of(f"sessions/{session}/groups") == groups
        await dead_letters.release(session)
        job = await dead_letters.wait((await dead_letters.start(_request())).id)
        assert await answer_of(f"jobs/{job.id}") == output_of(job)


@in_virtual_time
async def test_output_is_equal_with_and_without_server(capsys: _Output) -> None:
    async with _open_server() as (found, remote, _):
        await found.park(6)
        look = (DLQ, "--limit", 5, "--filter", "error:TimeoutError")
        said = []
        await run_command(peek, remote, *look)  # browsed messages are redelivered
        capsys.readouterr()
        for dead_letters in (found.dead_letters, remote):
            await run_command(peek, dead_letters, *look)
            await run_command(groups, dead_letters, *look, "--by", "error", "-o", "table")
            await run_command(show, dead_letters, DLQ, "-o", "table")
            said.append(capsys.readouterr())
        assert said[0] == said[1]
        assert '"m-4"' in said[0].out
        assert "TimeoutError" in said[0].out


@in_virtual_time
async def test_redrive_by_server_completes_and_exits_with_0(capsys: _Output) -> None:
    async with _open_server() as (found, remote, _):
        await found.park(5)
        choices = ActionChoices(yes=True, dry_run=False, detailed=False, lift=False, form="ndjson")
        with click.Context(redrive):
            code = await run_job(remote, _request(), choices)
        assert code == Exit.OK
        job = json.loads(capsys.readouterr().out)
        assert (job["state"], job["counts"]["done"]) == ("completed", 5)
        assert (found.held(DLQ), len(found.held(MAIN))) == ([], 5)


class _EndingServer(httpx.ASGITransport):
    """A server that ends while a client follows a job."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/events"):
            raise httpx.RemoteProtocolError("peer closed connection")
        return await super().handle_async_request(request)


@in_virtual_time
async def test_lost_server_error_names_job_that_may_continue() -> None:
    async with raffle() as found:
        await found.park(3)
        transport = _EndingServer(create_app(found.operations, first_read_s=None))
        async with RemoteDeadLetters("http://localhost", transport=transport) as remote:
            choices = ActionChoices(yes=True, dry_run=False, detailed=False, lift=False)
            with click.Context(redrive), pytest.raises(CommandFailed) as failed:
                await run_job(remote, _request(), choices)
        (job,) = await found.operations.jobs()
        assert f"hopback jobs watch {job.id}" in failed.value.do
        assert exit_of(failed.value) is Exit.UNREACHABLE


@_BOTH
@in_virtual_time
async def test_server_errors_exit_with_same_codes_and_remedies(by: str) -> None:
    async with _open_server() as (found, remote, _):
        dead_letters: DeadLetters = found.dead_letters if by == "library" else remote
        await found.park(2)
        nowhere = Target(TargetKind.QUEUE, routing_key="no.such")
        discard = DiscardRequest(queue=DLQ, selection=Selection(), reason="junk", confirm="other")
        for work, code in (
            (dead_letters.queue("no/such queue"), Exit.NOT_FOUND),
            (dead_letters.job("j-none"), Exit.NOT_FOUND),
            (dead_letters.plan(_request(max_redrives=-1)), Exit.USAGE),
            (dead_letters.start(discard), Exit.USAGE),
            (survey_queue(dead_letters, DLQ, where="nonsense>1"), Exit.USAGE),
            (dead_letters.start(_request(expected_count=99)), Exit.CONFLICT),
            (dead_letters.start(_request(target=nowhere)), Exit.NOT_ALLOWED),
        ):
            with pytest.raises(HopbackError) as refused:
                await work
            assert exit_of(refused.value) is code, refused.value
            assert refused.value.remedy
        assert len(found.held(DLQ)) == 2


@_BOTH
@in_virtual_time
async def test_limit_is_lifted_only_if_browsing_is_unsafe_and_restored(by: str) -> None:
    """An unknown queue is not found."""
    async with _open_server("4.0") as (found, remote, _):
        dead_letters: DeadLetters = found.dead_letters if by == "library" else remote
        connection = await found.broker.connect("setup")
        channel = await connection.open_channel()
        for name in ("orders", "orders.dlq"):
            await channel.declare_queue(Queue(name, QueueType.QUORUM))
        await connection.close()
        policies = found.broker.node.policies
        await lift_if_needed(dead_letters, DLQ)
        assert policies.all() == ()
        await lift_if_needed(dead_letters, "orders.dlq")
        (policy,) = policies.all()
        assert policy.definition["delivery-limit"] == -1
        assert (await dead_letters.queue("orders.dlq")).limit_lifted
        for _ in range(2):
            await dead_letters.restore_limit("orders.dlq", reason="seen")
            assert policies.all() == ()
        with pytest.raises(NoSuch, match=r"no\.such\.dlq"):
            await dead_letters.restore_limit("no.such.dlq", reason="seen")
        noted = [one for one in await dead_letters.audit() if one.action == "limit.restore"]
        assert [(one.queue, one.reason) for one in noted] == [("orders.dlq", "seen")] * 2


@in_virtual_time
async def test_limit_of_deleted_queue_is_restored() -> None:
    """The policy outlives its queue and would apply to a new queue of that name."""
    async with _open_server("4.0") as (found, _, _):
        connection = await found.broker.connect("setup")
        channel = await connection.open_channel()
        await channel.declare_queue(Queue("orders", QueueType.QUORUM))
        await channel.declare_queue(Queue("orders.dlq", QueueType.QUORUM))
        await found.dead_letters.lift_limit("orders.dlq")
        await channel.delete_queue("orders.dlq")
        await connection.close()
        await found.dead_letters.restore_limit("orders.dlq")
        assert found.broker.node.policies.all() == ()


@in_virtual_time
async def test_edit_by_server_publishes_copy_and_keeps_original() -> None:
    async with _open_server() as (found, remote, _):
        await found.park(3)
        change = Edit(b"\xff\x00", headers={"x-fixed": "yes"}, without=frozenset({"x-number"}))
        async with hold_for(remote, DLQ, "m-1", 10) as (session, message):
            request = EditRequest(edit=change, target=_INTO_MAIN, reason="wrong number")
            sent = await remote.edit_and_redrive(session, message.id, request)
        (copy,) = found.broker.snapshot().queue(MAIN).ready
        assert (copy.body, copy.properties.message_id) == (b"\xff\x00", sent)
        headers = copy.properties.headers
        assert (headers["x-fixed"], headers[COPY_OF]) == ("yes", "m-1")
        assert "x-number" not in headers
        assert found.held(DLQ) == ["m-0", "m-1", "m-2"]
        noted = [one for one in await remote.audit() if one.action == "message.edit"]
        assert [one.reason for one in noted] == ["wrong number"]


@in_virtual_time
async def test_discard_by_server_reports_archive_or_permanent_loss(
    tmp_path: Path, capsys: _Output
) -> None:
    async with _open_server(exports=tmp_path) as (found, remote, _):
        await found.park(1)
        asked = DiscardRequest(queue=DLQ, selection=Selection(), reason="old", confirm=DLQ)
        print_plan(await remote.plan(asked), err=False)
        kept = capsys.readouterr().out
        assert str(tmp_path) in kept
        assert "cannot be restored" not in kept
        print_plan(await remote.plan(structs.replace(asked, export=False)), err=False)
        assert "cannot be restored" in capsys.readouterr().out
        with pytest.raises(BadRequest) as refused:
            await remote.start(asked, Submission(export_to="mine.ndjson"))
        assert exit_of(refused.value) is Exit.USAGE


def test_job_defaults_and_bounds_are_equal_in_library_api_and_command() -> None:
    library = RedriveRequest(queue="q", reason="x")
    assert convert(RedriveRequest, {"kind": "re-drive", "queue": "q", "reason": "x"}) == library
    options = {option.name: option for option in redrive.params}
    assert options["in_flight"].default == UNHURRIED.in_flight == library.pace.in_flight
    assert options["in_flight"].type.max == MOST_IN_FLIGHT  # type: ignore[attr-defined]
    assert options["rate"].type.max == HIGHEST_RATE  # type: ignore[attr-defined]
    assert options["ramp"].default == ()
    assert (UNHURRIED.ramp, UNHURRIED.rate) == ((), None)
    assert options["max_redrives"].default == library.max_redrives
    assert loop_guard.__defaults__ == (library.max_redrives,)
    assert options["max_redrives"].type.max == MOST_REDRIVES  # type: ignore[attr-defined]
    assert options["watch_s"].type.max == LONGEST_WATCH_S  # type: ignore[attr-defined]
    for beyond in (
        structs.replace(library, max_redrives=MOST_REDRIVES + 1),
        structs.replace(library, pace=Pace(watch_s=LONGEST_WATCH_S + 1)),
    ):
        with pytest.raises(BadRequest):
            check_request(beyond)
    convert(Pace, {"rate": HIGHEST_RATE, "inFlight": MOST_IN_FLIGHT})
    for wrong in ({"rate": HIGHEST_RATE + 1}, {"inFlight": MOST_IN_FLIGHT + 1}, {"inFlight": 0}):
        with pytest.raises(BadRequest):
            convert(Pace, wrong)
    offered = options["ramp"].flag_value  # type: ignore[attr-defined]
    assert Ramp().convert(offered, None, None) == RAMP
    page = (Path(hopback.ops.page.__file__).parent / "templates" / "act.html").read_text()
    assert "send {}, {}, {}, then".format(*RAMP) in page


def test_session_defaults_and_bounds_are_equal_in_library_api_and_command() -> None:
    assert structs.asdict(USUAL_SESSION).items() <= structs.asdict(SessionRequest()).items()
    convert(SessionRequest, {"limit": MOST_HELD})
    for wrong in (0, MOST_HELD + 1):
        with pytest.raises(BadRequest):
            convert(SessionRequest, {"limit": wrong})
    for command, name in ((get, "within"), (peek, "limit")):
        (option,) = (one for one in command.params if one.name == name)
        assert (option.type.min, option.type.max) == (1, MOST_HELD)  # type: ignore[attr-defined]
    (within,) = (one for one in get.params if one.name == "within")
    assert within.default == USUAL_SESSION.limit
