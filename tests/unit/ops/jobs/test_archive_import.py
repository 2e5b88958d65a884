"""Discard, export, import, edit: what leaves is written down first, and can come back. Virtual time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hopback.errors import BadLine, BadRequest, NotAllowed, UnsafeOperation
from hopback.message import Message, Properties
from hopback.ops.contract.requests import Edit, Selection, Settings, Submission, Target, TargetKind
from hopback.ops.contract.values import JobState
from hopback.ops.jobs.edited_copy import COPY_OF
from hopback.ops.messages.archive import FileSink, read_line, read_lines, run_file
from hopback.testing import in_virtual_time
from tests.unit.ops.shop import ANN, DLQ, MAIN, discard, open_shop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable


async def _lines(lines: Iterable[bytes]) -> AsyncIterator[bytes]:
    for line in lines:
        yield line


@in_virtual_time
async def test_a_discard_asks_for_the_name_and_for_a_file() -> None:
    """Neither a wrong name nor silence about the export removes anything."""
    async with open_shop() as shop:
        await shop.park(3)
        with pytest.raises(BadRequest, match="confirm: expected the name of the queue"):
            await shop.operations.start(discard(confirm="orders"))
        with pytest.raises(BadRequest, match="export: expected a file"):
            await shop.operations.start(discard(export=True))
        assert len(shop.bodies(DLQ)) == 3


@pytest.mark.parametrize("name", ["gone.ndjson", "gone.ndjson.zst"])
def test_what_is_discarded_can_be_imported_again(tmp_path: Path, name: str) -> None:
    """Each message is on the disk before it goes; the file brings it back, bytes and all."""
    _discarded_and_imported(tmp_path / name)
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


@in_virtual_time
async def _discarded_and_imported(file: Path) -> None:
    async with open_shop() as shop:
        binary = Properties(message_id="b", delivery_mode=2, headers={"x": b"\x00", "n": 7})
        await shop.publish([Message("", DLQ, b"\xff\x00", binary)])
        await shop.park(700)
        job = await shop.operations.start(discard(export=True), Submission(export_to=str(file)))
        done = await shop.operations.wait(job.id)
        assert (done.state, done.counts.done, done.reason) == (JobState.COMPLETED, 701, "")
        assert shop.queue(DLQ).messages == ()
        imported = await shop.operations.acting_as(ANN).import_lines(
            read_lines(file), reason="a mistake"
        )
        assert (imported.published, imported.lines, imported.problem) == (701, 701, "")
        first, *others = shop.queue(DLQ).ready
        assert (first.body, first.properties.headers["x"], first.properties.message_id) == (
            b"\xff\x00",
            b"\x00",
            "b",
        )
        assert [message.body for message in others] == [b"%d" % n for n in range(700)]
        actions = [(entry.action, entry.result) for entry in await shop.operations.audit()]
        imports = [("messages.import", "ok"), ("messages.import", "started")]
        assert actions[:2] == imports
        assert [action for action, _ in actions[2:]] == ["job.end", "job.start"]


@in_virtual_time
async def test_a_discard_that_cannot_be_written_removes_nothing() -> None:
    """The file exists already: the job stops, every message is still there."""
    async with open_shop() as shop:
        await shop.park(5)
        job = await shop.operations.start(discard(export=True), Submission(export_to=__file__))
        done = await shop.operations.wait(job.id)
        assert done.state is JobState.FAILED
        assert "nothing was discarded" in done.reason
        assert len(shop.bodies(DLQ)) == 5


@in_virtual_time
async def test_a_discard_of_chosen_messages_without_export() -> None:
    """Exactly the chosen ones go."""
    async with open_shop() as shop:
        await shop.park(5)
        session = await shop.operations.open_session(DLQ)
        selection = Selection(session=session.id, filter="id:m3")
        job = await shop.operations.start(discard(selection=selection, expected_count=1))
        assert (await shop.operations.wait(job.id)).counts.done == 1
        assert shop.bodies(DLQ) == [b"0", b"1", b"2", b"4"]
        plan = await shop.operations.plan(discard(selection=Selection(filter="id:m1")))
        assert (plan.selected, plan.matching, plan.ways) == (4, 1, ())
        assert any("written down nowhere" in warning for warning in plan.warnings)


@in_virtual_time
async def test_an_export_changes_nothing() -> None:
    """Of a queue or of a session, with a filter; each line tells what happened to its message."""
    async with open_shop() as shop:
        await shop.park(40)
        lines = [line async for line in shop.operations.acting_as(ANN).export(DLQ)]
        assert [read_line(line).body for line in lines] == [b"%d" % n for n in range(40)]
        assert json.loads(lines[0])["about"]["place"] == 1
        session = await shop.operations.open_session(DLQ)
        some = shop.operations.export(DLQ, Selection(session=session.id, filter="id:m7"))
        assert [read_line(line).body async for line in some] == [b"7"]
        await shop.operations.release(session.id)
        assert shop.bodies(DLQ) == [b"%d" % n for n in range(40)]
        newest, *_ = await shop.operations.audit()
        assert (newest.action, newest.details["lines"]) == ("messages.export", 1)


@in_virtual_time
async def test_an_import_stops_at_the_first_problem_and_says_where() -> None:
    """A bad line, a missing queue: what came before is confirmed, the number tells where to go on."""
    async with open_shop() as shop:
        await shop.park(2)
        good = [line async for line in shop.operations.export(DLQ)]
        torn = await shop.operations.import_lines(_lines([*good, b"\n", good[0][:40]]))
        assert (torn.lines, torn.published) == (3, 2)
        assert "line 4 is not an exported message" in torn.problem
        lost = await shop.operations.import_lines(_lines(good), queue="typo")
        assert (lost.lines, lost.published) == (0, 0)
        assert "'typo' does not exist" in lost.problem
        assert len(shop.bodies(DLQ)) == 4
        moved = await shop.operations.import_lines(_lines(good), queue=MAIN)
        assert (moved.published, len(shop.bodies(MAIN))) == (2, 2)


@in_virtual_time
async def test_an_edited_copy_goes_back_and_the_original_stays() -> None:
    """Off by default; switched on, the copy has an id of its own and names the original."""
    edit = Edit(body=b'{"fixed": true}', headers={"x-tenant": "acme"}, without=frozenset({"x-bad"}))
    async with open_shop() as shop:
        await shop.park(1)
        session = await shop.operations.open_session(DLQ)
        (dead_letter,) = (await shop.operations.messages(session.id)).dead_letters
        with pytest.raises(NotAllowed):
            await shop.operations.edit_and_redrive(session.id, dead_letter.id, edit)
    async with open_shop(settings=Settings(editing=True)) as shop:
        await shop.park(1, headers={"x-bad": 1, "x-good": 2})
        session = await shop.operations.open_session(DLQ)
        (dead_letter,) = (await shop.operations.messages(session.id)).dead_letters
        copy = await shop.operations.acting_as(ANN).edit_and_redrive(
            session.id, dead_letter.id, edit, reason="wrong tenant"
        )
        (sent,) = shop.queue(MAIN).ready
        assert (sent.body, sent.properties.message_id) == (b'{"fixed": true}', copy)
        assert sent.properties.headers[COPY_OF] == "m0"
        assert sent.properties.headers["x-tenant"] == "acme"
        assert "x-bad" not in sent.properties.headers
        assert sent.properties.headers["x-good"] == 2
        forbidden = Edit(headers={"hopback-attempts": 0})
        with pytest.raises(BadRequest, match="hopback-attempts"):
            await shop.operations.edit_and_redrive(session.id, dead_letter.id, forbidden)
        nowhere = Target(TargetKind.QUEUE, routing_key="typo")
        with pytest.raises(UnsafeOperation, match="does not exist"):
            await shop.operations.edit_and_redrive(session.id, dead_letter.id, edit, target=nowhere)
        await shop.operations.release(session.id)
        assert shop.bodies(DLQ) == [b"0"]


def test_every_run_has_its_own_file() -> None:
    """A resumed discard never touches what an earlier run wrote."""
    assert run_file("/x/j-1.ndjson", 1) == Path("/x/j-1.ndjson")
    assert run_file("/x/j-1.ndjson.zst", 3) == Path("/x/j-1.3.ndjson.zst")


@in_virtual_time
async def test_a_file_that_exists_is_never_written_over() -> None:
    """It is an error of the operating system, told as such."""
    with pytest.raises(FileExistsError):
        await FileSink(Path(__file__)).write(b"x")


@pytest.mark.parametrize(
    "line",
    [
        b"", b"[]", b"{}", b'{"hopback": 2}', b'{"hopback": 1}', b"\xff", b"{" * 100_000,
        b'{"hopback":1,"queue":1,"exchange":"","routingKey":"","properties":{},"headers":{},"body":""}',
        b'{"hopback":1,"queue":"","exchange":"","routingKey":"","properties":{"x":1},"headers":{},"body":""}',
        b'{"hopback":1,"queue":"","exchange":"","routingKey":"","properties":{},"headers":{"a":["?",1]},"body":""}',
        b'{"hopback":1,"queue":"","exchange":"","routingKey":"","properties":{},"headers":{"a":5},"body":""}',
        b'{"hopback":1,"queue":"","exchange":"","routingKey":"","properties":{},"headers":{},"bodyBase64":"#"}',
        b'{"hopback":1,"queue":"","exchange":"","routingKey":"","properties":{"app_id":"\\ud800"},"body":""}',
        b'{"hopback":1,"queue":"","exchange":"","routingKey":"","properties":{"priority":256},"body":""}',
        b'{"hopback":1,"queue":"","exchange":"","routingKey":"","properties":{},"headers":{"a":["b",128]},"body":""}',
    ],
)  # fmt: skip
def test_a_line_that_is_no_message_is_told(line: bytes) -> None:
    """Whatever is in it, the error is ours and names the place."""
    with pytest.raises(BadLine, match="line 7 is not an exported message"):
        read_line(line, where="line 7")
