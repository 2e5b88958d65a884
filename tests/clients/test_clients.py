"""Other projects' clients on the broker's socket. Each client runs the same steps.

It publishes a message and receives the confirm, and an unroutable message is returned. It rejects
the first delivery. The message waits in a retry queue, is delivered with its deaths and is acked.
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
    pytest.mark.xdist_group("clients"),  # they share one environment
]

_RESULT = {
    "confirmed": True,
    "returned": 312,
    "body": "an order",
    "deaths": [["retry", "expired"], ["work", "rejected"]],
}


def _run_client(command: list[str], **environment: str) -> Any:
    """Run a program and return the JSON of its last output line."""
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
def test_python_client_publishes_retries_and_acks(hopback_broker: BrokerThread, name: str) -> None:
    program = PROGRAMS / f"{name}_client.py"
    result = _run_client([str(peers_python()), str(program), hopback_broker.url])
    assert result == _RESULT
    assert hopback_broker.snapshot().queue("work").messages == ()


def test_dramatiq_publishes_retries_and_acks(hopback_broker: BrokerThread) -> None:
    """Dramatiq names its dead-letter queue `work.XQ`."""
    program = PROGRAMS / "dramatiq_client.py"
    python = str(peers_python())
    result = _run_client([python, str(program), hopback_broker.url, hopback_broker.http_url])
    assert result == {**_RESULT, "deaths": [["work.XQ", "expired"], ["work", "rejected"]]}


def test_librabbitmq_publishes_retries_and_acks(hopback_broker: BrokerThread) -> None:
    address = urlsplit(hopback_broker.url)
    assert _run_client([str(c_client()), str(address.hostname), str(address.port)]) == _RESULT


def test_amqplib_publishes_retries_and_acks(hopback_broker: BrokerThread) -> None:
    modules = str(node_modules())
    program = str(PROGRAMS / "amqplib_client.js")
    assert _run_client(["node", program, hopback_broker.url], NODE_PATH=modules) == _RESULT


@pytest.mark.broker
async def test_amqplib_reads_the_same_headers_as_on_rabbitmq(rabbitmq: SharedNode) -> None:
    """`headers['x-death']` of a message without headers is undefined, not an error."""
    version = BrokerVersion(3, 10)
    settings = ServerSettings(port=0, http_port=0, clock=ClockKind.SYSTEM, version=version)
    program, modules = str(PROGRAMS / "amqplib_headers.js"), str(node_modules())
    async with BrokerServer(settings) as server:
        hopback = await asyncio.to_thread(
            _run_client, ["node", program, server.url], NODE_PATH=modules
        )
    real = await asyncio.to_thread(_run_client, ["node", program, rabbitmq.url], NODE_PATH=modules)
    assert hopback == real
    assert hopback["classic"][0][2] == "none"
