"""Clients of other makers on the broker's socket: each of them goes through the same story.

A message is published and confirmed, one for nobody comes back, the first is rejected, waits in a
retry queue, returns with its deaths and is acked.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from hopback.broker.server import BrokerServer, ClockKind, ServerSettings
from hopback.version import BrokerVersion
from tests.clients.environment import PROGRAMS, c_client, node_modules, peers_python

if TYPE_CHECKING:
    from hopback.testing import BrokerThread
    from tests.harness.shared import SharedNode

pytestmark = [
    pytest.mark.clients,
    pytest.mark.hopback_broker(clock="system"),
    pytest.mark.xdist_group("clients"),  # one environment
]

_STORY = {
    "confirmed": True,
    "returned": 312,
    "body": "an order",
    "deaths": [["retry", "expired"], ["work", "rejected"]],
}


def _told(command: list[str], **environment: str) -> Any:
    """What the program tells in its last line."""
    ran = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize("name", ["pika", "aio_pika", "kombu", "celery", "faststream"])
def test_a_python_client_goes_through_its_story(hopback_broker: BrokerThread, name: str) -> None:
    """From publish to the ack after a retry."""
    program = PROGRAMS / f"{name}_client.py"
    told = _told([str(peers_python()), str(program), hopback_broker.url])
    assert told == _STORY
    assert hopback_broker.snapshot().queue("work").messages == ()


def test_dramatiq_goes_through_its_story(hopback_broker: BrokerThread) -> None:
    """Its dead letters wait in a queue of its own naming."""
    program = PROGRAMS / "dramatiq_client.py"
    python = str(peers_python())
    told = _told([python, str(program), hopback_broker.url, hopback_broker.http_url])
    assert told == {**_STORY, "deaths": [["work.XQ", "expired"], ["work", "rejected"]]}


def test_librabbitmq_goes_through_its_story(hopback_broker: BrokerThread) -> None:
    """The C client."""
    address = urlsplit(hopback_broker.url)
    assert _told([str(c_client()), str(address.hostname), str(address.port)]) == _STORY


def test_amqplib_goes_through_its_story(hopback_broker: BrokerThread) -> None:
    """The client of Node.js."""
    modules = str(node_modules())
    program = str(PROGRAMS / "amqplib_client.js")
    assert _told(["node", program, hopback_broker.url], NODE_PATH=modules) == _STORY


@pytest.mark.broker
async def test_amqplib_reads_the_same_headers_as_on_rabbitmq(rabbitmq: SharedNode) -> None:
    """`headers['x-death']` of a message without headers is undefined, not an error."""
    version = BrokerVersion(3, 10)
    settings = ServerSettings(port=0, http_port=0, clock=ClockKind.SYSTEM, version=version)
    program, modules = str(PROGRAMS / "amqplib_headers.js"), str(node_modules())
    async with BrokerServer(settings) as server:
        ours = await asyncio.to_thread(_told, ["node", program, server.url], NODE_PATH=modules)
    theirs = await asyncio.to_thread(_told, ["node", program, rabbitmq.url], NODE_PATH=modules)
    assert ours == theirs
    assert ours["classic"][0][2] == "none"
