"""`hopback dlq edit` and `restore-limit` as processes: on the broker itself, and by `hopback serve`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from typing import IO, TYPE_CHECKING, Any

import pytest

from hopback import RabbitMQ
from hopback.cli.app import run
from hopback.message import Message, Properties
from hopback.ops.jobs.edited_copy import COPY_OF
from hopback.topology.model import Queue, QueueType

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hopback.message import Delivery
    from tests.harness.shared import SharedNode

pytestmark = pytest.mark.broker

_Output = pytest.CaptureFixture[str]
_DLQ = "orders.dlq"
_WAYS = pytest.mark.parametrize("by", ["broker", "server"])


@pytest.fixture(autouse=True)
def _no_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the developer's environment variables."""
    for name in [name for name in os.environ if name.startswith("HOPBACK_")]:
        if name != "HOPBACK_TEST_RUN":
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@contextmanager
def _broker_or_server(by: str, url: str, management: str, folder: Path) -> Iterator[None]:
    """Two dead letters on the broker. The environment names the broker or only a server for it."""
    asyncio.run(_fill(url))
    there = {"HOPBACK_BROKER": url, "HOPBACK_MANAGEMENT": management}
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        if by == "server":
            there = {"HOPBACK_SERVER": stack.enter_context(_run_server(folder, there))}
        for name, value in there.items():
            patch.setenv(name, value)
        yield


async def _fill(url: str) -> None:
    connection = await RabbitMQ(url).connect("test")
    channel = await connection.open_channel()
    for name in ("orders", _DLQ):
        await channel.declare_queue(Queue(name, QueueType.QUORUM))
    for number in range(2):
        properties = Properties(
            message_id=f"m-{number}", delivery_mode=2, headers={"x-number": number}
        )
        await channel.publish(Message("", _DLQ, b"wrong", properties))
    await connection.close()


@contextmanager
def _run_server(folder: Path, there: dict[str, str]) -> Iterator[str]:
    """The address of a server that lets its operators edit."""
    settings = folder / "admin.toml"
    settings.write_text("[deadletters]\nediting = true\n")
    options = ("--http", "0", "--store", "memory", "--config", str(settings))
    with _run_command("serve", *options, environment=there) as said:
        yield _told(said, r"Serving (http://\S+)")


@contextmanager
def _run_command(*arguments: str, environment: dict[str, str]) -> Iterator[IO[str]]:
    """The running command and its output."""
    process = subprocess.Popen(
        [sys.executable, "-m", "hopback", *arguments],
        env={**os.environ, **environment, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout
    finally:
        process.kill()
        process.communicate()


def _told(said: IO[str], pattern: str) -> str:
    """Return the first output line that matches."""
    lines = []
    for line in said:
        lines.append(line)
        if found := re.search(pattern, line):
            return found.group(1)
    raise AssertionError("".join(lines))


def _said(capsys: _Output, *arguments: str) -> Any:
    capsys.readouterr()
    code = run([*arguments, "-o", "json"])
    said = capsys.readouterr()
    assert code == 0, said.err
    return json.loads(said.out)


def _taken(url: str, queue: str) -> list[Delivery]:
    async def take() -> list[Delivery]:
        connection = await RabbitMQ(url).connect("test")
        channel = await connection.open_channel()
        found = []
        while (delivery := await channel.get(queue)) is not None:
            found.append(delivery)
        await connection.close()
        return found

    return asyncio.run(take())


@_WAYS
def test_edit_publishes_changed_copy_and_keeps_original(
    by: str, amqp_url: str, rabbitmq: SharedNode, capsys: _Output, tmp_path: Path
) -> None:
    """A dry run and an unknown ID publish no message."""
    payload = tmp_path / "payload.json"
    payload.write_bytes(b'{"right": true}')
    change = (
        *("--body", str(payload), "--content-type", "application/json", "--force"),
        *("--header", "x-fixed=yes", "--without", "x-number", "--to", "queue:orders"),
    )
    act = (*change, "--yes", "--reason", "a wrong payload")
    with _broker_or_server(by, amqp_url, rabbitmq.management_url, tmp_path):
        planned = _said(capsys, "dlq", "edit", _DLQ, "m-1", *change, "--dry-run")
        assert planned["letter"]["messageId"] == "m-1"
        assert run(["dlq", "edit", _DLQ, "m-9", *act]) == 5
        sent = _said(capsys, "dlq", "edit", _DLQ, "m-1", *act)["messageId"]
    (copy,) = _taken(amqp_url, "orders")
    properties = copy.properties
    assert (copy.body, properties.content_type) == (b'{"right": true}', "application/json")
    assert properties.message_id == sent != "m-1"
    assert (properties.headers["x-fixed"], properties.headers[COPY_OF]) == ("yes", "m-1")
    assert "x-number" not in properties.headers
    stayed = [one.properties.message_id for one in _taken(amqp_url, _DLQ)]
    assert sorted(map(str, stayed)) == ["m-0", "m-1"]


@_WAYS
@pytest.mark.waits(18)
def test_limit_is_lifted_for_session_and_restored(by: str, capsys: _Output, tmp_path: Path) -> None:
    """Restoring twice succeeds.

    An unknown queue is an error. The broker is `hopback broker` as RabbitMQ 4, because the older
    RabbitMQ has no default limit.
    """
    restore = ["dlq", "restore-limit", "--yes", "--reason", "seen"]
    broker = ("broker", "--port", "0", "--http", "0", "--profile", "4.0")
    with _run_command(*broker, environment={}) as said:
        url = _told(said, r"AMQP +(amqp://\S+)")
        management = _told(said, r"Management +(http://\S+)")
        with _broker_or_server(by, url, management, tmp_path):
            assert run(["dlq", "peek", _DLQ]) == 4
            assert run(["dlq", "peek", _DLQ, "--lift-limit"]) == 0
            assert _said(capsys, "dlq", "show", _DLQ)["limitLifted"]
            for _ in range(2):
                assert run([*restore, _DLQ]) == 0
                assert "Restored the previous delivery limit" in capsys.readouterr().err
                assert not _said(capsys, "dlq", "show", _DLQ)["limitLifted"]
            assert run([*restore, "no.such.dlq"]) == 5
            assert "no.such.dlq" in capsys.readouterr().err
