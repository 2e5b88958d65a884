"""Direct replies: a client that waits on RabbitMQ's reply queue gets its answer, once."""

from __future__ import annotations

import json
from typing import Any

import pika  # type: ignore[import-untyped]

from hopback import App, Context
from hopback.testing import AppThread


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


def test_a_reply_is_delivered_and_its_request_done(amqp_url: str) -> None:
    """RabbitMQ delivers a direct reply and returns it as unroutable: that is no failure."""
    app = App("calculator")

    @app.handler("squares", retry=["1s"])
    async def square(number: int, context: Context) -> None:
        reply_to = context.delivery.properties.reply_to
        assert reply_to is not None
        await context.publish("", reply_to, number * number)

    with AppThread(app, amqp_url) as running:
        assert _ask(amqp_url, 7) == 49
    assert len(running.happened("delivery.done")) == 1
    assert not running.happened("delivery.retried")
    assert not running.happened("publish.failed")
