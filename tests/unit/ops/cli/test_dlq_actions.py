"""`hopback dlq redrive`, `discard`, `edit`, `export`, `import` and `hopback jobs`, in this process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import click
import pytest
from msgspec import structs

from hopback.cli.app import run
from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.terminal import ask, ask_for_reason
from hopback.errors import BadRequest, CountMismatch
from hopback.ops.cli.dlq import hold, hold_for, search
from hopback.ops.cli.dlq_actions import (
    ActionChoices,
    plan_and_run,
    plan_job,
    redrive,
    run_job,
    target_of,
)
from hopback.ops.cli.dlq_archives import export
from hopback.ops.cli.dlq_print import plan_lines, print_job, print_jobs, print_plan
from hopback.ops.cli.job_follow import Signals, exit_code, follow, see_through
from hopback.ops.cli.job_options import Ramp
from hopback.ops.cli.jobs import came_back, print_failures, resume, watch
from hopback.ops.contract.requests import (
    DiscardRequest,
    Edit,
    EditRequest,
    JobKind,
    JobRequest,
    Pace,
    RedriveRequest,
    Selection,
    Target,
    TargetKind,
)
from hopback.ops.contract.values import Counts, Job, JobState, Moment, ReachedQueue
from hopback.ops.jobs.edited_copy import COPY_OF
from hopback.ops.messages.archive import read_lines
from hopback.testing import in_virtual_time
from hopback.topology.model import Queue, QueueType
from tests.unit.ops.cli.raffle import ANN, DLQ, MAIN, Raffle, raffle, run_command

_Output = pytest.CaptureFixture[str]


def _redrive(**more: Any) -> RedriveRequest:
    return RedriveRequest(queue=DLQ, selection=Selection(), reason="repaired", **more)


async def _run(found: Raffle, request: JobRequest, form: str) -> int:
    choices = ActionChoices(yes=True, dry_run=False, detailed=False, lift=False, form=form)
    with click.Context(redrive):
        return await run_job(found.dead_letters, request, choices)


def _again(ident: str) -> str:
    return f"hopback jobs resume {ident}"


@in_virtual_time
async def test_redrive_moves_messages_and_exits_with_0(capsys: _Output) -> None:
    async with raffle() as found:
        await found.park(5)
        code = await _run(found, _redrive(), "ndjson")
        assert code == Exit.OK
        job = json.loads(capsys.readouterr().out)
        assert (job["state"], job["counts"]["done"], job["by"]) == ("completed", 5, "ann")
        assert found.held(DLQ) == []


@pytest.mark.parametrize(("parked", "text"), [(0, ""), (3, "error:NoSuchError")])
@in_virtual_time
async def test_expected_count_is_checked_if_no_message_is_selected(
    parked: int, text: str, capsys: _Output
) -> None:
    choices = ActionChoices(yes=True, dry_run=False, detailed=False, lift=False, form="table")
    async with raffle() as found:
        await found.park(parked)
        request = structs.replace(_redrive(expected_count=5), selection=Selection(filter=text))
        with pytest.raises(CountMismatch, match="expected 5 messages, found 0"):
            await plan_and_run(found.dead_letters, request, choices)
        none = structs.replace(request, expected_count=0)
        assert await plan_and_run(found.dead_letters, none, choices) == Exit.OK
        assert "No messages selected." in capsys.readouterr().out
        assert len(found.held(DLQ)) == parked


@pytest.mark.parametrize(
    ("reason", "recorded"), [("repaired", "repaired"), (" ", "to see the plan")]
)
@in_virtual_time
async def test_redrive_with_lift_limit_records_the_reason_of_the_operator(
    reason: str, recorded: str
) -> None:
    async with raffle(version="4.0") as found:
        connection = await found.broker.connect("setup")
        channel = await connection.open_channel()
        for name in ("orders", "orders.dlq"):
            await channel.declare_queue(Queue(name, QueueType.QUORUM))
        await connection.close()
        request = RedriveRequest(queue="orders.dlq", selection=Selection(), reason=reason)
        choices = ActionChoices(yes=True, dry_run=False, detailed=False, lift=True, form="table")
        await plan_job(found.dead_letters, request, choices)
        (lifted,) = [one for one in await found.dead_letters.audit() if one.action == "limit.lift"]
        assert lifted.reason == recorded


@in_virtual_time
async def test_look_with_lift_limit_records_the_reason_of_the_operator() -> None:
    async with raffle(version="4.0") as found:
        connection = await found.broker.connect("setup")
        channel = await connection.open_channel()
        for name in ("orders", "orders.dlq"):
            await channel.declare_queue(Queue(name, QueueType.QUORUM))
        await connection.close()
        async with hold(found.dead_letters, "orders.dlq", 1, lift=True, reason="repaired"):
            pass
        (lifted,) = [one for one in await found.dead_letters.audit() if one.action == "limit.lift"]
        assert lifted.reason == "repaired"


@in_virtual_time
async def test_redrive_with_left_out_messages_is_partial(capsys: _Output) -> None:
    async with raffle() as found:
        await found.park(3)
        for expected in (Exit.OK, Exit.PARTIAL):
            code = await _run(found, _redrive(target=_into(DLQ), max_redrives=1), "table")
            assert code == expected
        said = capsys.readouterr().out
        assert "3 skipped" in said
        assert "hopback jobs failures j-" in said


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ([{"op": "remove", "path": "/a"}] * 51, "length <= 50"),
        ([{"op": "replace", "path": "/a"}], "at [0], value with replace"),
        ([], "at least one step"),
    ],
    ids=["too many steps", "no value", "no step"],
)
def test_invalid_change_file_is_refused_before_connecting(
    tmp_path: Path, capsys: _Output, change: list[dict[str, str]], words: str
) -> None:
    path = tmp_path / "change.json"
    path.write_text(json.dumps(change))
    asked = ["dlq", "redrive", DLQ, "--change", str(path), "--reason", "x", "--yes"]
    assert run(asked) == Exit.USAGE
    assert words in capsys.readouterr().err


@in_virtual_time
async def test_returned_messages_are_shown_and_counted_in_job(capsys: _Output) -> None:
    async with raffle() as found:
        await found.park(5, type="TimeoutError", message="no answer")
        job = await found.operations.start(_redrive(target=_into(DLQ)))
        await found.operations.wait(job.id)
        words = (job.id, "--limit", 2, "-o", "table")
        assert await run_command(came_back, found.dead_letters, *words) == Exit.OK
        said = capsys.readouterr().out
        assert said.count("no answer") == 2
        assert "5 of 5 messages match (the first 2 are shown)." in said
        assert (await found.operations.job(job.id)).counts.came_back == 5


@in_virtual_time
async def test_search_shows_broker_reason_for_message_without_error(capsys: _Output) -> None:
    async with raffle() as found:
        await found.park(1, type="", message="")
        await run_command(search, found.dead_letters, "number", "-o", "table")
        assert "  parked  " in capsys.readouterr().out


def _into(queue: str) -> Target:
    return Target(TargetKind.QUEUE, routing_key=queue)


@in_virtual_time
async def test_plan_prints_count_errors_target_and_cost_on_stderr(capsys: _Output) -> None:
    """stdout contains only data."""
    async with raffle() as found:
        await found.park(5)
        plan = await found.dead_letters.plan(_redrive(target=_into(MAIN)))
        print_plan(plan, err=True)
        said = capsys.readouterr()
        assert said.out == ""
        assert f"re-drive  from {DLQ}" in said.err
        assert "messages  5" in said.err
        assert f"queue {MAIN}: 5, exists and routes" in said.err
        assert "    3  TimeoutError" in said.err
        assert "free: a classic queue" in said.err


@pytest.mark.parametrize(
    ("seen", "selection", "told"),
    [
        (1000, Selection(limit=2000, count=2000), "2,000 (1,000 were read)"),
        (2000, Selection(limit=2000, count=60, filter="x"), "60 of 2,000 match the filter"),
        (1000, Selection(count=60, estimate="why", filter="x"), "about 60 of 2,000: why"),
    ],
)
@in_virtual_time
async def test_plan_reports_share_of_queue_it_examined(
    seen: int, selection: Selection, told: str
) -> None:
    async with raffle() as found:
        await found.park(1)
        plan = await found.dead_letters.plan(_redrive(target=_into(MAIN)))
        deep = structs.replace(plan, selected=2000, seen=seen, selection=selection)
        assert dict(plan_lines(deep))["messages"] == told


@in_virtual_time
async def test_plan_reports_consumers_of_target_queues(capsys: _Output) -> None:
    """A target queue without consumers causes a warning."""
    async with raffle() as found:
        await found.park(2)
        asked = _redrive(target=_into(MAIN))
        plan = await found.dead_letters.plan(asked)
        assert plan.reaches == (ReachedQueue(MAIN, 0, 0),)
        print_plan(plan, err=False)
        said = capsys.readouterr().out
        assert f"taken by  {MAIN}: 0 consumers" in said
        assert f"Warning: {MAIN} has 0 consumers: messages wait there until one connects" in said
        connection = await found.broker.connect("a consumer")
        channel = await connection.open_channel()
        await channel.consume(MAIN, lambda _delivery: None)
        plan = await found.dead_letters.plan(asked)
        assert (plan.reaches, plan.warnings) == ((ReachedQueue(MAIN, 1, 0),), ())
        await connection.close()


@in_virtual_time
async def test_missing_target_queue_blocks_plan(capsys: _Output) -> None:
    async with raffle() as found:
        await found.park(1)
        plan = await found.dead_letters.plan(_redrive(target=_into("no.such")))
        assert not plan.may_start
        print_plan(plan, err=False)
        assert "Refused: the target queue 'no.such' does not exist" in capsys.readouterr().out


@in_virtual_time
async def test_interrupted_job_is_paused_and_resumes_with_remaining_messages(
    capsys: _Output,
) -> None:
    """Messages in flight are completed first."""
    async with raffle() as found:
        await found.park(10)
        job = await found.dead_letters.start(_redrive(pace=Pace(rate=1.0)))
        signals = Signals()
        asyncio.get_running_loop().call_later(4.5, signals)
        last = await follow(found.dead_letters, job, signals)
        assert last.state is JobState.RUNNING
        down = await found.dead_letters.interrupt(job.id)
        assert down.state is JobState.INTERRUPTED
        done = down.counts.done
        assert 0 < done < 10
        assert len(found.held(DLQ)) == 10 - done
        code = await run_command(resume, found.dead_letters, job.id, "-o", "json")
        assert code == Exit.OK
        assert json.loads(capsys.readouterr().out)["counts"]["remaining"] == 0
        assert found.held(DLQ) == []


@in_virtual_time
async def test_second_interrupt_cancels_at_once() -> None:
    waiting = asyncio.ensure_future(_two_signals())
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def _two_signals() -> None:
    signals = Signals()
    signals()
    signals()
    await asyncio.Event().wait()


@in_virtual_time
async def test_running_job_is_watched_paused_and_cancelled_by_another_process(
    capsys: _Output,
) -> None:
    async with raffle() as found:
        await found.park(50)
        job = await found.dead_letters.start(_redrive(pace=Pace(rate=1.0)))
        with pytest.raises(CommandFailed, match="is running") as refused:
            await run_command(resume, found.dead_letters, job.id, "-o", "table")
        assert refused.value.code is Exit.CONFLICT
        await found.dead_letters.pause(job.id)
        async for now in found.dead_letters.events(job.id):
            if now.state is JobState.PAUSED:
                break
        code = await run_command(resume, found.dead_letters, job.id, "-o", "table")
        assert code == Exit.OK
        await found.dead_letters.set_rate(job.id, 2.0)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_cancel_later(found, job.id))
            code = await run_command(watch, found.dead_letters, job.id, "-o", "table")
            assert code == Exit.CANCELLED
        said = capsys.readouterr().out
        assert "will resume" in said
        assert "cancelled" in said


async def _cancel_later(found: Raffle, job: str) -> None:
    await asyncio.sleep(3)
    await found.dead_letters.cancel(job)


@pytest.mark.parametrize(
    ("state", "counts", "code"),
    [
        ("completed", {}, Exit.OK),
        ("completed", {"failed": 1}, Exit.PARTIAL),
        ("cancelled", {"done": 1}, Exit.CANCELLED),
        ("failed", {}, Exit.FAILED),
        ("failed", {"done": 1}, Exit.PARTIAL),
        ("interrupted", {"done": 1}, Exit.UNREACHABLE),
    ],
)
def test_job_states_map_to_exit_codes(state: str, counts: dict[str, int], code: Exit) -> None:
    @in_virtual_time
    async def check_judgement() -> None:
        async with raffle() as found:
            job = Job(
                id="j",
                kind=JobKind.REDRIVE,
                queue=DLQ,
                state=JobState(state),
                counts=structs.replace(Counts(selected=5), **counts),
                created=Moment(0),
                updated=Moment(0),
            )
            assert await exit_code(found.dead_letters, job) == code

    check_judgement()


@in_virtual_time
async def test_failed_job_prints_reason(capsys: _Output) -> None:
    """A job of the memory store cannot be resumed, so the command is not printed."""
    async with raffle() as found:
        await found.park(3)
        job = await found.dead_letters.start(_redrive(target=_into(MAIN), pace=Pace(rate=1.0)))
        connection = await found.broker.connect("vandal")
        await (await connection.open_channel()).delete_queue(MAIN)
        await connection.close()
        code = await see_through(found.dead_letters, job, "table", _again(job.id))
        said = capsys.readouterr()
        assert code in (Exit.FAILED, Exit.PARTIAL)
        assert "Reason:" in said.out
        assert _again(job.id) not in said.err
        done = (await found.dead_letters.job(job.id)).counts.done
        assert len(found.held(DLQ)) == 3 - done


@in_virtual_time
async def test_discarded_messages_can_be_imported_again(tmp_path: Path, capsys: _Output) -> None:
    """The file is written before the messages are removed."""
    async with raffle(exports=tmp_path) as found:
        await found.park(4)
        before = _contents(found)
        request = DiscardRequest(queue=DLQ, selection=Selection(), reason="junk", confirm=DLQ)
        assert await _run(found, request, "table") == Exit.OK
        assert "Written to" in capsys.readouterr().out
        assert found.held(DLQ) == []
        (job,) = await found.dead_letters.jobs(queue=DLQ, limit=1)
        file = Path(job.export_to)
        assert file.parent == tmp_path
        done = await found.dead_letters.import_lines(read_lines(file))
        assert (done.published, done.problem) == (4, "")
        assert _contents(found) == before


@in_virtual_time
async def test_discard_with_several_runs_prints_the_files_of_all_runs(
    tmp_path: Path, capsys: _Output
) -> None:
    async with raffle(exports=tmp_path) as found:
        await found.park(20)
        pace = Pace(rate=10, in_flight=1)
        request = DiscardRequest(queue=DLQ, reason="junk", confirm=DLQ, pace=pace)
        job = await found.dead_letters.start(request)
        await asyncio.sleep(1)  # virtual
        found.broker.cut()
        assert await see_through(found.dead_letters, job, "table", _again(job.id)) == Exit.OK
        files = f"{tmp_path / job.id}.ndjson, {tmp_path / job.id}.2.ndjson"
        assert f"Written to {files}\n" in capsys.readouterr().out
        print_job(await found.dead_letters.job(job.id))
        assert files in capsys.readouterr().out


def _contents(found: Raffle) -> list[tuple[object, ...]]:
    ready = found.broker.snapshot().queue(DLQ).ready
    return [(one.body, one.properties.message_id, dict(one.properties.headers)) for one in ready]


@in_virtual_time
async def test_export_refuses_existing_file(tmp_path: Path) -> None:
    """The exit status is 6. The messages stay in the queue."""
    file = tmp_path / "letters.ndjson"
    async with raffle() as found:
        await found.park(2)
        await run_command(export, found.dead_letters, DLQ, "--to", file)
        written = file.read_bytes()
        assert len(written.splitlines()) == 2
        with pytest.raises(CommandFailed, match="exists") as refused:
            await run_command(export, found.dead_letters, DLQ, "--to", file)
        assert refused.value.code is Exit.CONFLICT
        assert file.read_bytes() == written
        assert found.held(DLQ) == ["m-0", "m-1"]


@in_virtual_time
async def test_job_of_another_broker_is_listed_but_not_resumed() -> None:
    async with raffle() as found, raffle(version="4.0", journal=found.operations.journal) as other:
        await found.park(5)
        await other.park(5)
        job = await found.dead_letters.start(_redrive(pace=Pace(rate=1.0)))
        await found.dead_letters.interrupt(job.id)
        with pytest.raises(BadRequest, match="expected a job of"):
            await other.dead_letters.resume(job.id)
        assert len(other.held(DLQ)) == 5
        assert await other.dead_letters.jobs() == ()
        everywhere = other.operations.on_behalf_of(ANN, everywhere=True)
        assert [one.id for one in await everywhere.jobs()] == [job.id]


@in_virtual_time
async def test_edit_publishes_changed_copy_and_keeps_original() -> None:
    """The copy has the new payload, one header more, one header less and the id of the original."""
    async with raffle() as found:
        await found.park(3)
        change = Edit(b'{"number":7}', headers={"x-fixed": "yes"}, without=frozenset({"x-number"}))
        async with hold_for(found.dead_letters, DLQ, "m-1", 10) as (session, message):
            request = EditRequest(edit=change, target=_into(MAIN), reason="wrong number")
            sent = await found.dead_letters.edit_and_redrive(session, message.id, request)
        (copy,) = found.broker.snapshot().queue(MAIN).ready
        assert copy.body == b'{"number":7}'
        assert copy.properties.message_id == sent != "m-1"
        headers = copy.properties.headers
        assert (headers["x-fixed"], headers[COPY_OF]) == ("yes", "m-1")
        assert "x-number" not in headers
        assert found.held(DLQ) == ["m-0", "m-1", "m-2"]
        released, entry, *_ = await found.dead_letters.audit()
        assert released.action == "session.release"
        assert (entry.action, entry.reason, entry.by) == ("message.edit", "wrong number", "ann")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "Expected --body"),
        (("--header", "nothing"), "expected NAME=TEXT"),
        (("--body", "no-such-file"), "no-such-file cannot be read"),
        (("--content-type", "text/plain", "--to", "orders"), "expected design"),
    ],
)
def test_edit_without_changes_or_with_invalid_changes_is_refused(
    options: tuple[str, ...], told: str, capsys: _Output
) -> None:
    assert run(["dlq", "edit", DLQ, "1", *options]) in (Exit.USAGE, Exit.NOT_FOUND)
    assert told in capsys.readouterr().err


def test_export_to_is_refused_with_server(capsys: _Output) -> None:
    """A server writes to its own folder."""
    said = ["dlq", "discard", DLQ, "--server", "http://localhost", "--export-to", "mine.ndjson"]
    assert run(said) == Exit.USAGE
    assert "--export-to" in capsys.readouterr().err


@in_virtual_time
async def test_jobs_ls_and_show_print_operator_progress_and_reason(capsys: _Output) -> None:
    async with raffle() as found:
        await found.park(2)
        await _run(found, _redrive(), "table")
        (job,) = await found.dead_letters.jobs(queue=DLQ, limit=10)
        print_jobs([job], asyncio.get_running_loop().time())
        print_job(job)
        said = capsys.readouterr().out
        assert "2/2" in said
        assert "why       repaired" in said


@pytest.mark.parametrize(
    ("text", "key", "target"),
    [
        ("design", "", Target()),
        ("failed-queue", "", Target(TargetKind.FAILED_QUEUE)),
        ("queue:a:b", "", Target(TargetKind.QUEUE, routing_key="a:b")),
        ("exchange:e", "k", Target(TargetKind.EXCHANGE, "e", "k")),
    ],
)
def test_target_option_is_parsed(text: str, key: str, target: Target) -> None:
    """Names may contain colons."""
    assert target_of(text, key, None) == target


@pytest.mark.parametrize(("text", "key"), [("orders", ""), ("queue:", ""), ("queue:a", "k")])
def test_invalid_target_is_usage_error(text: str, key: str) -> None:
    with pytest.raises(click.UsageError, match=r"expected|belongs"):
        target_of(text, key, None)


def test_ramp_option_accepts_positive_numbers() -> None:
    assert Ramp().convert("1, 5,25", None, None) == (1, 5, 25)
    for wrong in ("", "1,,2", "0", "fast"):
        with pytest.raises(click.BadParameter, match="1,5,25"):
            Ramp().convert(wrong, None, None)


def test_missing_terminal_requires_yes_and_reason_options() -> None:
    with pytest.raises(CommandFailed, match="no terminal for the confirmation") as asked:
        ask("Sure?")
    assert asked.value.code is Exit.USAGE
    with pytest.raises(CommandFailed, match="expected a reason"):
        ask_for_reason(" ")
    assert ask_for_reason("because") == "because"


@in_virtual_time
async def test_failures_of_a_job_count_the_messages_that_its_filter_left_out(
    capsys: _Output,
) -> None:
    async with raffle() as found:
        await found.park(5)
        selection = Selection(filter="error:TimeoutError")
        request = structs.replace(_redrive(target=_into(MAIN)), selection=selection)
        job = await found.dead_letters.wait((await found.dead_letters.start(request)).id)
        assert job.counts.skipped == 2
        print_failures(job, await found.dead_letters.failures(job.id))
        said = capsys.readouterr().out
        assert said == "No failures. 2 messages did not match the filter error:TimeoutError.\n"
