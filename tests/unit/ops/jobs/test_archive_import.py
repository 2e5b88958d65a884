"""Discard, export, import and edit in virtual time.

Removed messages are archived first and can be imported again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from hopback.errors import BadLine, BadRequest, NotAllowed, UnsafeOperation
from hopback.message import Message, Properties
from hopback.ops.contract.requests import (
    AuditQuery,
    Edit,
    EditRequest,
    Selection,
    Settings,
    Submission,
    Target,
    TargetKind,
)
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
async def test_discard_requires_queue_name_and_export_file() -> None:
    async with open_shop() as shop:
        await shop.park(3)
        with pytest.raises(BadRequest, match="confirm: expected the name of the queue"):
            await shop.operations.start(discard(confirm="orders"))
        with pytest.raises(BadRequest, match="export: expected a file"):
            await shop.operations.start(discard(export=True))
        assert len(shop.bodies(DLQ)) == 3


@pytest.mark.parametrize("name", ["gone.ndjson", "gone.ndjson.zst"])
def test_discarded_messages_can_be_imported_with_same_bytes(tmp_path: Path, name: str) -> None:
    """Each message is on disk before it is removed."""
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
        assert (done.state, done.counts.done, done.state_reason) == (JobState.COMPLETED, 701, "")
        assert shop.queue(DLQ).messages == ()
        imported = await shop.operations.on_behalf_of(ANN).import_lines(
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
async def test_discard_with_existing_file_fails_and_removes_no_message() -> None:
    async with open_shop() as shop:
        await shop.park(5)
        job = await shop.operations.start(discard(export=True), Submission(export_to=__file__))
        done = await shop.operations.wait(job.id)
        assert done.state is JobState.FAILED
        assert "not discarded, because" in done.state_reason
        assert len(shop.bodies(DLQ)) == 5


@in_virtual_time
async def test_discard_without_export_removes_only_chosen_messages() -> None:
    async with open_shop() as shop:
        await shop.park(5)
        session = await shop.operations.open_session(DLQ)
        selection = Selection(session=session.id, filter="id:m3")
        job = await shop.operations.start(discard(selection=selection, expected_count=1))
        assert (await shop.operations.wait(job.id)).counts.done == 1
        assert shop.bodies(DLQ) == [b"0", b"1", b"2", b"4"]
        plan = await shop.operations.plan(discard(selection=Selection(filter="id:m1")))
        assert (plan.selected, plan.matching, plan.ways) == (4, 1, ())
        assert any("cannot be restored" in warning for warning in plan.warnings)


@in_virtual_time
async def test_export_leaves_queue_unchanged() -> None:
    """The source is a queue or a session, with a filter.

    Each line contains the history of its message.
    """
    async with open_shop() as shop:
        await shop.park(40)
        lines = [line async for line in shop.operations.on_behalf_of(ANN).export(DLQ)]
        assert [read_line(line).body for line in lines] == [b"%d" % n for n in range(40)]
        assert json.loads(lines[0])["about"]["place"] == 1
        session = await shop.operations.open_session(DLQ)
        some = shop.operations.export(DLQ, Selection(session=session.id, filter="id:m7"))
        assert [read_line(line).body async for line in some] == [b"7"]
        await shop.operations.release(session.id)
        assert shop.bodies(DLQ) == [b"%d" % n for n in range(40)]
        newest, *_ = await shop.operations.audit(AuditQuery(action="messages.export"))
        assert newest.details["lines"] == 1


@in_virtual_time
async def test_import_stops_at_first_problem_with_line_number() -> None:
    """The lines before it are confirmed."""
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
async def test_edit_publishes_copy_and_keeps_original() -> None:
    """Editing is off by default. The copy has a new id and names the original."""
    edit = Edit(body=b'{"fixed": true}', headers={"x-tenant": "acme"}, without=frozenset({"x-bad"}))
    request = EditRequest(edit=edit, reason="wrong tenant")
    async with open_shop() as shop:
        await shop.park(1)
        session = await shop.operations.open_session(DLQ)
        (dead_letter,) = (await shop.operations.messages(session.id)).dead_letters
        with pytest.raises(NotAllowed):
            await shop.operations.edit_and_redrive(session.id, dead_letter.id, request)
    async with open_shop(settings=Settings(editing=True)) as shop:
        await shop.park(1, headers={"x-bad": 1, "x-good": 2})
        session = await shop.operations.open_session(DLQ)
        (dead_letter,) = (await shop.operations.messages(session.id)).dead_letters
        copy = await shop.operations.on_behalf_of(ANN).edit_and_redrive(
            session.id, dead_letter.id, request
        )
        (sent,) = shop.queue(MAIN).ready
        assert (sent.body, sent.properties.message_id) == (b'{"fixed": true}', copy)
        assert sent.properties.headers[COPY_OF] == "m0"
        assert sent.properties.headers["x-tenant"] == "acme"
        assert "x-bad" not in sent.properties.headers
        assert sent.properties.headers["x-good"] == 2
        forbidden = EditRequest(edit=Edit(headers={"hopback-attempts": 0}), reason="try")
        with pytest.raises(BadRequest, match="hopback-attempts"):
            await shop.operations.edit_and_redrive(session.id, dead_letter.id, forbidden)
        nowhere = structs.replace(request, target=Target(TargetKind.QUEUE, routing_key="typo"))
        with pytest.raises(UnsafeOperation, match="does not exist"):
            await shop.operations.edit_and_redrive(session.id, dead_letter.id, nowhere)
        await shop.operations.release(session.id)
        assert shop.bodies(DLQ) == [b"0"]


def test_each_run_of_discard_has_its_own_file() -> None:
    assert run_file("/x/j-1.ndjson", 1) == Path("/x/j-1.ndjson")
    assert run_file("/x/j-1.ndjson.zst", 3) == Path("/x/j-1.3.ndjson.zst")


@in_virtual_time
async def test_archive_never_overwrites_existing_file() -> None:
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
def test_invalid_archive_line_names_its_number(line: bytes) -> None:
    with pytest.raises(BadLine, match="line 7 is not an exported message"):
        read_line(line, where="line 7")
