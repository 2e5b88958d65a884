"""The read-only commands of `hopback dlq`: lists, groups and messages in every output form."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from hopback.cli.exits import CommandFailed, Exit
from hopback.errors import BadRequest, UnsafeOperation
from hopback.message import Message, Properties
from hopback.ops.cli.dlq import (
    explain_refusals,
    get,
    groups,
    ls,
    peek,
    search,
    show,
    watch,
)
from hopback.ops.cli.dlq_candidates import add
from hopback.ops.cli.dlq_print import print_queue
from hopback.ops.contract.requests import SessionRequest
from hopback.testing import in_virtual_time
from hopback.topology.model import Queue, QueueType
from tests.unit.ops.cli.raffle import DLQ, HOSTILE, MAIN, raffle, run_command

if TYPE_CHECKING:
    from pathlib import Path

    from hopback.broker.embedded import EmbeddedBroker

_Output = pytest.CaptureFixture[str]


@in_virtual_time
async def test_dlq_ls_lists_queues_with_depths(capsys: _Output) -> None:
    """Tables omit empty columns. NDJSON has one line per queue."""
    async with raffle() as found:
        await found.park(3)
        await run_command(ls, found.dead_letters, "-o", "table")
        heading, row, total = capsys.readouterr().out.splitlines()
        assert heading.split() == ["QUEUE", "FROM", "MESSAGES"]
        assert row.split() == [DLQ, MAIN, "3"]
        assert total.startswith("3 messages in 1 of 1 queue")
        await run_command(ls, found.dead_letters, "-o", "ndjson")
        (line,) = capsys.readouterr().out.splitlines()
        assert json.loads(line)["messagesReady"] == 3


@in_virtual_time
async def test_dlq_show_queue_touches_no_message(capsys: _Output) -> None:
    """Cost and targets come from the topology."""
    async with raffle() as found:
        await found.park(1)
        await run_command(show, found.dead_letters, DLQ, "-o", "table")
        said = capsys.readouterr().out
        assert "free: a classic queue does not count deliveries" in said
        assert "design (default)" in said
        queue = await found.dead_letters.queue(DLQ)
        print_queue(structs.replace(queue, known_by="dead-lettering"))
        assert "failed-queue (default)" in capsys.readouterr().out  # without a design
        await run_command(show, found.dead_letters, DLQ, "-o", "json")
        assert json.loads(capsys.readouterr().out)["cost"]["price"] == "free"
        (message,) = found.broker.snapshot().queue(DLQ).ready
        assert not message.redelivered


@in_virtual_time
async def test_dlq_groups_sorts_by_size_and_applies_filter(capsys: _Output) -> None:
    async with raffle() as found:
        await found.park(5)
        await run_command(groups, found.dead_letters, DLQ, "-o", "table")
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[:2] for line in lines[1:]] == [["3", "bbbb2222"], ["2", "aaaa1111"]]
        words = ("--by", "error", "--filter", "group:aaaa", "-o", "json")
        await run_command(groups, found.dead_letters, DLQ, *words)
        document = json.loads(capsys.readouterr().out)
        assert (document["matching"], document["seen"]) == (2, 5)
        assert [group["key"] for group in document["items"]] == ["shop.OutOfStock"]


@in_virtual_time
@pytest.mark.parametrize("form", ["table", "json", "ndjson"])
async def test_groups_and_search_report_held_messages_in_every_form(
    form: str, capsys: _Output
) -> None:
    """Lines of JSON contain only groups or matches: the report goes to stderr."""
    async with raffle() as found:
        await found.park(5)
        view = await found.operations.open_session(DLQ, SessionRequest(limit=1, skip=2))
        for command, words in ((groups, (DLQ,)), (search, ("key:*", "--queue", DLQ))):
            await run_command(command, found.dead_letters, *words, "-o", form)
            said = capsys.readouterr()
            text = said.out if form == "table" else said.err
            assert f"Not read: 2 messages in {DLQ}, held by the browse session {view.id}" in text


@in_virtual_time
async def test_dlq_peek_returns_messages_in_order(capsys: _Output) -> None:
    async with raffle() as found:
        await found.park(4)
        before = found.held(DLQ)
        await run_command(peek, found.dead_letters, DLQ, "--limit", 3, "-o", "ndjson")
        lines = capsys.readouterr().out.splitlines()
        assert [json.loads(line)["messageId"] for line in lines] == ["m-0", "m-1", "m-2"]
        assert found.held(DLQ) == before == ["m-0", "m-1", "m-2", "m-3"]


@in_virtual_time
async def test_dlq_peek_with_filter_reports_matching_count(capsys: _Output) -> None:
    async with raffle() as found:
        await found.park(4)
        words = ("--limit", 3, "--filter", "error:TimeoutError", "-o", "table")
        await run_command(peek, found.dead_letters, DLQ, *words)
        assert "2 of the first 3 messages match." in capsys.readouterr().out


@in_virtual_time
async def test_dlq_peek_on_limited_queue_is_refused_with_remedy(
    capsys: _Output,
) -> None:
    """The exit status is 4. `--lift-limit` lifts the limit by a policy."""
    async with raffle(version="4.0") as found:
        await _make_quorum(found.broker, "orders", "orders.dlq")
        with pytest.raises(CommandFailed) as refused:
            await run_command(peek, found.dead_letters, "orders.dlq")
        assert refused.value.code is Exit.NOT_ALLOWED
        assert "--lift-limit" in refused.value.do
        assert "--force" in refused.value.do
        await run_command(peek, found.dead_letters, "orders.dlq", "--lift-limit")
        assert json.loads(capsys.readouterr().out)["queue"] == "orders.dlq"
        await run_command(groups, found.dead_letters, "orders.dlq", "--by", "reason")


async def _make_quorum(broker: EmbeddedBroker, *names: str) -> None:
    connection = await broker.connect("setup")
    channel = await connection.open_channel()
    for name in names:
        await channel.declare_queue(Queue(name, QueueType.QUORUM))
    await channel.publish(Message("", names[-1], b"x"))
    await connection.close()


@pytest.mark.parametrize("ident", ["2", "m-1", "2-{digest}", "9-{digest}", "{digest}"])
def test_message_is_found_by_position_message_id_or_digest(ident: str, capsys: _Output) -> None:
    """The id of an earlier session works as well."""

    @in_virtual_time
    async def find() -> None:
        async with raffle() as found:
            await found.park(3)
            await run_command(peek, found.dead_letters, DLQ, "--limit", 3, "-o", "ndjson")
            dead_letters = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
            name = ident.format(digest=dead_letters[1]["digest"][:16])
            await run_command(get, found.dead_letters, DLQ, name, "--within", 10, "-o", "json")
            shown = json.loads(capsys.readouterr().out)
            assert shown["letter"]["messageId"] == "m-1"
            assert shown["payload"] == {"number": 1}

    find()


@pytest.mark.parametrize("ident", ["4711", "5000050", "5000051", "9999999", "12345678"])
def test_message_is_found_by_message_id_that_is_a_number(ident: str, capsys: _Output) -> None:
    """A session can skip at most 5,000,000 messages."""

    @in_virtual_time
    async def find() -> None:
        async with raffle() as found:
            connection = await found.broker.connect("a producer")
            channel = await connection.open_channel()
            await channel.publish(Message("", DLQ, b"{}", Properties(message_id=ident)))
            await connection.close()
            await run_command(get, found.dead_letters, DLQ, ident, "-o", "json")
            assert json.loads(capsys.readouterr().out)["letter"]["messageId"] == ident

    find()


@in_virtual_time
async def test_unknown_attempts_are_shown_as_lower_bound(capsys: _Output) -> None:
    async with raffle() as found:
        connection = await found.broker.connect("a framework")
        channel = await connection.open_channel()
        said = Properties(headers={"x-exception-message": "out of stock"})
        await channel.publish(Message("", DLQ, b"{}", said))
        await connection.close()
        await run_command(peek, found.dead_letters, DLQ, "--limit", 1, "-o", "table")
    assert "≥ 1" in capsys.readouterr().out


@in_virtual_time
async def test_missing_message_reports_search_depth(capsys: _Output) -> None:
    async with raffle() as found:
        await found.park(2)
        with pytest.raises(CommandFailed, match="among the first 2") as refused:
            await run_command(get, found.dead_letters, DLQ, "m-7", "--within", 10, "-o", "json")
        assert refused.value.code is Exit.NOT_FOUND


@in_virtual_time
async def test_dlq_show_prints_history_typed_headers_and_payload(capsys: _Output) -> None:
    async with raffle() as found:
        await found.park(1)
        await run_command(get, found.dead_letters, DLQ, "1", "--within", 1, "-o", "table")
        said = capsys.readouterr().out
        assert said.startswith(f"{MAIN} gave up after 4 attempts at 2023-11-14 22:00:00 UTC:")
        assert "x-number         int64  0" in said
        assert '"number": 0' in said
        assert "failed first in" in said


@in_virtual_time
async def test_control_characters_never_reach_the_terminal(capsys: _Output) -> None:
    async with raffle() as found:
        await found.park(1, message=HOSTILE, type=HOSTILE, stack=HOSTILE)
        connection = await found.broker.connect("a producer")
        channel = await connection.open_channel()
        await channel.publish(Message("", DLQ, HOSTILE.encode()))
        await connection.close()
        for form in ("table", "json", "ndjson"):
            await run_command(peek, found.dead_letters, DLQ, "--limit", 2, "-o", form)
            await run_command(groups, found.dead_letters, DLQ, "--by", "error", "-o", form)
            for place in ("1", "2"):
                await run_command(get, found.dead_letters, DLQ, place, "--within", 2, "-o", form)
        said = capsys.readouterr().out
        assert "owned" in said
        assert not {"\x1b", "\x07"} & set(said)


@in_virtual_time
async def test_dlq_body_writes_exact_bytes_to_file_and_pipe(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    body = bytes(range(256))
    async with raffle() as found:
        connection = await found.broker.connect("a producer")
        channel = await connection.open_channel()
        await channel.publish(Message("", DLQ, body))
        await connection.close()
        file = tmp_path / "body"
        await run_command(get, found.dead_letters, DLQ, 1, "--body", "--save", file)
        assert file.read_bytes() == body
        assert capfdbinary.readouterr().out == b""
        await run_command(get, found.dead_letters, DLQ, 1, "--body")
        assert capfdbinary.readouterr().out == body
        await run_command(get, found.dead_letters, DLQ, "1", "--within", 1, "-o", "table")
        assert b"000010  10 11 12" in capfdbinary.readouterr().out


@in_virtual_time
async def test_dlq_add_refuses_too_long_reason() -> None:
    """The answer was stored, but it could not be read again."""
    async with raffle() as found:
        with pytest.raises(BadRequest, match="reason: expected text of length <= 1000"):
            await run_command(add, found.dead_letters, MAIN, "--reason", "x" * 1001)
        assert await found.operations.audit() == ()


@in_virtual_time
async def test_dlq_watch_prints_only_changes(capsys: _Output) -> None:
    async with raffle() as found:
        await run_command(watch, found.dead_letters, "--interval", 1, "--times", 3)
        assert len(capsys.readouterr().out.splitlines()) == 1
        await run_command(watch, found.dead_letters, DLQ, "--times", 1, "-o", "table")
        assert DLQ in capsys.readouterr().out


def test_environment_selects_table_output_without_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`kubectl exec` and CI jobs have no terminal."""
    assert ls.make_context("ls", []).params["form"] == "ndjson"
    monkeypatch.setenv("HOPBACK_FORMAT", "table")
    assert ls.make_context("ls", []).params["form"] == "table"
    assert ls.make_context("ls", ["-o", "ndjson"]).params["form"] == "ndjson"


@pytest.mark.parametrize("can_lift", [True, False])
def test_refusal_suggests_lifting_the_limit_only_if_that_is_possible(can_lift: bool) -> None:
    with pytest.raises(CommandFailed) as refused, explain_refusals(DLQ):
        raise UnsafeOperation("the limit could remove messages", can_lift=can_lift)
    assert ("--lift-limit" in refused.value.do) == can_lift
