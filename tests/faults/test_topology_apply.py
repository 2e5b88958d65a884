"""`hopback topology apply` killed midway leaves a valid topology, and the next apply completes it."""

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


async def _applying(url: str, management: str) -> Process:
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
    """Whether it is stored: a quorum queue refuses as long as it has no leader, shortly after its birth."""
    try:
        await channel.publish(message)
    except Nacked:
        return False
    return True


async def _killed_at(process: Process, connection: Connection, queue: str) -> bool:
    """Kill with SIGKILL as soon as the queue exists.

    Return whether the process was still running.
    """
    async with asyncio.timeout(_PATIENCE):
        while not await _exists(connection, queue):
            pass  # every look waits for the broker's answer
    running = process.returncode is None
    if running:
        process.kill()
    await process.wait()
    return running


async def test_killed_apply_is_completed_by_next_apply(
    rabbitmq: SharedNode, vhost: str, amqp_url: str
) -> None:
    """It is killed at four places. All objects exist once, and the messages stay."""
    desired = DESIGNS["freeflow"].build({}, hardened=True)
    names = [queue.name for queue in desired.queues]
    connection = await RabbitMQ(amqp_url).connect("test")
    killed = 0
    for place in (0, 6, 14, 22):
        process = await _applying(amqp_url, rabbitmq.management_url)
        killed += await _killed_at(process, connection, names[place])
        if place == 0:
            channel = await connection.open_channel()
            async with asyncio.timeout(_PATIENCE):
                while not await _is_taken(channel, Message("", names[0], b"kept")):
                    pass  # every try waits for the broker's answer
            await channel.close()
    assert killed >= 2
    assert await (await _applying(amqp_url, rabbitmq.management_url)).wait() == 0
    async with Management(ManagementAddress.derive(None, rabbitmq.management_url)) as management:
        assert (await live_plan(desired, connection, management, vhost)).is_up_to_date
    channel = await connection.open_channel()
    kept = await channel.get(names[0])
    assert kept is not None
    assert kept.body == b"kept"
    await connection.close()
