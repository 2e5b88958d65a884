"""The same requests to RabbitMQ and to the broker on a socket give the same answers.

The conformance suite uses Hopback's client. These tests compare every answer: names, arguments,
codes and texts, in order.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from hopback.broker.rabbitmq import RabbitMQ
from hopback.broker.server import BrokerServer, ServerSettings
from hopback.message import Properties
from hopback.version import BrokerVersion
from hopback.wire import Delivered, Got, MethodReceived, ReturnedMessage, SettlementReceived
from hopback.wire.properties import encode_properties
from tests.harness.rabbitmq import RabbitNode
from tests.harness.versions import SUITES, build
from tests.integration.raw_client import RawClient

if TYPE_CHECKING:
    from hopback.fields import Headers
    from tests.harness.shared import SharedNode

pytestmark = pytest.mark.broker

_Step: TypeAlias = "tuple[str, dict[str, Any]]"
_REPLY_TO = "amq.rabbitmq.reply-to"


def _headers(headers: Headers, **more: Any) -> bytes:
    return encode_properties(Properties(headers=headers, **more))


def _declare(queue: str, arguments: Headers | None = None, **more: Any) -> _Step:
    return ("queue.declare", {"queue": queue, "arguments": arguments or {}, **more})


def _exchange(name: str, kind: str, **more: Any) -> _Step:
    return ("exchange.declare", {"exchange": name, "type": kind, **more})


def _publish(key: str, **more: Any) -> _Step:
    return ("publish", {"key": key, **more})


def _consume(queue: str, **more: Any) -> _Step:
    return ("basic.consume", {"queue": queue, "consumer_tag": "c", **more})


_Q = _declare("q")
_TALKS: dict[str, list[_Step]] = {
    "declare": [_Q, _Q, ("queue.purge", {"queue": "q"}), ("queue.delete", {"queue": "q"})],
    "server-named": [("queue.declare", {"queue": ""}), ("queue.delete", {"queue": ""})],
    "passive and missing": [_declare("none", passive=True)],
    "exchange passive and missing": [_exchange("none", "direct", passive=True)],
    "reserved queue name": [_declare("amq.mine")],
    "reserved exchange name": [_exchange("amq.mine", "direct")],
    "unknown exchange type": [_exchange("e", "x-no-such-type")],
    "default exchange declared": [_exchange("", "direct")],
    "exchange again with another type": [_exchange("e", "direct"), _exchange("e", "topic")],
    "queue again with another ttl": [_Q, _declare("q", {"x-message-ttl": 5})],
    "queue again, durable": [_Q, _declare("q", durable=True)],
    "ttl of text": [_declare("q", {"x-message-ttl": "soon"})],
    "negative ttl": [_declare("q", {"x-message-ttl": -1})],
    "unknown queue type": [_declare("q", {"x-queue-type": "fast"})],
    "transient quorum": [_declare("q", {"x-queue-type": "quorum"})],
    "quorum with priorities": [
        _declare("q", {"x-queue-type": "quorum", "x-max-priority": 3}, durable=True)
    ],
    "bind without exchange": [_Q, ("queue.bind", {"queue": "q", "exchange": "none"})],
    "bind without queue": [("queue.bind", {"queue": "none", "exchange": "amq.direct"})],
    "bind to the default exchange": [_Q, ("queue.bind", {"queue": "q", "exchange": ""})],
    "unbind a missing binding": [_Q, ("queue.unbind", {"queue": "q", "exchange": "amq.direct"})],
    "no queue declared": [("basic.get", {"queue": ""})],
    "get from nowhere": [("basic.get", {"queue": "none"})],
    "get": [_Q, _publish("q"), ("basic.get", {"queue": "q", "no_ack": True})],
    "get from an empty queue": [_Q, ("basic.get", {"queue": "q"})],
    "consume": [_Q, _consume("q"), _publish("q"), ("basic.cancel", {"consumer_tag": "c"})],
    "consume from nowhere": [_consume("none")],
    "a tag twice": [_Q, _consume("q"), _consume("q")],
    "consume exclusively, twice": [
        _Q,
        _consume("q", exclusive=True),
        ("basic.consume", {"queue": "q", "consumer_tag": "other"}),
    ],
    "cancel a missing consumer": [("basic.cancel", {"consumer_tag": "missing"})],
    "delete a queue that is consumed": [_Q, _consume("q"), ("queue.delete", {"queue": "q"})],
    "delete if unused": [_Q, _consume("q"), ("queue.delete", {"queue": "q", "if_unused": True})],
    "delete if empty": [
        _Q,
        ("confirm.select", {}),
        _publish("q"),
        ("await", {}),
        ("queue.delete", {"queue": "q", "if_empty": True}),
    ],
    "delete missing objects": [
        ("queue.delete", {"queue": "none"}),
        ("exchange.delete", {"exchange": "x"}),
    ],
    "delete a system exchange": [("exchange.delete", {"exchange": "amq.topic"})],
    "delete an exchange in use": [
        _Q,
        _exchange("e", "fanout"),
        ("queue.bind", {"queue": "q", "exchange": "e"}),
        ("exchange.delete", {"exchange": "e", "if_unused": True}),
    ],
    "confirm": [_Q, ("confirm.select", {}), _publish("q")],
    "return": [("confirm.select", {}), _publish("none", mandatory=True)],
    "publish to no exchange": [("confirm.select", {}), _publish("k", exchange="none")],
    "publish to an internal exchange": [
        _exchange("e", "fanout", internal=True),
        _publish("k", exchange="e"),
    ],
    "publish as another user": [_publish("q", properties=_headers({}, user_id="ann"))],
    "wrong expiration": [_publish("q", properties=_headers({}, expiration="soon"))],
    "immediate": [_Q, _publish("q", immediate=True)],
    "an unknown tag": [("ack", {"tag": 7})],
    "prefetch size": [("basic.qos", {"prefetch_size": 9})],
    "recover without requeue": [("basic.recover", {"requeue": False})],
    "recover": [("basic.recover", {"requeue": True})],
    "flow": [("channel.flow", {"active": True})],
    "tx": [
        _Q,
        ("tx.select", {}),
        _publish("q"),
        _declare("q", passive=True),
        ("tx.rollback", {}),
        _publish("q"),
        ("tx.commit", {}),
        _declare("q", passive=True),
    ],
    "commit without tx": [("tx.commit", {})],
    "tx after confirms": [("confirm.select", {}), ("tx.select", {})],
    "confirms after tx": [("tx.select", {}), ("confirm.select", {})],
    "direct reply-to": [
        _declare(_REPLY_TO, passive=True),
        _consume(_REPLY_TO, no_ack=True),
        ("basic.cancel", {"consumer_tag": "c"}),
    ],
    "reply-to with acks": [_consume(_REPLY_TO)],
    "reply-to without consumer": [_Q, _publish("q", properties=_headers({}, reply_to=_REPLY_TO))],
    "a headers binding with a wrong match": [
        _Q,
        (
            "queue.bind",
            {"queue": "q", "exchange": "amq.headers", "arguments": {"x-match": "some"}},
        ),
    ],
    "CC of text": [_Q, _publish("q", properties=_headers({"CC": "other"}))],
    "consumer priority of text": [_Q, _consume("q", arguments={"x-priority": "high"})],
}


async def _talk(client: RawClient, steps: list[_Step], least: int) -> list[object]:
    """Send all steps and return at least `least` answers."""
    answers: list[object] = []
    for name, arguments in steps:
        if client.core.channels.get(1) is None or not client.core.channels[1].open:
            break
        match name:
            case "publish":
                client.publish(**arguments)
            case "ack":
                client.core.channels[1].settlements.ack(arguments["tag"])
            case "await":
                answers.append(_describe(await client.event()))
            case _:
                client.send(1, name, **arguments)
                answers += await _wait_for_answer(client, name)
    if steps[-1][0] in ("publish", "ack", "queue.delete"):
        answers += await client.rest(_describe, least - len(answers))
    # RabbitMQ sends a consumer cancel concurrently with the answer to the delete.
    return sorted(answers, key=str) if "delete" in steps[-1][0] else answers


async def _wait_for_answer(client: RawClient, name: str) -> list[object]:
    answers: list[object] = []
    while True:
        event = await client.event()
        answers.append(_describe(event))
        if isinstance(event, Got):
            return answers
        if isinstance(event, MethodReceived):
            closing = event.name in ("channel.close", "connection.close")
            if closing or event.name.removesuffix("-empty").removesuffix("-ok") == name:
                return answers


def _describe(event: object) -> object:
    """Return an event without values that differ between runs."""
    match event:
        case MethodReceived():
            text = f"{event.name} {dict(sorted(event.arguments.items()))}"
        case SettlementReceived():
            text = f"{event.name} {event.tag}"
        case ReturnedMessage():
            text = f"return {event.code} {event.text} {event.routing_key}"
        case Delivered():
            text = f"delivered {event.tag} {event.redelivered} {event.routing_key} {event.body!r}"
        case _:
            text = repr(event)
    text = re.sub(r"\btest-[0-9a-f]{12}\b", "/", text)
    return re.sub(r"amq\.(gen|ctag)-[\w-]+", r"amq.\1-made-up", text)


def _with_unique_names(steps: list[_Step], number: int) -> list[_Step]:
    """Return the steps with names that no other conversation uses."""
    return [
        (
            name,
            {key: f"{each}{number}" if each in ("q", "e") else each for key, each in said.items()},
        )
        for name, said in steps
    ]


async def test_embedded_broker_and_rabbitmq_answer_the_same(
    rabbitmq: SharedNode, vhost: str, amqp_url: str
) -> None:
    """Every answer of every conversation, in order."""
    connection = await RabbitMQ(amqp_url).connect()
    version = connection.version
    await connection.close()
    assert await _differences(rabbitmq.url, vhost, version) == {}


@pytest.mark.all_brokers
@pytest.mark.parametrize("suite", SUITES)
def test_embedded_broker_and_newer_rabbitmq_answer_the_same(suite: str) -> None:
    with RabbitNode(build(suite)) as node:
        version = BrokerVersion.parse(node.management.call("GET", "/overview")["rabbitmq_version"])
        assert asyncio.run(_differences(node.url, "/", version)) == {}


async def _differences(url: str, vhost: str, version: BrokerVersion) -> dict[str, object]:
    differing: dict[str, object] = {}
    async with BrokerServer(ServerSettings(port=0, http_port=None, version=version)) as server:
        for number, (name, talk) in enumerate(_TALKS.items()):
            steps = _with_unique_names(talk, number)
            embedded = await _answers(server.url, "/", steps)
            real = await _answers(url, vhost, steps, least=len(embedded))
            if embedded != real:
                differing[name] = (embedded, real)
    return differing


async def _answers(url: str, vhost: str, steps: list[_Step], least: int = 0) -> list[object]:
    client = RawClient(url)
    await client.connect()
    await client.log_in(virtual_host=vhost)
    await client.call(1, "channel.open")
    answers = await _talk(client, steps, least)
    client.writer.close()
    with suppress(OSError):
        await client.writer.wait_closed()
    return answers
