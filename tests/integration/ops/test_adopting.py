"""The page about adopting a queue, played on a real RabbitMQ, with messages in the queue."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hopback import RabbitMQ, compose
from hopback.topology import Binding, Exchange, ExchangeType, Queue, QueueType
from tests.docs.pages import ROOT, blocks
from tests.integration.waiting import until

if TYPE_CHECKING:
    from hopback.broker.port import Channel
    from tests.harness.shared import SharedNode

pytestmark = pytest.mark.broker

_PAGE = (ROOT / "docs/how-to/adopt-a-queue.md").read_text(encoding="utf-8")
_COUNT = 200


def _commands() -> list[str]:
    """The commands of the page, in order."""
    lines = [line for one in blocks(_PAGE) if one.language == "sh" for line in one.text.split("\n")]
    return [line for line in lines if line.startswith("hopback ")]


async def _found_on_the_broker(channel: Channel) -> None:
    """A classic queue without any plan, with a binding that no file knows and messages of all kinds."""
    await channel.declare_exchange(Exchange("shop.events", ExchangeType.TOPIC))
    await channel.declare_queue(Queue("orders", QueueType.CLASSIC))
    await channel.bind(Binding("shop.events", "orders", "order.*"))
    for number in range(_COUNT):
        order = {"id": number, "fails": number % 20 == 0}
        await channel.publish(compose("order.placed", order, exchange="shop.events"))
    await channel.publish(compose("orders", b"not an order"))


async def _run(command: str, folder: Path, environment: dict[str, str]) -> tuple[int | None, str]:
    ran = await asyncio.create_subprocess_shell(
        command, cwd=folder, env=environment, stdin=DEVNULL, stdout=PIPE, stderr=PIPE
    )
    out, err = await ran.communicate()
    return ran.returncode, (out + err).decode()


@pytest.mark.waits(50)
async def test_page_migrates_queue_without_losing_messages(
    tmp_path: Path, amqp_url: str, rabbitmq: SharedNode
) -> None:
    """All messages are handled, failures follow the new plan, and bindings are kept."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOPBACK_BROKER": amqp_url,
        "HOPBACK_MANAGEMENT": rabbitmq.management_url,
    }
    for block in blocks(_PAGE):
        if block.title is not None:
            (tmp_path / block.title).write_text(block.text)
    connection = await RabbitMQ(amqp_url).connect("test")
    channel = await connection.open_channel()
    await _found_on_the_broker(channel)
    *before, run = _commands()
    said = ""
    for command in before:
        code, told = await _run(command, tmp_path, environment)
        assert code == 0, told
        said += told
    assert "1. As it is" in said
    assert "0 in conflict" in said
    assert "set policy hopback-adopt.orders" in said
    assert "orders is replaced: classic -> quorum" in said
    assert f"Done: {_COUNT + 1} messages moved" in said
    out = tmp_path / "out"
    with out.open("wb") as stream:
        service = await asyncio.create_subprocess_shell(
            f"exec {run}", cwd=tmp_path, env=environment, stdout=stream, stderr=DEVNULL
        )
    try:
        await until(lambda: len(set(out.read_text().split("\n")) - {""}) == _COUNT)
        await channel.publish(compose("order.placed", {"id": "new"}, exchange="shop.events"))
        await until(lambda: "order new" in out.read_text())
    finally:
        service.send_signal(signal.SIGTERM)
        await service.wait()
    assert service.returncode == 0
    dead = await channel.get("orders.dlq")
    assert dead is not None
    assert dead.body == b"not an order"
    assert await channel.get("orders.dlq") is None
    assert await channel.get("orders") is None
    await connection.close()
