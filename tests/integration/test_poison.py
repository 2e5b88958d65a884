"""A message that kills real processes, on a real RabbitMQ: it is parked for it, its neighbours are not."""

from __future__ import annotations

import asyncio
import signal
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from hopback.broker.rabbitmq import RabbitMQ
from hopback.headers import read_history
from hopback.message import Message, Properties
from hopback.topology.model import Queue
from tests.harness.versions import SUITES, installations

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from hopback.broker.port import Connection
    from tests.harness.rabbitmq import RabbitNode

pytestmark = pytest.mark.broker

INNOCENTS = 400
_BY_LIMIT = "the broker's limit"
# A dozen processes die and restart. No assertion depends on the time.
_PATIENCE_S = 400.0

_APP = """
    import os, signal
    from dataclasses import replace
    from pathlib import Path
    from hopback import App

    bare = App("shop")
    bare.queue("orders", retry=["1s"])
    whole = bare.topology
    queues = tuple(
        replace(one, arguments={**one.arguments, "x-delivery-limit": 8})
        if one.name == "orders" else one
        for one in whole.queues
    )
    app = App("shop", topology=replace(whole, queues=queues))

    def note(name, number):
        with Path(name).open("a") as file:
            file.write(f"{number}\\n")

    @app.handler("orders", concurrency=10, prefetch=40)
    async def handle(number: int) -> None:
        if number == -1:
            note("deaths", os.getpid())
            os.kill(os.getpid(), signal.SIGKILL)
        if number == -2:
            note("exits", os.getpid())
            os._exit(7)
        note("handled", number)
"""


@pytest.mark.waits(14)
async def test_poison_message_is_parked_alone(amqp_url: str, tmp_path: Path) -> None:
    """The prefetch is 40 and the limit 8."""
    await _run_poison(amqp_url, tmp_path, {-1: "deaths"})


@pytest.mark.all_brokers
@pytest.mark.parametrize("suite", sorted(SUITES))
async def test_poison_message_is_parked_alone_on_newer_brokers(
    suite: str, start_rabbitmq: Callable[..., RabbitNode], tmp_path: Path
) -> None:
    """RabbitMQ 4.0 and 4.3, with a second message that exits."""
    node = start_rabbitmq(installation=installations()[suite])
    await _run_poison(node.url, tmp_path, {-1: "deaths", -2: "exits"})


async def _run_poison(url: str, folder: Path, poisons: dict[int, str]) -> None:
    """`poisons`: the deadly messages, each with the file in which its handler counts."""
    (folder / "shop.py").write_text(textwrap.dedent(_APP))
    connection = await RabbitMQ(url).connect("test")
    command = [sys.executable, "-m", "hopback", "run", "shop:app", "--processes", "2"]
    process = await asyncio.create_subprocess_exec(*command, "--broker", url, cwd=folder)
    try:
        await _until(lambda: _is_declared(connection))
        channel = await connection.open_channel()
        numbers = list(range(INNOCENTS))
        for place, poison in zip((50, 101), poisons, strict=False):
            numbers.insert(place, poison)
        for number in numbers:
            properties = Properties(message_id=str(number), delivery_mode=2)
            await channel.publish(Message("", "orders", str(number).encode(), properties))
        await _until(lambda: _depth(connection, "orders.dlq", len(poisons)))
        await _until(lambda: _has_handled(folder))
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()
    parked = {}
    while (one := await channel.get("orders.dlq")) is not None:
        failure = read_history(one.properties.headers, "orders").failure
        # If both are unacked, the death of one redelivers the other, which the broker counts.
        by_limit = one.properties.headers.get("x-first-death-reason") == "delivery_limit"
        parked[int(one.body)] = failure.message if failure else by_limit * _BY_LIMIT
    await connection.close()
    assert set(parked) == set(poisons)
    assert process.returncode == 0
    for number, name in poisons.items():
        why = parked[number]
        alone = "times while this message alone was being handled" in why
        assert alone or why == _BY_LIMIT
        # Three times alone, before that up to three windows unless deaths of the other had made it
        # suspected, and once for a sibling process without this knowledge.
        assert 3 * alone <= len((folder / name).read_text().split()) <= 8


async def _until(reached: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while not await reached():  # noqa: ASYNC110 - the broker tells nobody
            await asyncio.sleep(0.2)


async def _is_declared(connection: Connection) -> bool:
    """A queue that is not there closes the channel that asks."""
    try:
        return await _depth(connection, "orders", 0) and await _depth(connection, "orders.dlq", 0)
    except Exception:
        return False


async def _depth(connection: Connection, queue: str, wanted: int) -> bool:
    channel = await connection.open_channel()
    state = await channel.declare_queue(Queue(queue), passive=True)
    await channel.close()
    return state.messages == wanted


async def _has_handled(folder: Path) -> bool:
    file = folder / "handled"
    return file.exists() and set(range(INNOCENTS)) <= set(map(int, file.read_text().split()))
