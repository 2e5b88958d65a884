"""Commands whose reader leaves early, as `| head -1` does."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from hopback import RabbitMQ
from hopback.broker.server import ServerSettings
from hopback.message import Message, Properties
from hopback.testing.threads import BrokerThread
from hopback.topology.model import Queue

_COUNT = 400  # of 1 KiB, several times the capacity of a pipe


async def _park(url: str) -> None:
    connection = await RabbitMQ(url).connect("test")
    channel = await connection.open_channel()
    for name in ("orders", "orders.dlq"):
        await channel.declare_queue(Queue(name))
    for number in range(_COUNT):
        properties = Properties(message_id=f"m-{number}", delivery_mode=2)
        await channel.publish(Message("", "orders.dlq", b"x" * 1024, properties))
    await connection.close()


@pytest.mark.parametrize(
    "command", [["export"], ["peek", "--limit", "400"]], ids=["export", "peek"]
)
def test_closed_pipe_exits_with_0_and_returns_messages(command: list[str]) -> None:
    verb, *options = command
    with BrokerThread(ServerSettings(port=0, http_port=0)) as broker:
        asyncio.run(_park(broker.url))
        where = ["orders.dlq", "--broker", broker.url, "--management", broker.http_url, *options]
        asked = [sys.executable, "-m", "hopback", "dlq", verb, *where, "--store", "memory"]
        with subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
            assert running.stdout is not None
            assert running.stderr is not None
            first = running.stdout.readline()
            running.stdout.close()
            said = running.stderr.read()
        assert (said, running.returncode) == (b"", 0)
        assert "m-0" in first.decode()
        assert len(broker.snapshot().queue("orders.dlq").ready) == _COUNT
