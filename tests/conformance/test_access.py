"""Users, virtual hosts and permissions: RabbitMQ and the broker on a socket answer the same.

Calls of the management API are compared by status, and by text if refused. AMQP conversations are
compared by names, codes and texts.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import re
import uuid
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

import pytest

from hopback.broker.server import BrokerServer, ServerSettings
from hopback.errors import ConnectionFailed
from hopback.version import BrokerVersion
from hopback.wire import MethodReceived
from tests.harness.rabbitmq import RabbitNode
from tests.harness.versions import SUITES, build
from tests.integration.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.wire import Event
    from tests.harness.shared import SharedNode

pytestmark = pytest.mark.broker

_Call: TypeAlias = "tuple[str, str, str, object]"
_Step: TypeAlias = "tuple[str, dict[str, Any]]"

_SOME = {"configure": "^a", "write": r"^(a|amq\.topic)", "read": r"^(a|amq\.topic|readable)"}
_ALL = {"configure": ".*", "write": ".*", "read": ".*"}
_NONE = {"configure": "", "write": "", "read": ""}

# User, method, path, body. VHOST and the user names are made unique for each run.
_CALLS: list[_Call] = [
    ("guest", "PUT", "/vhosts/VHOST", {}),
    ("guest", "PUT", "/vhosts/VHOST", {}),
    ("guest", "GET", "/vhosts/VHOST", None),
    ("guest", "GET", "/permissions/VHOST/guest", None),
    ("guest", "PUT", "/users/ANN", {"password": "p"}),
    ("guest", "PUT", "/users/ANN", {"tags": ""}),
    ("guest", "PUT", "/users/ANN", {"password": "p", "tags": "management"}),
    ("guest", "PUT", "/users/BOB", {"password": "p", "tags": ["monitoring"]}),
    ("guest", "PUT", "/users/POL", {"password": "p", "tags": "policymaker"}),
    ("guest", "PUT", "/users/TOM", {"password": "p", "tags": "made_up, other"}),
    ("guest", "GET", "/users/ZOE", None),
    ("guest", "DELETE", "/users/ZOE", None),
    ("guest", "PUT", "/permissions/VHOST/ANN", {"configure": "^a", "write": "^a"}),
    ("guest", "PUT", "/permissions/nowhere/ANN", _SOME),
    ("guest", "PUT", "/permissions/VHOST/ZOE", _SOME),
    ("guest", "PUT", "/permissions/VHOST/ANN", _ALL),
    ("guest", "PUT", "/permissions/VHOST/ANN", _SOME),
    ("guest", "PUT", "/permissions/VHOST/POL", _NONE),
    ("guest", "GET", "/permissions/VHOST/ANN", None),
    ("guest", "GET", "/users/ANN/permissions", None),
    ("guest", "GET", "/permissions/%2F/ANN", None),
    ("guest", "DELETE", "/permissions/%2F/ANN", None),
    ("guest", "GET", "/users/ANN/topic-permissions", None),
    ("guest", "GET", "/vhosts/nowhere", None),
    ("guest", "DELETE", "/vhosts/nowhere", None),
    ("guest", "GET", "/queues/nowhere", None),
    *(
        (who, "GET", path, None)
        for who in ("ANN", "BOB", "POL", "TOM", "ZOE")
        for path in (
            "/whoami", "/vhosts", "/users", "/queues/%2F", "/queues/VHOST", "/permissions",
            "/connections", "/nodes", "/policies/VHOST", "/definitions", "/users/ANN",
            "/vhosts/VHOST/permissions", "/exchanges/VHOST/amq.topic",
        )
    ),
    *(
        (who, method, path, body)
        for who in ("ANN", "BOB", "POL", "TOM")
        for method, path, body in (
            ("PUT", "/queues/VHOST/zz", {}),
            ("PUT", "/queues/VHOST/abc", {}),
            ("PUT", "/exchanges/VHOST/zz", {"type": "direct"}),
            ("PUT", "/policies/VHOST/pp", {"pattern": "^a", "definition": {"max-length": 5}}),
            ("PUT", "/users/ZOE", {"password": "x", "tags": ""}),
            ("PUT", "/vhosts/other", {}),
            ("DELETE", "/queues/VHOST/abc", None),
        )
    ),
    ("guest", "DELETE", "/policies/VHOST/pp", None),
]  # fmt: skip
_TOPIC: list[_Call] = [
    (
        "guest",
        "PUT",
        "/topic-permissions/VHOST/ANN",
        {"exchange": "amq.topic", "write": "^{username}", "read": "^mine"},
    ),
    ("guest", "GET", "/topic-permissions/VHOST/ANN", None),
]
_END: list[_Call] = [
    ("guest", "DELETE", "/topic-permissions/VHOST/ANN", None),
    ("guest", "DELETE", "/permissions/VHOST/ANN", None),
    *(("guest", "DELETE", f"/users/{name}", None) for name in ("ANN", "BOB", "POL", "TOM")),
    ("guest", "GET", "/permissions/VHOST/POL", None),
    ("guest", "DELETE", "/vhosts/VHOST", None),
]


def _queue(name: str, **more: Any) -> _Step:
    return ("queue.declare", {"queue": name, "arguments": more.pop("arguments", {}), **more})


def _exchange(name: str, **more: Any) -> _Step:
    return ("exchange.declare", {"exchange": name, "type": "direct", **more})


def _bind(queue: str, exchange: str, key: str = "k") -> _Step:
    return ("queue.bind", {"queue": queue, "exchange": exchange, "routing_key": key})


def _publish(exchange: str, key: str) -> _Step:
    return ("publish", {"exchange": exchange, "key": key, "mandatory": True})


# Each step runs on a separate connection as ANN, who has the permissions of _SOME.
_TALKS: list[_Step] = [
    _queue("a"),
    _queue("b"),
    _queue("b", passive=True),
    _queue(""),
    _queue("a.dead", arguments={"x-dead-letter-exchange": "b"}),
    _queue("a.dead", arguments={"x-dead-letter-exchange": ""}),
    _exchange("ax"),
    _exchange("bx"),
    _exchange("bx", passive=True),
    _queue("readable", passive=True),
    _exchange("readable", passive=True),
    _exchange("a.alternate", arguments={"alternate-exchange": "b"}),
    _publish("", "a"),
    _publish("ax", "k"),
    _publish("a.missing", "k"),
    _publish("b", "k"),
    _publish("amq.topic", "k"),
    _publish("amq.topic", "ANN.k"),
    _bind("a", "amq.direct"),
    _bind("a", "amq.topic", "other.k"),
    _bind("a", "amq.topic", "mine.k"),
    _bind("b", "amq.topic"),
    ("queue.unbind", {"queue": "b", "exchange": "amq.topic", "routing_key": "k"}),
    ("exchange.bind", {"destination": "ax", "source": "b", "routing_key": "k"}),
    ("exchange.bind", {"destination": "b", "source": "ax", "routing_key": "k"}),
    ("exchange.bind", {"destination": "ax", "source": "amq.direct", "routing_key": "k"}),
    ("basic.get", {"queue": "b"}),
    ("basic.get", {"queue": "a.missing"}),
    ("basic.consume", {"queue": "b", "consumer_tag": "c"}),
    ("queue.purge", {"queue": "b"}),
    ("queue.delete", {"queue": "b"}),
    ("exchange.delete", {"exchange": "bx"}),
    ("exchange.delete", {"exchange": "amq.topic"}),
]
_LOGINS = [
    ("ANN", "wrong", "VHOST"),
    ("ZOE", "p", "VHOST"),
    ("ANN", "p", "/"),
    ("ANN", "p", "nowhere"),
    ("guest", "guest", "nowhere"),
    ("guest", "guest", "VHOST"),
]


class _Side:
    """One of the two brokers, with unique names."""

    def __init__(self, amqp: str, management: str) -> None:
        self._amqp = amqp
        self._management = urlsplit(management)
        self._mark = uuid.uuid4().hex[:8]

    def _unique(self, text: str) -> str:
        return re.sub(r"\b(VHOST|ANN|BOB|POL|TOM|ZOE)\b", rf"\1-{self._mark}", text)

    def _normalize(self, text: str) -> str:
        plain = text.replace(f"-{self._mark}", "")
        return re.sub(r"amq\.gen-[\w-]+", "amq.gen-made-up", plain)

    def call(self, call: _Call) -> str:
        """Return the result of a call of the API."""
        who, method, path, body = call
        connection = http.client.HTTPConnection(
            self._management.hostname or "", self._management.port, timeout=20
        )
        login = self._unique(f"{who}:{'guest' if who == 'guest' else 'p'}").encode()
        headers = {"Authorization": f"Basic {base64.b64encode(login).decode()}"}
        connection.request(
            method, f"/api{self._unique(path)}", None if body is None else json.dumps(body), headers
        )
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        result = f"{who} {method} {path} {body or ''}: {answer.status}"
        if answer.status >= 400:
            body_ = json.loads(text)
            return self._normalize(f"{result} {body_['error']} {body_['reason']}")
        if method == "GET" and path in (
            "/whoami",
            "/permissions/VHOST/ANN",
            "/users/ANN/permissions",
        ):
            body_ = json.loads(text)
            if path == "/whoami":
                body_.pop("is_internal_user", None)
            return self._normalize(f"{result} {body_}")
        if "topic-permissions" in path and method == "GET":
            return self._normalize(f"{result} {json.loads(text)}")
        return result

    async def log_in(self, user: str, password: str, vhost: str) -> str:
        """Return the result of a login."""
        client = RawClient(self._amqp)
        await client.connect()
        try:
            await client.log_in(self._unique(user), password, virtual_host=self._unique(vhost))
        except ConnectionFailed as error:
            return self._normalize(f"{user} {vhost}: {error}")
        finally:
            client.writer.close()
        return f"{user} {vhost}: logged in"

    async def talk(self, step: _Step) -> str:
        """Return the answer to one method, on a separate connection."""
        client = await self._connect("ANN")
        name, arguments = step
        if name == "publish":
            client.publish(**{**arguments, "key": self._unique(arguments["key"])})
            client.send(1, "basic.qos")  # so that there is an answer in any case
        else:
            client.send(1, name, **arguments)
        answers = await client.rest(_describe, 1)
        client.writer.close()
        return self._normalize(f"{name} {arguments}: {answers}")

    async def _connect(self, user: str) -> RawClient:
        client = RawClient(self._amqp)
        await client.connect()
        await client.log_in(self._unique(user), "p", virtual_host=self._unique("VHOST"))
        await client.call(1, "channel.open")
        return client

    async def delete_under_connection(self, call: _Call) -> str:
        """Return the result for ANN's connection when her user or virtual host is deleted."""
        client = await self._connect("ANN")
        result = await asyncio.to_thread(self.call, call)
        try:
            heard = _describe(await client.event())
        except (EOFError, OSError):
            heard = "hung up"
        except TimeoutError:
            heard = "nothing"
        client.writer.close()
        # RabbitMQ may close the connection with or without a close method.
        if heard == "hung up" or heard.startswith("connection.close 320"):
            heard = "let go"
        return self._normalize(f"{result}: {heard}")


def _describe(event: Event) -> str:
    if not isinstance(event, MethodReceived):
        return type(event).__name__
    arguments = event.arguments
    return (
        f"{event.name} {arguments.get('reply_code', '')} {arguments.get('reply_text', '')}".strip()
    )


async def _all(side: _Side) -> list[str]:
    """Return all answers of one broker in order."""
    answers = [await asyncio.to_thread(side.call, call) for call in (*_CALLS, *_TOPIC)]
    answers += [await side.log_in(*login) for login in _LOGINS]
    answers += [await side.talk(step) for step in _TALKS]
    answers += [await side.delete_under_connection(("guest", "DELETE", "/users/ANN", None))]
    again: list[_Call] = [
        ("guest", "PUT", "/users/ANN", {"password": "p", "tags": ""}),
        ("guest", "PUT", "/permissions/VHOST/ANN", _NONE),
    ]
    answers += [await asyncio.to_thread(side.call, call) for call in again]
    answers += [await side.talk(step) for step in (_queue(""), _publish("", "a"))]
    answers += [await side.delete_under_connection(("guest", "DELETE", "/vhosts/VHOST", None))]
    return answers + [await asyncio.to_thread(side.call, call) for call in _END]


async def _differences(
    amqp: str, management: str, version: BrokerVersion
) -> Iterator[tuple[str, str]]:
    settings = ServerSettings(port=0, http_port=0, version=version)
    async with BrokerServer(settings) as server:
        embedded = await _all(_Side(server.url, server.http_url or ""))
    real = await _all(_Side(amqp, management))
    return ((one, other) for one, other in zip(embedded, real, strict=True) if one != other)


async def test_embedded_broker_and_rabbitmq_answer_the_same_about_access(
    rabbitmq: SharedNode,
) -> None:
    version = rabbitmq.management.call("GET", "/overview")["rabbitmq_version"]
    differing = await _differences(
        rabbitmq.url, rabbitmq.management_url, BrokerVersion.parse(version)
    )
    assert list(differing) == []


@pytest.mark.all_brokers
@pytest.mark.parametrize("suite", SUITES)
def test_embedded_broker_and_newer_rabbitmq_answer_the_same_about_access(suite: str) -> None:
    with RabbitNode(build(suite)) as node:
        version = BrokerVersion.parse(node.management.call("GET", "/overview")["rabbitmq_version"])
        assert list(asyncio.run(_differences(node.url, node.management_url, version))) == []
