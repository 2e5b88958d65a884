"""`hopback adopt` on queues that pika and aio-pika made, with 500 messages inside: none is lost."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

import aio_pika
import pika  # type: ignore[import-untyped]
import pytest

from hopback import App, RabbitMQ, Service
from hopback.broker.declare import declare, look_for
from hopback.broker.management import Management, ManagementAddress
from hopback.broker.port import count
from hopback.broker.server.settings import ClockKind, ServerSettings
from hopback.cli.app import run
from hopback.errors import TopologyConflict
from hopback.ops.brokers.adoption import revert_beside, set_beside
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.testing import BrokerThread
from hopback.topology import read_toml
from hopback.topology.model import Policy
from tests.harness.versions import SUITES, installations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.harness.rabbitmq import RabbitNode
    from tests.harness.shared import SharedNode

pytestmark = pytest.mark.broker

_COUNT = 500
_REJECTED = 40
_FORMS: dict[str, dict[str, object]] = {
    "classic": {"x-max-length": 100_000},
    "quorum": {"x-queue-type": "quorum", "x-delivery-limit": 50},
}


@pytest.fixture(params=["rabbitmq", "hopback broker"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The AMQP URL of an empty virtual host. The environment names it for the command."""
    with ExitStack() as stack:
        if request.param == "rabbitmq":
            node: SharedNode = request.getfixturevalue("rabbitmq")
            url, http = request.getfixturevalue("amqp_url"), node.management_url
        else:
            settings = ServerSettings(port=0, http_port=0, clock=ClockKind.SYSTEM)
            server = stack.enter_context(BrokerThread(settings))
            url, http = server.url, server.http_url
            url = url if url.endswith("/") else f"{url}/"
            http = http.replace("://", "://guest:guest@") if "@" not in http else http
        monkeypatch.setenv("HOPBACK_BROKER", url)
        monkeypatch.setenv("HOPBACK_MANAGEMENT", http)
        yield url


def _made_by_pika(url: str, arguments: dict[str, object]) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.exchange_declare("shop", "topic", durable=True)
    channel.queue_declare("orders", durable=True, arguments=arguments)
    channel.queue_bind("orders", "shop", "order.*")
    for number in range(_COUNT):
        channel.basic_publish("shop", "order.placed", json.dumps({"id": number}).encode())
    connection.close()


async def _made_by_aio_pika(url: str, arguments: dict[str, object]) -> None:
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange("shop", "topic", durable=True)
        queue = await channel.declare_queue("orders", durable=True, arguments=arguments)  # type: ignore[arg-type]
        await queue.bind(exchange, "order.*")
        for number in range(_COUNT):
            body = json.dumps({"id": number}).encode()
            await exchange.publish(aio_pika.Message(body, delivery_mode=2), "order.placed")


async def _counts(url: str, *queues: str) -> list[int]:
    connection = await RabbitMQ(url).connect("test")
    channel = await connection.open_channel()
    found = [(await count(channel, name)).messages for name in queues]
    await connection.close()
    return found


@pytest.mark.parametrize(("form", "maker"), [("classic", "pika"), ("quorum", "aio-pika")])
async def test_beside_policy_keeps_messages_rejected_by_old_consumer(
    where: str, form: str, maker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """All keys of the former policy stay in force. Reverting restores it."""
    arguments = _FORMS[form]
    if maker == "pika":
        await asyncio.to_thread(_made_by_pika, where, arguments)
    else:
        await _made_by_aio_pika(where, arguments)
    vhost = where.rsplit("/", 1)[1] or "/"
    former = Policy("limits", "^orders$", {"max-length": 50_000, "expires": 3_600_000}, 4, "queues")
    async with Management(ManagementAddress.derive(where, _environment())) as management:
        await management.put_policy(vhost, former)
    assert await asyncio.to_thread(run, ["adopt", "orders", "beside", "--apply", "--yes"]) == 0
    said = capsys.readouterr().out
    assert "created queue orders.dlq" in said
    for key in ("max-length: 50000", "expires: 3600000", 'dead-letter-exchange: ""'):
        assert key in said
    await asyncio.to_thread(_reject_some, where)
    await _until_counted(where, {"orders": _COUNT - _REJECTED, "orders.dlq": _REJECTED})
    assert await asyncio.to_thread(run, ["adopt", "orders", "beside", "--revert", "--yes"]) == 0
    async with Management(ManagementAddress.derive(where, _environment())) as management:
        assert await management.policies(vhost) == (former,)
    assert await _counts(where, "orders", "orders.dlq") == [_COUNT - _REJECTED, _REJECTED]


@pytest.mark.all_brokers
@pytest.mark.parametrize("suite", sorted(SUITES))
async def test_beside_policy_works_on_newer_versions(
    start_rabbitmq: Callable[..., RabbitNode], suite: str
) -> None:
    """A refused start lists every difference and creates no queue."""
    node = start_rabbitmq(installation=installations()[suite])
    await asyncio.to_thread(_made_by_pika, node.url, _FORMS["classic"])
    connection = await RabbitMQ(node.url).connect("test")
    wanted = App("shop")
    wanted.queue("orders", retry=["1s"])
    with pytest.raises(TopologyConflict) as refused:
        await declare(connection, wanted.topology)
    lines = str(refused.value).splitlines()
    assert lines[2].strip() == 'type: "quorum" desired, "classic" on the broker'
    for name in ("exchange", "routing-key", "strategy"):
        assert f"x-dead-letter-{name}: " in str(refused.value)
    assert "x-delivery-limit: 200 desired" in str(refused.value)
    assert "x-max-length: nothing desired, 100000 on the broker" in str(refused.value)
    found = await look_for(connection, wanted.topology.queues)
    assert [item.name for item, missing in found if missing is None] == ["orders"]
    address = ManagementAddress.derive(node.url, node.management_url)
    async with Management(address) as management:
        managed = ManagedBroker(RabbitMQ(node.url), management=management)
        await set_beside(managed, "orders")
        await asyncio.to_thread(_reject_some, node.url)
        await _until_counted(node.url, {"orders": _COUNT - _REJECTED, "orders.dlq": _REJECTED})
        assert await revert_beside(managed, "orders") is not None
        await managed.close()
    await connection.close()


def _environment() -> str:
    return os.environ["HOPBACK_MANAGEMENT"]


async def _until_counted(url: str, expected: dict[str, int]) -> None:
    async with asyncio.timeout(20):
        while await _counts(url, *expected) != [*expected.values()]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def _reject_some(url: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    for _ in range(_REJECTED):
        method, _, _ = channel.basic_get("orders")
        channel.basic_reject(method.delivery_tag, requeue=False)
    connection.close()


@pytest.mark.parametrize(("form", "maker"), [("classic", "aio-pika"), ("quorum", "pika")])
async def test_adopted_queue_keeps_its_declaration_and_processes_500_messages(
    where: str, form: str, maker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each message is handled or parked. The former owner can still declare the queue."""
    arguments = _FORMS[form]
    if maker == "pika":
        await asyncio.to_thread(_made_by_pika, where, arguments)
    else:
        await _made_by_aio_pika(where, arguments)
    command = ["adopt", "orders", "as-it-is", "--retry", "50ms"]
    assert await asyncio.to_thread(run, command) == 0
    topology = read_toml(capsys.readouterr().out)
    app = App("shop", topology=topology)
    handled: list[int] = []

    @app.handler("orders", concurrency=50)
    async def handle(order: dict[str, int]) -> None:
        if order["id"] % 50 == 0:
            raise ValueError("never works")
        handled.append(order["id"])

    service = Service(app, RabbitMQ(where))
    task = asyncio.create_task(service.run())
    await service.ready.wait()
    await _until_counted(where, {"orders": 0, "orders.retry.50ms": 0, "orders.dlq": 10})
    service.stop()
    await task
    assert sorted(handled) == [number for number in range(_COUNT) if number % 50]
    if maker == "pika":  # the former owner still declares it and sends the same number of messages
        await asyncio.to_thread(_made_by_pika, where, arguments)
    else:
        await _made_by_aio_pika(where, arguments)
    assert await _counts(where, "orders", "orders.dlq") == [_COUNT, 10]
    assert await asyncio.to_thread(run, ["adopt", "orders", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (looked,) = found["dead_letters"].values()
    assert (looked["seen"], looked["items"][0]["sample"]["error"]) == (10, "ValueError")
