"""If `hopback topology apply` is killed, the topology is still valid, and the next apply completes
it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest

from hopback.broker.apply import live_plan
from hopback.broker.management import Management, ManagementAddress
from hopback.broker.rabbitmq import RabbitMQ
from hopback.designs import DESIGNS
from hopback.errors import Nacked, NotFound
from hopback.message import Message
from hopback.topology.model import Queue

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from hopback.broker.port import Channel, Connection
    from tests.harness.shared import SharedNode

pytestmark = pytest.mark.broker

_PATIENCE = 60.0


async def _start_apply(url: str, management: str) -> Process:
    command = ("topology", "apply", "freeflow", "--hardened", "--yes")
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hopback", *command, "--broker", url, "--management", management,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip


async def _exists(connection: Connection, queue: str) -> bool:
    channel = await connection.open_channel()
    try:
        await channel.declare_queue(Queue(queue), passive=True)
    except NotFound:
        return False
    finally:
        await channel.close()
    return True


async def _is_taken(channel: Channel, message: Message) -> bool:
    """Return True if the message was stored. For a short time after its declaration, a quorum queue
    has no leader and refuses messages.
    """
    try:
        await channel.publish(message)
    except Nacked:
        return False
    return True


async def _kill_at(process: Process, connection: Connection, queue: str) -> bool:
    """Kill a process as soon as a queue exists. Returns True if the process was still running."""
    async with asyncio.timeout(_PATIENCE):
        while not await _exists(connection, queue):
            pass  # each check waits for the broker's response
    running = process.returncode is None
    if running:
        process.kill()
    await process.wait()
    return running


async def test_killed_apply_is_completed_by_next_apply(
    rabbitmq: SharedNode, vhost: str, amqp_url: str
) -> None:
    """The command is killed four times. All objects exist exactly once, and the messages are kept."""
    desired = DESIGNS["freeflow"].build({}, hardened=True)
    names = [queue.name for queue in desired.queues]
    connection = await RabbitMQ(amqp_url).connect("test")
    killed = 0
    for place in (0, 6, 14, 22):
        process = await _start_apply(amqp_url, rabbitmq.management_url)
        killed += await _kill_at(process, connection, names[place])
        if place == 0:
            channel = await connection.open_channel()
            async with asyncio.timeout(_PATIENCE):
                while not await _is_taken(channel, Message("", names[0], b"kept")):
                    pass  # each attempt waits for the broker's response
            await channel.close()
    assert killed >= 2
    assert await (await _start_apply(amqp_url, rabbitmq.management_url)).wait() == 0
    async with Management(ManagementAddress.derive(None, rabbitmq.management_url)) as management:
        assert (await live_plan(desired, connection, management, vhost)).is_up_to_date
    channel = await connection.open_channel()
    kept = await channel.get(names[0])
    assert kept is not None
    assert kept.body == b"kept"
    await connection.close()
