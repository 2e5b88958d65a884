"""`hopback dlq` that only reads: lists, groups, messages, in every form, and nothing that harms."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from hopback.cli.exits import CommandFailed, Exit
from hopback.message import Message, Properties
from hopback.ops.cli.dlq import (
    Look,
    list_groups,
    list_messages,
    list_queues,
    ls,
    show_message,
    show_queue,
    watch_queues,
)
from hopback.ops.cli.dlq_print import print_queue
from hopback.ops.contract.requests import GroupBy
from hopback.testing import in_virtual_time
from hopback.topology.model import Queue, QueueType
from tests.unit.ops.cli.raffle import DLQ, HOSTILE, MAIN, raffle

if TYPE_CHECKING:
    from pathlib import Path

    from hopback.broker.embedded import EmbeddedBroker

_Output = pytest.CaptureFixture[str]


@in_virtual_time
async def test_queues_are_listed_with_their_depths(capsys: _Output) -> None:
    """A row for people, a line of JSON for scripts; empty columns are left out."""
    async with raffle() as found:
        await found.park(3)
        await list_queues(found.dead_letters, "table")
        heading, row, total = capsys.readouterr().out.splitlines()
        assert heading.split() == ["QUEUE", "FROM", "MESSAGES"]
        assert row.split() == [DLQ, MAIN, "3"]
        assert total.startswith("3 messages in 1 of 1 queue")
        await list_queues(found.dead_letters, "ndjson")
        (line,) = capsys.readouterr().out.splitlines()
        assert json.loads(line)["messagesReady"] == 3


@in_virtual_time
async def test_a_queue_is_shown_without_looking_into_it(capsys: _Output) -> None:
    """Cost and targets are known beforehand; no message is touched."""
    async with raffle() as found:
        await found.park(1)
        await show_queue(found.dead_letters, DLQ, "table")
        said = capsys.readouterr().out
        assert "free: a classic queue does not count deliveries" in said
        assert "design (default)" in said
        queue = await found.dead_letters.queue(DLQ)
        print_queue(structs.replace(queue, known_by="dead-lettering"))
        assert "failed-queue (default)" in capsys.readouterr().out  # nothing was designed there
        await show_queue(found.dead_letters, DLQ, "json")
        assert json.loads(capsys.readouterr().out)["cost"]["price"] == "free"
        (message,) = found.broker.snapshot().queue(DLQ).ready
        assert not message.redelivered


@in_virtual_time
async def test_messages_are_grouped_by_their_failure(capsys: _Output) -> None:
    """The largest group first; the filter holds."""
    async with raffle() as found:
        await found.park(5)
        await list_groups(found.dead_letters, Look(DLQ), GroupBy.FINGERPRINT, "table")
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[:2] for line in lines[1:]] == [["3", "bbbb2222"], ["2", "aaaa1111"]]
        await list_groups(found.dead_letters, Look(DLQ, terms="group:aaaa"), GroupBy.ERROR, "json")
        document = json.loads(capsys.readouterr().out)
        assert (document["matching"], document["seen"]) == (2, 5)
        assert [group["key"] for group in document["items"]] == ["shop.OutOfStock"]


@in_virtual_time
async def test_looking_gives_everything_back_in_order(capsys: _Output) -> None:
    """Peeking shows the head of the queue; afterwards the queue is as it was."""
    async with raffle() as found:
        await found.park(4)
        before = found.held(DLQ)
        await list_messages(found.dead_letters, Look(DLQ, 3), "ndjson")
        lines = capsys.readouterr().out.splitlines()
        assert [json.loads(line)["messageId"] for line in lines] == ["m-0", "m-1", "m-2"]
        assert found.held(DLQ) == before == ["m-0", "m-1", "m-2", "m-3"]


@in_virtual_time
async def test_a_filter_says_how_many_match(capsys: _Output) -> None:
    """So nobody takes a short list for a short queue."""
    async with raffle() as found:
        await found.park(4)
        await list_messages(found.dead_letters, Look(DLQ, 3, "error:TimeoutError"), "table")
        assert "2 of the first 3 messages match." in capsys.readouterr().out


@in_virtual_time
async def test_a_look_that_could_lose_messages_is_refused_with_the_way_out(
    capsys: _Output,
) -> None:
    """On a quorum queue with a limit: refused with 4; lifted by policy when asked for."""
    async with raffle(version="4.0") as found:
        await _make_quorum(found.broker, "orders", "orders.dlq")
        look = Look("orders.dlq", 5)
        with pytest.raises(CommandFailed) as refused:
            await list_messages(found.dead_letters, look, "table")
        assert refused.value.code is Exit.NOT_ALLOWED
        assert "--lift-limit" in refused.value.do
        assert "--force" in refused.value.do
        await list_messages(found.dead_letters, Look("orders.dlq", 5, lift=True), "ndjson")
        assert json.loads(capsys.readouterr().out)["queue"] == "orders.dlq"
        await list_groups(found.dead_letters, look, GroupBy.REASON, "ndjson")


async def _make_quorum(broker: EmbeddedBroker, *names: str) -> None:
    connection = await broker.connect("setup")
    channel = await connection.open_channel()
    for name in names:
        await channel.declare_queue(Queue(name, QueueType.QUORUM))
    await channel.publish(Message("", names[-1], b"x"))
    await connection.close()


@pytest.mark.parametrize("ident", ["2", "m-1", "2-{digest}", "9-{digest}", "{digest}"])
def test_a_message_is_found_by_whatever_names_it(ident: str, capsys: _Output) -> None:
    """Its place, its message id, its id of an earlier look, or the digest in it."""

    @in_virtual_time
    async def finding() -> None:
        async with raffle() as found:
            await found.park(3)
            await list_messages(found.dead_letters, Look(DLQ, 3), "ndjson")
            dead_letters = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
            name = ident.format(digest=dead_letters[1]["digest"][:16])
            await show_message(found.dead_letters, Look(DLQ, 10), name, "json")
            shown = json.loads(capsys.readouterr().out)
            assert shown["letter"]["messageId"] == "m-1"
            assert shown["payload"] == {"number": 1}

    finding()


@in_virtual_time
async def test_attempts_that_nobody_counted_are_at_least_so_many(capsys: _Output) -> None:
    """In a list as in the story of a message."""
    async with raffle() as found:
        connection = await found.broker.connect("a framework")
        channel = await connection.open_channel()
        said = Properties(headers={"x-exception-message": "out of stock"})
        await channel.publish(Message("", DLQ, b"{}", said))
        await connection.close()
        await list_messages(found.dead_letters, Look(DLQ, 1), "table")
    assert "≥ 1" in capsys.readouterr().out


@in_virtual_time
async def test_a_message_that_is_not_there_is_not_found(capsys: _Output) -> None:
    """The error says how far was looked."""
    async with raffle() as found:
        await found.park(2)
        with pytest.raises(CommandFailed, match="among the first 2") as refused:
            await show_message(found.dead_letters, Look(DLQ, 10), "m-7", "json")
        assert refused.value.code is Exit.NOT_FOUND


@in_virtual_time
async def test_a_message_is_told_as_a_story(capsys: _Output) -> None:
    """What happened, its headers with their types, its payload."""
    async with raffle() as found:
        await found.park(1)
        await show_message(found.dead_letters, Look(DLQ, 1), "1", "table")
        said = capsys.readouterr().out
        assert said.startswith(f"{MAIN} gave up after 4 attempts at 2023-11-14 22:00:00 UTC:")
        assert "x-number         int64  0" in said
        assert '"number": 0' in said
        assert "failed first in" in said


@in_virtual_time
async def test_hostile_content_never_reaches_the_terminal_raw(capsys: _Output) -> None:
    """Neither from a body nor from an error, in no form of the output."""
    async with raffle() as found:
        await found.park(1, message=HOSTILE, type=HOSTILE, stack=HOSTILE)
        connection = await found.broker.connect("a producer")
        channel = await connection.open_channel()
        await channel.publish(Message("", DLQ, HOSTILE.encode()))
        await connection.close()
        for form in ("table", "json", "ndjson"):
            await list_messages(found.dead_letters, Look(DLQ, 2), form)
            await list_groups(found.dead_letters, Look(DLQ), GroupBy.ERROR, form)
            for place in ("1", "2"):
                await show_message(found.dead_letters, Look(DLQ, 2), place, form)
        said = capsys.readouterr().out
        assert "owned" in said
        assert not {"\x1b", "\x07"} & set(said)


@in_virtual_time
async def test_a_body_is_saved_byte_for_byte(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Into a file, and into a pipe."""
    body = bytes(range(256))
    async with raffle() as found:
        connection = await found.broker.connect("a producer")
        channel = await connection.open_channel()
        await channel.publish(Message("", DLQ, body))
        await connection.close()
        file = tmp_path / "body"
        await show_message(found.dead_letters, Look(DLQ, 1), "1", "bytes", save=file)
        assert file.read_bytes() == body
        assert capfdbinary.readouterr().out == b""
        await show_message(found.dead_letters, Look(DLQ, 1), "1", "bytes")
        assert capfdbinary.readouterr().out == body
        await show_message(found.dead_letters, Look(DLQ, 1), "1", "table")
        assert b"000010  10 11 12" in capfdbinary.readouterr().out


@in_virtual_time
async def test_watching_tells_changes_only(capsys: _Output) -> None:
    """A line for each queue at first, then one for each change."""
    async with raffle() as found:
        await watch_queues(found.dead_letters, (), 1.0, 3, "ndjson")
        assert len(capsys.readouterr().out.splitlines()) == 1
        await watch_queues(found.dead_letters, (DLQ,), 1.0, 1, "table")
        assert DLQ in capsys.readouterr().out


def test_the_environment_selects_tables_for_output_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`kubectl exec` and CI jobs have no terminal."""
    assert ls.make_context("ls", []).params["form"] == "ndjson"
    monkeypatch.setenv("HOPBACK_FORMAT", "table")
    assert ls.make_context("ls", []).params["form"] == "table"
    assert ls.make_context("ls", ["-o", "ndjson"]).params["form"] == "ndjson"
