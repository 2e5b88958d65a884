"""A re-drive on RabbitMQ whose process is killed repeatedly loses no message."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from hopback.broker.rabbitmq import RabbitMQ
from hopback.message import Message, Properties
from hopback.topology.expand import NO_DELIVERY_LIMIT
from hopback.topology.model import Queue, QueueType
from tests.harness.versions import SUITES, installations
from tests.integration.mixed_messages import (
    FOREIGN_USER,
    NUMBER,
    fingerprint_after,
    fingerprint_before,
    mixed_messages,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hopback.broker.port import Connection
    from hopback.message import Delivery
    from tests.harness.management import Management
    from tests.harness.rabbitmq import RabbitNode
    from tests.harness.shared import SharedNode

pytestmark = pytest.mark.broker

COUNT, LARGE, KILLS, IN_FLIGHT = 12_000, 20, 10, 200
DLQ, MAIN = "orders.dlq", "orders"


async def test_redrive_killed_ten_times_moves_every_message(
    rabbitmq: SharedNode, vhost: str, amqp_url: str, tmp_path: Path
) -> None:
    """Each message arrives unchanged with its properties.

    Duplicates stay within the window. A resumed job that cannot find its position stops with a
    reason, and a new job moves the remaining messages.
    """
    await _kill_and_resume(amqp_url, rabbitmq.management, vhost, tmp_path)


@pytest.mark.all_brokers
@pytest.mark.parametrize("suite", sorted(SUITES))
async def test_redrive_killed_ten_times_moves_every_message_on_other_versions(
    start_rabbitmq: Callable[..., RabbitNode], suite: str, tmp_path: Path
) -> None:
    """The versions are RabbitMQ 4.0 and 4.3."""
    node = start_rabbitmq(installation=installations()[suite])
    await _kill_and_resume(node.url, node.management, "/", tmp_path, node.management_url)


@pytest.mark.waits(18)
async def test_redrive_command_waits_for_killed_broker(
    start_rabbitmq: Callable[..., RabbitNode], tmp_path: Path
) -> None:
    """It reports the outage, continues when the node returns and exits with 0."""
    node, count = start_rabbitmq(), 500
    connection = await RabbitMQ(node.url).connect("test")
    channel = await connection.open_channel()
    for name in (DLQ, MAIN):
        limit = {"x-delivery-limit": NO_DELIVERY_LIMIT}
        await channel.declare_queue(Queue(name, QueueType.QUORUM, arguments=limit))
    await asyncio.gather(
        *(channel.publish(Message("", DLQ, b"%d" % number)) for number in range(count))
    )
    await connection.close()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hopback", "dlq", "redrive", DLQ, "--to", f"queue:{MAIN}",
        "--reason", "repaired", "--yes", "--rate", "200", "--broker", node.url,
        "--management", node.management_url, "--store", f"sqlite:///{tmp_path / 'jobs.db'}",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    await _wait_for_arrivals(node.url, 300)
    await asyncio.to_thread(node.kill)
    await asyncio.to_thread(node.start)
    out, told = await asyncio.wait_for(process.communicate(), 180)
    assert process.returncode == 0, told.decode()
    assert b"waiting for the broker" in told
    ended = json.loads(out)
    assert (ended["state"], ended["counts"]["done"]) == ("completed", count)
    connection = await RabbitMQ(node.url).connect("test")
    channel = await connection.open_channel()
    found = set[int]()
    while delivery := await channel.get(MAIN):
        found.add(int(delivery.body))
        channel.ack(delivery.tag)
    assert found == set(range(count))
    assert await _depth(connection, DLQ) == 0
    await connection.close()


@pytest.mark.waits(20)
async def test_classic_queue_that_loses_acks_is_emptied(
    start_rabbitmq: Callable[..., RabbitNode], tmp_path: Path
) -> None:
    """Service and broker are killed.

    More messages are redelivered than the job remembers. A classic queue that is only read from
    writes its acks when it is idle or after some thousands.
    """
    node, count, few = start_rabbitmq(), 6_000, 10
    connection = await RabbitMQ(node.url).connect("test")
    channel = await connection.open_channel()
    for name in (DLQ, MAIN):
        await channel.declare_queue(Queue(name, QueueType.CLASSIC))
    kept = Properties(delivery_mode=2)
    for start in range(0, count, 500):
        numbers = range(start, start + 500)
        await asyncio.gather(
            *(channel.publish(Message("", DLQ, b"%d" % number, kept)) for number in numbers)
        )
    process = await _spawn(node.url, tmp_path, few, node.management_url)
    assert await _kill_when(process, _watch(connection, 1_500))
    await connection.close()
    process = await _spawn(node.url, tmp_path, few, node.management_url)
    await _wait_for_arrivals(node.url, 3_000)
    await asyncio.to_thread(node.kill)
    await asyncio.to_thread(node.start)
    out, _ = await asyncio.wait_for(process.communicate(), 120)
    assert out.startswith(b"completed"), out
    assert b"done=%d," % count in out
    connection = await RabbitMQ(node.url).connect("test")
    channel = await connection.open_channel()
    found = set[int]()
    while delivery := await channel.get(MAIN):
        found.add(int(delivery.body))
        channel.ack(delivery.tag)
    assert found == set(range(count))
    assert await _depth(connection, DLQ) == 0
    await connection.close()


async def _wait_for_arrivals(url: str, count: int) -> None:
    """Return when this number of messages was moved."""
    connection = await RabbitMQ(url).connect("test")
    await _watch(connection, count)
    await connection.close()


async def _kill_and_resume(
    url: str, management: Management, vhost: str, folder: Path, *management_url: str
) -> None:
    expected = await _fill(url, management, vhost)
    connection = await RabbitMQ(url).connect("test")
    chance = random.Random(1)
    kills = 0
    for _ in range(KILLS):
        moved = await _depth(connection, MAIN)
        process = await _spawn(url, folder, IN_FLIGHT, *management_url)
        aim = moved + chance.randint(300, 500)  # many more move before it is dead
        kills += await _kill_when(process, _watch(connection, aim))
    # A job that cannot find the end of its selection stops with a reason. A new job moves the
    # remaining messages.
    out = b""
    for _ in range(3):
        process = await _spawn(url, folder, IN_FLIGHT, *management_url)
        out, _ = await asyncio.wait_for(process.communicate(), 180)
        assert process.returncode == 0
        if b"completed" in out:
            break
    assert b"completed" in out
    assert kills >= KILLS // 2
    assert await _depth(connection, DLQ) == 0
    found = await _drain(connection)
    await connection.close()
    assert set(found) == set(expected)
    doubles = 0
    for number, prints in found.items():
        assert set(prints) == {expected[number]}
        doubles += prints.total() - 1
    assert doubles <= KILLS * IN_FLIGHT


async def _fill(url: str, management: Management, vhost: str) -> dict[int, str]:
    """Publish the dead letters and return their fingerprints."""
    place = vhost.replace("/", "%2F")
    management.call("PUT", f"/users/{FOREIGN_USER}", {"password": "a", "tags": ""})
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    management.call("PUT", f"/permissions/{place}/{FOREIGN_USER}", everything)
    user = url.replace("guest:guest@", f"{FOREIGN_USER}:a@")
    connection = await RabbitMQ(user).connect("test")
    channel = await connection.open_channel()
    limit = {"x-delivery-limit": NO_DELIVERY_LIMIT}
    for name in (DLQ, MAIN):
        await channel.declare_queue(Queue(name, QueueType.QUORUM, arguments=limit))
    expected: dict[int, str] = {}
    fates: set[asyncio.Future[None]] = set()
    for number, message in enumerate(mixed_messages(DLQ, COUNT, LARGE)):
        expected[number] = fingerprint_before(message)
        await channel.room()
        fate = channel.publish(message)
        fates.add(fate)
        fate.add_done_callback(fates.discard)
    await asyncio.gather(*fates)
    await connection.close()
    return expected


async def _spawn(
    url: str, folder: Path, in_flight: int = IN_FLIGHT, *management: str
) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.integration.ops.redriving_process", url,
        f"sqlite:///{folder / 'jobs.db'}", DLQ, MAIN, str(in_flight), *management,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert await process.stdout.readline() == b"going\n"
    return process


async def _kill_when(process: asyncio.subprocess.Process, enough: asyncio.Task[None]) -> int:
    """Kill the process with SIGKILL when enough messages have arrived.

    Return 0 if it finished before.
    """
    ended = asyncio.ensure_future(process.wait())
    await asyncio.wait({ended, enough}, return_when=asyncio.FIRST_COMPLETED)
    enough.cancel()
    if ended.done():
        return 0
    process.kill()
    await ended
    return 1


def _watch(connection: Connection, aim: int) -> asyncio.Task[None]:
    async def look() -> None:
        while await _depth(connection, MAIN) < aim:  # noqa: ASYNC110 - only looking tells
            await asyncio.sleep(0.01)

    return asyncio.create_task(look())


async def _depth(connection: Connection, queue: str) -> int:
    channel = await connection.open_channel()
    state = await channel.declare_queue(Queue(queue), passive=True)
    await channel.close()
    return state.messages


async def _drain(connection: Connection) -> dict[int, Counter[str]]:
    """Everything that arrived: by number, the fingerprints of its copies."""
    found: dict[int, Counter[str]] = {}
    count = await _depth(connection, MAIN)
    ended = asyncio.Event()
    channel = await connection.open_channel()
    seen = 0

    def take(delivery: Delivery) -> None:
        nonlocal seen
        number = delivery.properties.headers[NUMBER]
        assert isinstance(number, int)
        found.setdefault(int(number), Counter())[fingerprint_after(delivery)] += 1
        channel.ack(delivery.tag)
        seen += 1
        if seen == count:
            ended.set()

    await channel.qos(500)
    await channel.consume(MAIN, take)
    async with asyncio.timeout(60):
        await ended.wait()
    await channel.close()
    return found
