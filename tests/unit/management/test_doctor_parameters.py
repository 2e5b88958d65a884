"""The doctor checks shovels, federation and operator policies."""

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


async def test_parameters_of_live_broker_are_checked_without_passwords() -> None:
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


async def test_missing_permission_for_parameters_keeps_other_findings() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        refused = request.url.path == "/api/parameters"
        return httpx.Response(401, json={}) if refused else _answer(request)

    async with answering(refuse) as management:
        found = await examine("here", "/", BrokerVersion(4, 0, 5), management)
    assert found.queues == 1
    assert "operator-policy" not in {each.rule for each in found.findings}


async def test_doctor_counts_dead_letters_and_names_no_fix_that_the_version_lacks() -> None:
    limited = {"arguments": {"x-queue-type": "quorum", "x-delivery-limit": 5}}
    queues = [
        {**_QUEUE, "name": "orders", "messages": 7},
        {**_QUEUE, **limited, "messages": 60_000},
    ]

    def answer(request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode().partition("?")[0]
        found: dict[str, Any] = {"/api/overview": {"rabbitmq_version": "3.10.8"}}
        return httpx.Response(200, json=found.get(path, queues if "/api/queues" in path else []))

    async with answering(answer) as management:
        old = await examine("here", "/", BrokerVersion(3, 10, 8), management)
        new = await examine("here", "/", BrokerVersion(4, 0, 5), management)
    told = "60,000 messages in orders.dlq"
    assert any(told in one.text for one in old.notices)
    (finding,) = [one for one in old.findings if one.rule == "looking-deletes"]
    assert "-1" not in finding.fix
    (finding,) = [one for one in new.findings if one.rule == "looking-deletes"]
    assert "delivery-limit: -1" in finding.fix
