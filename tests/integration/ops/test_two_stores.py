"""Commands with different stores on one queue of RabbitMQ: the second names the job of the first."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from hopback import RabbitMQ
from hopback.broker.port import count
from hopback.cli.app import run
from hopback.message import Message, Properties
from hopback.topology.model import Queue, QueueType
from tests.harness.versions import SUITES, installations

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.harness.rabbitmq import RabbitNode
    from tests.harness.shared import SharedNode

pytestmark = pytest.mark.broker

_DLQ = "orders.dlq"
_PATIENCE_S = 30


async def _fill(url: str, kind: QueueType, arguments: Mapping[str, int]) -> None:
    connection = await RabbitMQ(url).connect("test")
    channel = await connection.open_channel()
    for name in ("orders", _DLQ):
        await channel.declare_queue(Queue(name, kind, arguments=arguments))
    for number in range(300):
        properties = Properties(message_id=f"m-{number}", delivery_mode=2)
        await channel.publish(Message("", _DLQ, b"{}", properties))
    await connection.close()


async def _wait_for_consumer(url: str) -> None:
    connection = await RabbitMQ(url).connect("test")
    channel = await connection.open_channel()
    deadline = time.monotonic() + _PATIENCE_S
    while (await count(channel, _DLQ)).consumers == 0:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    await connection.close()


_KINDS = pytest.mark.parametrize("kind", [QueueType.CLASSIC, QueueType.QUORUM])


@_KINDS
def test_plan_names_job_of_another_store(
    kind: QueueType, amqp_url: str, rabbitmq: SharedNode, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    _set_environment(monkeypatch, amqp_url, rabbitmq.management_url, tmp_path)
    _check_plan(kind, amqp_url, tmp_path, capsys)


@pytest.mark.all_brokers
@pytest.mark.parametrize("suite", sorted(SUITES))
@_KINDS
def test_plan_names_job_of_another_store_on_other_versions(
    kind: QueueType, suite: str, start_rabbitmq: Callable[..., RabbitNode], tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    node = start_rabbitmq(installation=installations()[suite])
    _set_environment(monkeypatch, node.url, node.management_url, tmp_path)
    unlimited = {"x-delivery-limit": -1} if kind is QueueType.QUORUM else {}
    _check_plan(kind, node.url, tmp_path, capsys, **unlimited)


def _set_environment(
    monkeypatch: pytest.MonkeyPatch, url: str, management: str, folder: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    monkeypatch.setenv("HOPBACK_BROKER", url)
    monkeypatch.setenv("HOPBACK_MANAGEMENT", management)


def _check_plan(
    kind: QueueType, amqp_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    **arguments: int,
) -> None:  # fmt: skip
    asyncio.run(_fill(amqp_url, kind, arguments))
    redrive = ["dlq", "redrive", _DLQ, "--to", "queue:orders", "-o", "json"]
    slow = ["--rate", "1", "--in-flight", "1", "--yes", "--reason", "x"]
    first = subprocess.Popen(
        [sys.executable, "-m", "hopback", *redrive, *slow],
        env=dict(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        job = _start_job(capsys)
        asyncio.run(_wait_for_consumer(amqp_url))
        other = ["--dry-run", "--store", f"sqlite:///{tmp_path}/other.db"]
        deadline, managed = time.monotonic() + _PATIENCE_S, ""
        while job not in managed and time.monotonic() < deadline:  # management lags by some seconds
            managed = _warning(capsys, *redrive, *other)
        plain = _warning(capsys, *redrive, *other, "--amqp-only", "--dlq", f"{_DLQ}=orders")
    finally:
        first.kill()
        first.wait()
    assert f"job {job} of another store" in managed
    assert "without a name" in plain


def _start_job(capsys: pytest.CaptureFixture[str]) -> str:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        assert run(["jobs", "ls", "-o", "json"]) == 0
        if found := json.loads(capsys.readouterr().out):
            return str(found[0]["id"])
        time.sleep(0.05)
    raise TimeoutError


def _warning(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    run(
        arguments
    )  # without management RabbitMQ 4 may have a delivery limit, which refuses the start
    said = capsys.readouterr()
    return str(json.loads(said.out)["warnings"][0])
