"""`hopback dlq` and `hopback jobs` on RabbitMQ, run in the process: refusals, codes, names, forms."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from click.shell_completion import ShellComplete

from hopback import RabbitMQ
from hopback.broker.declare import declare
from hopback.cli.app import root, run
from hopback.designs import DESIGNS
from hopback.message import Message, Properties
from hopback.topology.model import Queue, QueueType
from tests.integration.database import database_url

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.shared import SharedNode

__all__ = ["database_url"]

pytestmark = pytest.mark.broker

_Output = pytest.CaptureFixture[str]
_TOPOLOGY = DESIGNS["raffle"].build({}, hardened=False)
_MAIN = _TOPOLOGY.plans[0].queue
_DLQ = _TOPOLOGY.plans[0].parking.queue
_LIMITED = Queue("orders.dlq", QueueType.QUORUM, arguments={"x-delivery-limit": 5})


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the developer's environment variables."""
    for name in [name for name in os.environ if name.startswith("HOPBACK_")]:
        if name != "HOPBACK_TEST_RUN":
            monkeypatch.delenv(name)


@pytest.fixture
def url(
    amqp_url: str, rabbitmq: SharedNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """A virtual host with the raffle's queues and three dead letters. The environment names it."""
    monkeypatch.setenv("HOPBACK_BROKER", amqp_url)
    monkeypatch.setenv("HOPBACK_MANAGEMENT", rabbitmq.management_url)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    asyncio.run(_fill(amqp_url))
    return amqp_url


async def _fill(url: str) -> None:
    connection = await RabbitMQ(url).connect("test")
    await declare(connection, _TOPOLOGY)
    channel = await connection.open_channel()
    await channel.declare_queue(Queue("orders", QueueType.QUORUM))
    await channel.declare_queue(_LIMITED)
    for number in range(3):
        for queue in (_DLQ, _LIMITED.name):
            properties = Properties(message_id=f"m-{number}", delivery_mode=2)
            await channel.publish(Message("", queue, b"x", properties))
    await connection.close()


def _lines(capsys: _Output, *arguments: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run(arguments) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.usefixtures("url")
def test_queues_are_found_by_management_topology_or_option(capsys: _Output) -> None:
    names = {one["queue"]: one["knownBy"] for one in _lines(capsys, "dlq", "ls")}
    assert names == {_DLQ: "dead-lettering", "orders.dlq": "name"}
    declared = _lines(capsys, "dlq", "ls", "--amqp-only", "--topology", "raffle")
    assert [(one["queue"], one["knownBy"], one["messages"]) for one in declared] == [
        (_DLQ, "plan", 3)
    ]
    by_hand = _lines(capsys, "dlq", "show", f"{_DLQ}", "--amqp-only", "--dlq", f"{_DLQ}={_MAIN}")
    assert [one["origins"] for one in by_hand] == [[_MAIN]]
    by_amqp = ["--amqp-only", "--topology", "raffle"]  # exact, while management lags
    assert run(["dlq", "ls", "--detailed-exit-code", *by_amqp]) == 10


@pytest.mark.usefixtures("url")
def test_peek_on_queue_with_delivery_limit_is_refused(capsys: _Output) -> None:
    """The exit status is 4, and the message names the remedy."""
    for command in ("peek", "groups", "export"):
        assert run(["dlq", command, _LIMITED.name]) == 4
        said = capsys.readouterr()
        assert said.out == ""
        assert "The limit cannot be lifted: " in said.err  # 3.10 has no policy for that
        assert "--lift-limit" not in said.err
        assert "--force" in said.err
    act = ["dlq", "redrive", _LIMITED.name, "--filter", "id:m-1", "--yes", "--reason", "x"]
    assert run(act) == 4
    assert "--force" in capsys.readouterr().err
    assert len(_lines(capsys, "dlq", "peek", _LIMITED.name, "--force")) == 3


@pytest.mark.usefixtures("url")
def test_export_writes_queue_as_json_lines_and_removes_nothing(capsys: _Output) -> None:
    assert run(["dlq", "export", _DLQ]) == 0
    said = capsys.readouterr()
    lines = [json.loads(line) for line in said.out.splitlines()]
    assert [one["properties"]["message_id"] for one in lines] == ["m-0", "m-1", "m-2"]
    assert said.err == "Exported 3 messages.\n"
    assert len(_lines(capsys, "dlq", "peek", _DLQ)) == 3


@pytest.mark.usefixtures("url")
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("dlq", "show", "no.such"), 5),
        (("dlq", "get", _DLQ, "m-9"), 5),
        (("jobs", "show", "j-none"), 5),
        (("jobs", "resume", "j-none"), 5),
        (("dlq", "import", "no.such.file"), 5),
        (("dlq", "peek", _DLQ, "--filter", "nonsense>1"), 2),
        (("dlq", "redrive", _DLQ), 2),
        (("dlq", "redrive", _DLQ, "--yes"), 2),
        (("dlq", "redrive", _DLQ, "--to", "nowhere"), 2),
        (("dlq", "discard", _DLQ, "--reason", "x"), 2),
        (("dlq", "discard", _DLQ, "--no-export", "--export-to", "file"), 2),
        (("dlq", "ls", "--dlq", "=orders"), 2),
        (("dlq", "redrive", _DLQ, "--to", "queue:no.such", "--dry-run"), 4),
        (("dlq", "redrive", _DLQ, "--to", "queue:no.such", "--yes", "--reason", "x"), 4),
        (("dlq", "redrive", _DLQ, "--yes", "--reason", "x", "--expect-count", "4"), 6),
        (
            ("dlq", "ls", "--broker", "amqp://127.0.0.1:1/", "--amqp-only", "--topology", "raffle"),
            7,
        ),
        (("dlq", "ls", "--server", "http://127.0.0.1:1"), 7),
        (("jobs", "ls", "--store", "sqlite:////no/such/folder/jobs.db"), 7),
        (("dlq", "redrive", _DLQ, "--dry-run", "--detailed-exit-code"), 10),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_refused_commands_have_exit_codes_and_no_traceback(
    arguments: tuple[str, ...], code: int, capsys: _Output
) -> None:
    """The messages stay."""
    assert run(arguments) == code, capsys.readouterr().err
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    assert said.out == "" or "--dry-run" in arguments
    assert len(_lines(capsys, "dlq", "peek", _DLQ)) == 3


def test_missing_broker_is_usage_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: _Output
) -> None:
    """Jobs in the store can still be listed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert run(["dlq", "ls"]) == 2
    assert "--server" in capsys.readouterr().err
    assert _lines(capsys, "jobs", "ls") == []
    assert not (tmp_path / "hopback" / "jobs.db").exists()  # no message to keep
    assert (tmp_path / "hopback").stat().st_mode & 0o777 == 0o700


@pytest.mark.usefixtures("url")
def test_completion_lists_queues_and_jobs(monkeypatch: pytest.MonkeyPatch, capsys: _Output) -> None:
    """It is empty if neither broker nor store answers."""
    (job,) = _lines(capsys, "dlq", "redrive", _DLQ, "--yes", "--reason", "x", "--limit", "1")
    shell = ShellComplete(root, {}, "hopback", "_HOPBACK_COMPLETE")

    def completions(*words: str) -> list[str]:
        return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]

    assert completions("dlq", "peek", "raf") == [_DLQ]
    assert completions("jobs", "show", "j-") == [job["id"]]
    monkeypatch.setenv("HOPBACK_BROKER", "amqp://127.0.0.1:1/")
    assert completions("dlq", "peek", "raf") == []
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("url")
def test_job_is_known_only_in_the_selected_store(database_url: str, capsys: _Output) -> None:
    store = ("--store", database_url)
    (job,) = _lines(capsys, "dlq", "redrive", _DLQ, "--yes", "--reason", "x", *store)
    assert job["counts"]["done"] == 3
    (found,) = _lines(capsys, "jobs", "show", job["id"], *store)
    assert found["state"] == "completed"
    assert run(["jobs", "show", job["id"]]) == 5
