"""Direct replies: a client that waits on RabbitMQ's reply queue gets its answer, once."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pika  # type: ignore[import-untyped]
import pytest

from hopback import App, Context, NoReply, RabbitMQ, RequestClient, Service
from hopback.errors import Returned
from hopback.testing import AppThread
from tests.harness.versions import SUITES, installations
from tests.integration.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.rabbitmq import RabbitNode


def _ask(url: str, number: int) -> Any:
    """Ask as any AMQP client does, without a queue for the answer."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    answers: list[bytes] = []

    def on_answer(_channel: Any, _method: Any, _properties: Any, body: bytes) -> None:
        answers.append(body)
        channel.stop_consuming()

    channel.basic_consume("amq.rabbitmq.reply-to", on_answer, auto_ack=True)
    asking = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id="c1")
    channel.basic_publish("", "squares", json.dumps(number), asking)
    channel.start_consuming()
    connection.close()
    return json.loads(answers[0])


def test_direct_reply_is_delivered_and_request_done(amqp_url: str) -> None:
    """RabbitMQ delivers a direct reply and also returns it as unroutable."""
    app = App("calculator")

    @app.handler("squares", retry=["1s"])
    async def square(number: int, context: Context) -> None:
        reply_to = context.delivery.properties.reply_to
        assert reply_to is not None
        await context.publish(reply_to, number * number)

    with AppThread(app, amqp_url) as running:
        assert _ask(amqp_url, 7) == 49
    assert len(running.find_events("delivery.done")) == 1
    assert not running.find_events("delivery.retried")
    assert not running.find_events("publish.failed")


async def _questions(url: str) -> None:
    app = App("calculator")

    @app.handler("squares.asked", retry=None, replies=True)
    async def square(number: int) -> int:
        if number < 0:
            await asyncio.sleep(2)
        return number * number

    service = Service(app, RabbitMQ(url))
    running = asyncio.create_task(service.run())
    await asyncio.wait_for(service.ready.wait(), 60)
    async with RequestClient(RabbitMQ(url)) as client:
        asked = (client.request("squares.asked", n, timeout="60s") for n in range(100))
        assert await asyncio.gather(*asked) == [n * n for n in range(100)]
        with pytest.raises(NoReply):
            await client.request("squares.asked", -1, timeout=0.2)
        with pytest.raises(Returned):
            await client.request("squares.nowhere", 1)
        await until(lambda: client.late == 1)
        assert await client.request("squares.asked", 7, timeout="60s") == 49
    assert await app.request("squares.asked", 8, timeout="60s") == 64
    service.stop()
    await running


@pytest.mark.broker
async def test_requests_get_their_replies(amqp_url: str) -> None:
    """A hundred run at once. A late one disturbs no other, and an unroutable one is returned."""
    await _questions(amqp_url)


@pytest.mark.broker
@pytest.mark.all_brokers
@pytest.mark.parametrize("suite", sorted(SUITES))
async def test_requests_get_their_replies_on_newer_brokers(
    start_rabbitmq: Callable[..., RabbitNode], suite: str
) -> None:
    await _questions(start_rabbitmq(installation=installations()[suite]).url)
