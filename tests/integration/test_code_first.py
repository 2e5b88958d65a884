"""A queue found on a broker, taken over by an application that declares its topology in code."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

import pytest

from hopback import RabbitMQ, compose
from hopback.broker.management import Management, ManagementAddress
from hopback.cli.app import run
from hopback.topology import Binding, Exchange, ExchangeType, Queue, QueueType

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.shared import SharedNode

pytestmark = pytest.mark.broker

_MODULE = """
from hopback import App

app = App("shop")

@app.handler("orders", retry=["1s"], attempts=2, bind={"shop.events": "order.*"})
async def handle(order: dict) -> None: ...
"""
_COUNT = 50


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an application, as a command takes it."""
    (tmp_path / "code_first_shop.py").write_text(_MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "code_first_shop", raising=False)
    return "code_first_shop:app"


@pytest.fixture
def where(
    amqp_url: str, rabbitmq: SharedNode, monkeypatch: pytest.MonkeyPatch
) -> ManagementAddress:
    """The broker of this test, as the environment names it."""
    monkeypatch.setenv("HOPBACK_BROKER", amqp_url)
    monkeypatch.setenv("HOPBACK_MANAGEMENT", rabbitmq.management_url)
    return ManagementAddress.derive(None, rabbitmq.management_url)


async def _found_on_the_broker(url: str) -> None:
    """A classic queue with a limit and two bindings, one of which the application does not know."""
    connection = await RabbitMQ(url).connect("test")
    channel = await connection.open_channel()
    await channel.declare_exchange(Exchange("shop.events", ExchangeType.TOPIC))
    limit = {"x-max-length": 100_000}
    await channel.declare_queue(Queue("orders", QueueType.CLASSIC, arguments=limit))
    for key in ("order.*", "refund.*"):
        await channel.bind(Binding("shop.events", "orders", key))
    for number in range(_COUNT):
        await channel.publish(compose("order.placed", {"id": number}, exchange="shop.events"))
    await connection.close()


async def _queues(where: ManagementAddress, vhost: str) -> dict[str, str]:
    """The queues of the virtual host and their types."""
    async with Management(where) as told:
        live = await told.live_topology(vhost)
    return {one.name: str(one.type) for one in live.queues}


async def _delete(url: str) -> None:
    connection = await RabbitMQ(url).connect("test")
    channel = await connection.open_channel()
    await channel.delete_queue("orders")
    await connection.close()


def test_application_is_accepted_by_plan_and_apply(
    target: str,
    where: ManagementAddress,
    amqp_url: str,
    vhost: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`run` fails with all differences and creates no queue."""
    asyncio.run(_found_on_the_broker(amqp_url))
    assert run(["run", target]) == 6
    refused = capsys.readouterr().err
    assert '    type: "quorum" desired, "classic" on the broker' in refused
    assert "    x-max-length: nothing desired, 100000 on the broker" in refused
    assert f"`hopback topology plan {target}`" in refused
    assert f"`hopback topology migrate {target}`" in refused
    assert asyncio.run(_queues(where, vhost)) == {"orders": "classic"}

    assert run(["topology", "plan", target, "-o", "json", "--detailed-exit-code"]) == 10
    planned = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in planned["conflicts"]] == ["orders"]
    asyncio.run(_delete(amqp_url))
    assert run(["topology", "apply", target, "--yes"]) == 0
    capsys.readouterr()
    assert run(["topology", "plan", target, "-o", "json", "--detailed-exit-code"]) == 0
    assert json.loads(capsys.readouterr().out)["settled"] is True
    assert asyncio.run(_queues(where, vhost))["orders"] == "quorum"
