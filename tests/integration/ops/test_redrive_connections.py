"""The connections that one `hopback dlq redrive` opens, counted by a proxy before the broker."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

import pytest

from hopback import RabbitMQ
from hopback.broker.declare import declare
from hopback.broker.server import BrokerServer, ClockKind, ServerSettings
from hopback.designs import DESIGNS
from hopback.message import Message, Properties
from tests.integration.proxy import Proxy

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.shared import SharedNode

_TOPOLOGY = DESIGNS["raffle"].build({}, hardened=False)
_MAIN = _TOPOLOGY.plans[0].queue
_DLQ = _TOPOLOGY.plans[0].parking.queue
_MOST_CONNECTIONS = 3  # one for questions, one that takes the messages, one that publishes them


async def test_redrive_on_broker_server_opens_at_most_three_connections(tmp_path: Path) -> None:
    settings = ServerSettings(port=0, http_port=0, clock=ClockKind.SYSTEM)
    async with BrokerServer(settings) as server:
        url = server.url.replace("//", "//guest:guest@") + "/%2F"
        assert await _redrive(url, str(server.http_url), tmp_path) <= _MOST_CONNECTIONS


@pytest.mark.broker
async def test_redrive_on_rabbitmq_opens_at_most_three_connections(
    amqp_url: str, rabbitmq: SharedNode, tmp_path: Path
) -> None:
    assert await _redrive(amqp_url, rabbitmq.management_url, tmp_path) <= _MOST_CONNECTIONS


async def _redrive(url: str, management: str, folder: Path) -> int:
    """Re-drive three dead letters by the command. Return the number of connections that it opened."""
    connection = await RabbitMQ(url).connect("test")
    await declare(connection, _TOPOLOGY)
    channel = await connection.open_channel()
    for number in range(3):
        properties = Properties(message_id=f"m-{number}", delivery_mode=2)
        await channel.publish(Message("", _DLQ, b"x", properties))
    async with Proxy(url) as proxy:
        options = ["--broker", proxy.url, "--management", management, "--yes", "-o", "json"]
        command = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "hopback", "dlq", "redrive", _DLQ, "--reason", "test"),
            *options,
            env={"XDG_STATE_HOME": str(folder), "PATH": ""},
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await command.communicate()
    assert command.returncode == 0
    assert json.loads(output)["state"] == "completed"
    assert (await channel.purge_queue(_MAIN)) == 3
    await connection.close()
    return proxy.accepted
