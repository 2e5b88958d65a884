"""Progress: the bar, the records, the rate."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from msgspec import structs

from hopback.ops.cli.dlq_print import print_job, print_jobs
from hopback.ops.cli.job_follow import (
    Bar,
    Lines,
    bar_line,
    print_end,
    record_line,
    time_left,
)
from hopback.ops.contract.codec import to_json
from hopback.ops.contract.job_meter import JobMeter
from hopback.ops.contract.requests import JobKind, RedriveRequest, Selection
from hopback.ops.contract.values import Counts, Job, JobState, Moment
from hopback.ops.jobs.job_record import JobRecord, JobSpec


def _job(
    done: int = 0,
    *,
    state: JobState = JobState.RUNNING,
    queue: str = "orders.dlq",
    reason: str = "",
    failed: int = 0,
    came_back: int = 0,
) -> Job:
    return Job(
        id="j-1",
        kind=JobKind.REDRIVE,
        queue=queue,
        state=state,
        state_reason=reason,
        counts=Counts(selected=100, done=done, failed=failed, came_back=came_back),
        created=Moment(0),
        updated=Moment(0),
    )


def test_rate_covers_only_the_last_seconds() -> None:
    meter = JobMeter()
    assert meter.rate is None
    for second in range(10):
        meter.add(second, Counts(selected=10_000, done=second * 1000))
    for second in range(10, 40):
        meter.add(second, Counts(selected=10_000, done=9000 + second))
    assert meter.rate == pytest.approx(1.0)


def test_progress_bar_shows_rate_time_left_failures_and_returns() -> None:
    line = bar_line(_job(50, failed=2, came_back=3), 5.0, 120)
    for part in (
        "re-drive orders.dlq",
        "52%",
        "52/100",
        "5/s",
        "10 s left",
        "failed 2",
        "returned 3",
    ):
        assert part in line, line


@pytest.mark.parametrize("columns", [20, 60, 80, 200])
def test_progress_bar_fits_terminal_and_escapes_control_characters(columns: int) -> None:
    line = bar_line(_job(1, queue="q" * 300 + "\x1b[2J"), 1.0, columns)
    assert len(line) < columns
    assert "\x1b" not in line


def test_paused_or_stalled_job_has_no_time_left() -> None:
    assert time_left(_job(50), 5.0) == 10.0
    assert time_left(_job(50), 0.0) is None
    assert time_left(_job(50, state=JobState.PAUSED), 5.0) is None
    assert "paused" in bar_line(_job(50, state=JobState.PAUSED), 5.0, 120)


def test_job_has_messages_left_that_match_its_filter() -> None:
    """The other messages are read, too."""

    def job(count: int | None, done: int, skipped: int, failed: int = 0) -> Job:
        read = Counts(3000, done=done, skipped=skipped, failed=failed)
        return structs.replace(_job(0), selection=Selection(count=count), counts=read)

    assert (job(600, 1, 16).matching, job(600, 1, 16).left) == (600, 599)
    assert job(600, 590, 2400, 4).left == 6
    assert job(600, 590, 2410).left == 0
    assert job(None, 1, 16).left == 2983


def test_stopped_job_says_returned_only_if_its_messages_were_recognised(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for came_back, word in ((None, "arrived"), (2, "returned")):
        stopped = structs.replace(
            _job(0, state=JobState.STOPPED), counts=Counts(9, done=3, came_back=came_back)
        )
        print_end(stopped, noted=False)
        assert f"Stopped: messages {word}. 3 messages re-driven" in capsys.readouterr().out


def test_watching_job_shows_deadline_without_rate() -> None:
    """The rate of the last stage does not predict the waits before the next stages."""
    until = "watching until 2026-11-17T18:50:21Z for returned messages"
    watching = _job(1, reason=until)
    assert time_left(watching, 60.0) is None
    line = bar_line(watching, 60.0, 80)
    assert "watching until 18:50:21 UTC" in line
    assert line.endswith("…")
    assert ("left" in line, "/s" in line) == (False, False)
    assert bar_line(watching, 60.0, 120).endswith("for returned messages")


def test_progress_without_terminal_is_one_record_every_few_seconds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = 0.0
    records = Lines(lambda: now, record_line)
    for second in range(12):
        now = float(second)
        records.show(_job(second))
    records.finish()
    said = capsys.readouterr()
    assert said.out == ""
    told = [json.loads(line) for line in said.err.splitlines()]
    assert [record["counts"]["done"] for record in told] == [5, 10]
    assert told[0] == {
        "event": "progress",
        "job": "j-1",
        "state": "running",
        "reason": "",
        "counts": to_json(_job(5).counts),
        "rate": 1.0,
        "secondsLeft": 95.0,
    }


def test_waiting_job_reports_reason_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    waiting = _job(5, reason="waiting for the broker")
    records = Lines(lambda: 0.0, record_line)
    for job in (_job(5), waiting, waiting):
        records.show(job)
    (told,) = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert told["reason"] == "waiting for the broker"
    assert "waiting for the broker" in bar_line(waiting, None, 200)


def test_progress_bar_overwrites_longer_line(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar(lambda: 0.0)
    bar.show(_job(10, failed=1_000_000))
    bar.show(_job(20))
    bar.finish()
    before, first, second = capsys.readouterr().err.split("\r")
    assert before == ""
    assert len(second.rstrip("\n")) >= len(first)
    assert second.endswith("\n")


def test_discard_has_no_unknown_return_count(capsys: pytest.CaptureFixture[str]) -> None:
    """Only a re-drive can have an unknown number of returned messages."""
    unknown = structs.replace(_job(5), counts=Counts(selected=5, done=5))
    print_jobs([structs.replace(unknown, kind=JobKind.DISCARD)], 0.0)
    print_jobs([unknown], 0.0)
    discard, redrive = capsys.readouterr().out.split("ID ")[1:]
    assert "unknown" not in discard
    assert "unknown" in redrive


def test_resumed_redrive_names_possible_duplicates() -> None:
    spec = JobSpec(
        request=RedriveRequest(queue="q.dlq", reason="t"),
        broker="here",
    )
    job = JobRecord("j-1", spec, run=2, counts=Counts(20_000, done=20_000))
    assert job.view.duplicates.startswith("up to 500, if the job was killed")
    assert replace(job, run=1).view.duplicates == ""


def test_job_counts_messages_that_left_the_queue_otherwise(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = structs.replace(_job(60, state=JobState.COMPLETED), counts=Counts(100, done=60, gone=40))
    print_job(job)
    said = capsys.readouterr().out
    assert "100 selected, 60 done, 40 no longer in the queue" in said
    assert "remaining" not in said
