"""The doctor sees what moves messages beside clients: shovels, federation, operator policies."""

from __future__ import annotations

from typing import Any

import httpx

from hopback.broker.doctor import examine
from hopback.version import BrokerVersion
from tests.unit.management.test_management_client import answering

_QUEUE: dict[str, Any] = {
    "name": "orders.dlq", "vhost": "/", "type": "quorum", "durable": True, "auto_delete": False,
    "arguments": {"x-queue-type": "quorum"},
}  # fmt: skip
_PARAMETERS = [
    {"component": "shovel", "name": "drain", "vhost": "/",
     "value": {"src-queue": "orders.dlq", "dest-queue": "orders", "ack-mode": "no-ack",
               "src-uri": "amqp://ann:hidden@mq"}},
    {"component": "operator_policy", "name": "tidy", "vhost": "/",
     "value": {"pattern": "dlq$", "definition": {"message-ttl": 1000}}},
    {"component": "shovel", "name": "other", "vhost": "elsewhere",
     "value": {"src-queue": "orders.dlq", "ack-mode": "no-ack"}},
]  # fmt: skip


def _answer(request: httpx.Request) -> httpx.Response:
    found: dict[str, Any] = {
        "/api/overview": {"rabbitmq_version": "4.0.5", "cluster_name": "c"},
        "/api/queues/%2F": [_QUEUE],
        "/api/parameters": _PARAMETERS,
    }
    path = request.url.raw_path.decode().partition("?")[0]
    return httpx.Response(200, json=found.get(path, []))


async def test_parameters_of_a_live_broker_are_judged() -> None:
    """Those of its own virtual host; no address with its password is shown."""
    async with answering(_answer) as management:
        found = await examine("here", "/", BrokerVersion(4, 0, 5), management)
    places = {(each.rule, each.place) for each in found.findings}
    assert places >= {
        ("link-unconfirmed", "shovel `drain`"),
        ("shovel-drains-failures", "shovel `drain`"),
        ("operator-policy", "operator policy `tidy`"),
        ("dead-letters-expire", "queue `orders.dlq`"),
    }
    assert not [place for _, place in places if "other" in place]
    assert "hidden" not in str(found.findings)


async def test_a_user_who_may_not_list_parameters_has_the_rest_judged() -> None:
    """The broker answers 401; nothing else is missing."""

    def refusing(request: httpx.Request) -> httpx.Response:
        refused = request.url.path == "/api/parameters"
        return httpx.Response(401, json={}) if refused else _answer(request)

    async with answering(refusing) as management:
        found = await examine("here", "/", BrokerVersion(4, 0, 5), management)
    assert found.queues == 1
    assert "operator-policy" not in {each.rule for each in found.findings}
