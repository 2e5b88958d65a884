"""The management API and the clock of the broker on a socket."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from hopback.broker.management import Management, ManagementAddress
from hopback.broker.rabbitmq import RabbitMQ
from hopback.broker.server import BrokerServer, ClockKind, ServerSettings
from hopback.designs import DESIGNS
from hopback.errors import ManagementError, ManagementNotFound
from hopback.message import Message
from hopback.topology.definitions import read_definitions, write_definitions
from hopback.topology.diff import diff
from hopback.topology.model import Binding, Exchange, Policy, Queue, QueueType, Topology
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.shared import SharedNode

pytestmark = pytest.mark.socket

_TOPOLOGY = Topology(
    "made",
    (Exchange("events", "topic"), Exchange("inner", "headers")),
    (Queue("plain"), Queue("waits", QueueType.QUORUM, arguments={"x-message-ttl": 9})),
    (
        Binding("events", "plain", "a.#"),
        Binding("events", "inner", "#", to_exchange=True),
        Binding("inner", "waits", "", arguments={"x-match": "all", "kind": "slow"}),
    ),
)


def _create_server(**settings: Any) -> BrokerServer:
    return BrokerServer(
        ServerSettings(**{"port": 0, "http_port": 0, "clock": ClockKind.VIRTUAL, **settings})
    )


@pytest.fixture
async def server() -> AsyncIterator[BrokerServer]:
    """A server in virtual time."""
    async with _create_server() as server:
        yield server


@pytest.fixture
async def management(server: BrokerServer) -> AsyncIterator[Management]:
    """Hopback's own client of the API."""
    async with Management(ManagementAddress.derive(None, server.http_url)) as client:
        yield client


@pytest.fixture
async def http(server: BrokerServer) -> AsyncIterator[httpx.AsyncClient]:
    """Any other client."""
    async with httpx.AsyncClient(
        base_url=server.http_url or "", auth=("guest", "guest"), trust_env=False
    ) as client:
        yield client


async def _declare(server: BrokerServer, topology: Topology) -> None:
    connection = await RabbitMQ(server.url).connect("test")
    channel = await connection.open_channel()
    for exchange in topology.exchanges:
        await channel.declare_exchange(exchange)
    for queue in topology.queues:
        await channel.declare_queue(queue)
    for binding in topology.bindings:
        await channel.bind(binding)
    await connection.close()


async def test_management_api_returns_declared_topology(
    server: BrokerServer, management: Management
) -> None:
    await _declare(server, _TOPOLOGY)
    live = await management.live_topology("/")
    found = diff(_TOPOLOGY, live)
    assert (found.create, found.conflict, found.extra) == ((), (), ())
    assert sorted(live.bindings, key=repr) == sorted(_TOPOLOGY.bindings, key=repr)
    overview = await management.overview()
    assert (overview.version, overview.product) == (BrokerVersion(4, 0), "RabbitMQ")
    assert [flag.name for flag in await management.feature_flags()] == ["quorum_queue"]


async def test_counts_are_exact_at_once(server: BrokerServer, management: Management) -> None:
    """This holds for ready, unacked and held-back messages."""
    connection = await RabbitMQ(server.url).connect()
    channel = await connection.open_channel()
    jam = {"x-dead-letter-exchange": "none", "x-dead-letter-strategy": "at-least-once"}
    arguments = {**jam, "x-overflow": "reject-publish"}
    await channel.declare_queue(Queue("q", QueueType.QUORUM, arguments=arguments))
    for _ in range(3):
        await channel.publish(Message("", "q", b"m"))
    first = await channel.get("q")
    await channel.get("q")
    assert first is not None
    channel.nack(first.tag, requeue=False)
    await channel.qos(1)
    found = (await management.queue("/", "q")).counts
    assert (found.messages, found.ready, found.unacked, found.held_back) == (3, 1, 1, 1)
    await connection.close()


async def test_policies_are_set_read_and_deleted(
    server: BrokerServer, management: Management
) -> None:
    """They take effect at once, and operator policies are merged on top."""
    await _declare(server, _TOPOLOGY)
    policy = Policy("odd name/1", "^plain$", {"max-length": 7}, 3, "queues")
    await management.put_policy("/", policy)
    assert await management.policies("/") == (policy,)
    server.set_policy(Policy("op", ".*", {"max-length": 5}), operator=True)
    reading = await management.queue("/", "plain")
    assert (reading.policy, reading.operator_policy) == (policy.name, "op")
    assert dict(reading.effective_policy or {}) == {"max-length": 5}
    assert [each.name for each in await management.operator_policies("/")] == ["op"]
    await management.delete_policy("/", policy.name)
    await management.delete_policy("/", policy.name)
    assert await management.policies("/") == ()


@pytest.mark.parametrize("definition", [{"max-lenght": 1}, {"delivery-limit": -1}])
async def test_invalid_policy_is_400_and_not_set(definition: dict[str, int]) -> None:
    async with (
        _create_server(version=BrokerVersion(3, 10)) as server,
        Management(ManagementAddress.derive(None, server.http_url)) as management,
    ):
        with pytest.raises(ManagementError, match="expected") as caught:
            await management.put_policy("/", Policy("p", "^x", definition))
        assert caught.value.status == 400
        with pytest.raises(ManagementError, match="regular expression"):
            await management.put_policy("/", Policy("p", "[", {"max-length": 1}))
        assert await management.policies("/") == ()


@pytest.mark.parametrize("name", sorted(DESIGNS))
async def test_definitions_round_trip_between_library_and_broker(
    management: Management, name: str
) -> None:
    desired = DESIGNS[name].build({}, hardened=True)
    document, _ = write_definitions(desired, vhost="/")
    await management.import_definitions(document, "/")
    await management.import_definitions(document)
    for vhost in ("/", None):
        exported = read_definitions(await management.definitions(vhost))
        found = diff(desired, exported)
        assert (found.create, found.conflict, found.extra) == ((), (), ())


async def test_alarm_makes_health_check_503(server: BrokerServer, management: Management) -> None:
    assert await management.alarms() == ()
    server.block()
    assert [alarm.resource for alarm in await management.alarms()] == ["memory"]


async def test_queues_and_exchanges_are_created_and_deleted_over_http(
    management: Management, http: httpx.AsyncClient
) -> None:
    """201 for a new object, 204 for an existing one, 400 for a conflict, 404 for a missing one."""
    place = "/api/queues/%2F/a%2Fb"
    quorum = {"arguments": {"x-queue-type": "quorum"}}
    answers = [(await http.put(place, json=quorum)).status_code for _ in range(2)]
    assert answers == [201, 204]
    refused = await http.put(place, json={})
    assert (refused.status_code, refused.json()["error"]) == (400, "bad_request")
    assert "inequivalent arg" in refused.json()["reason"]
    assert (await management.queue("/", "a/b")).queue.type is QueueType.QUORUM
    assert (await http.put("/api/exchanges/%2F/e", json={"type": "topic"})).status_code == 201
    assert (await http.delete("/api/exchanges/%2F/e")).status_code == 204
    assert (await http.delete("/api/queues/%2F/a%2Fb/contents")).status_code == 204
    assert [(await http.delete(place)).status_code for _ in range(2)] == [204, 404]
    with pytest.raises(ManagementNotFound):
        await management.queue("/", "a/b")
    with pytest.raises(ManagementNotFound):
        await management.queues("other")


async def test_listing_is_paginated(server: BrokerServer, http: httpx.AsyncClient) -> None:
    await _declare(server, Topology("many", queues=tuple(Queue(f"q{n}") for n in range(5))))
    page = (await http.get("/api/queues/%2F?page=2&page_size=2")).json()
    assert [each["name"] for each in page["items"]] == ["q2", "q3"]
    assert (page["page_count"], page["total_count"]) == (3, 5)
    for query, error in {
        "page=4&page_size=2": "page_out_of_range",
        "page=0": "invalid_pagination_parameters",
        "page=x": "bad_request",
        "page=1&page_size=501": "invalid_pagination_parameters",
    }.items():
        refused = await http.get(f"/api/queues?{query}")
        assert (refused.status_code, refused.json()["error"]) == (400, error)


@pytest.mark.broker
async def test_names_are_filtered_like_rabbitmq(
    rabbitmq: SharedNode, http: httpx.AsyncClient
) -> None:
    """Case is ignored, as text or pattern, and only with pagination."""
    names = ("abc", "ABd", "a.c", "def")
    queries = (
        "page=1&name=AB",
        "page=1&name=a.c",
        "page=1&name=a.c&use_regex=true",
        "page=1&name=a.c&use_regex=True",
        "page=1&name=^ab&use_regex=true",
        "page=1&name=",
        "page=1&name=nothing-like-it",
        "page=2&name=a&page_size=2",
        "page=1&name=[&use_regex=true",
        "name=abc",
    )
    answers: list[list[object]] = []
    async with httpx.AsyncClient(base_url=rabbitmq.management_url, trust_env=False) as theirs:
        for client in (theirs, http):
            await client.put("/api/vhosts/filtered")
            for name in names:
                await client.put(f"/api/queues/filtered/{name}", json={"durable": True})
            found: list[object] = []
            for query in queries:
                told = (await client.get(f"/api/queues/filtered?{query}")).json()
                page = {"items": told} if isinstance(told, list) else told
                listed = sorted(each["name"] for each in page.get("items", ()))
                found.append((query, listed, page.get("page_count"), page.get("error")))
            answers.append(found)
    assert answers[1] == answers[0]


@pytest.mark.broker
async def test_health_checks_equal_rabbitmq(
    rabbitmq: SharedNode, http: httpx.AsyncClient, server: BrokerServer
) -> None:
    """They return 503 during a memory alarm."""
    checks = (
        "healthchecks/node",
        "healthchecks/node/",
        "healthchecks/node/nobody",
        "health/checks/alarms",
        "health/checks/local-alarms",
        "health/checks/node-is-quorum-critical",
        "health/checks/virtual-hosts",
        "health/checks/certificate-expiration/1/weeks",
        "health/checks/protocol-listener/amqp",
        "health/checks/port-listener/x",
        "health/checks/nothing-like-it",
    )
    async with httpx.AsyncClient(base_url=rabbitmq.management_url, trust_env=False) as theirs:
        for check in checks:
            expected = await theirs.get(f"/api/{check}")
            for _ in range(50):  # a queue of another test may have no leader for a moment
                if expected.status_code != 503:
                    break
                await asyncio.sleep(0.2)
                expected = await theirs.get(f"/api/{check}")
            found = await http.get(f"/api/{check}")
            assert (found.status_code, found.json()) == (expected.status_code, expected.json())
    context = (await http.get("/api/overview")).json()["contexts"][0]
    assert (await http.get(f"/api/healthchecks/node/{context['node']}")).status_code == 200
    port = context["port"]
    assert (await http.get(f"/api/health/checks/port-listener/{port}")).json()["port"] == int(port)
    missing = (await http.get("/api/health/checks/protocol-listener/mqtt")).json()
    assert (missing["reason"], missing["missing"]) == ("No active listener", "mqtt")
    server.block()
    for check in ("healthchecks/node", "health/checks/alarms", "health/checks/local-alarms"):
        failed = await http.get(f"/api/{check}")
        assert failed.status_code == 503
        assert "in effect" in failed.json()["reason"]


async def test_users_are_deleted_in_bulk(http: httpx.AsyncClient) -> None:
    for name in ("one", "two", "three"):
        await http.put(f"/api/users/{name}", json={"password": "x", "tags": ""})
    gone = await http.post("/api/users/bulk-delete", json={"users": ["one", "two"]})
    assert gone.status_code == 204
    left = [each["name"] for each in (await http.get("/api/users")).json()]
    assert left == ["guest", "three"]
    for wrong in ({}, {"users": "one"}, {"users": [1]}):
        refused = await http.post("/api/users/bulk-delete", json=wrong)
        assert refused.status_code == 400


async def test_150_requests_at_once_are_all_answered(server: BrokerServer) -> None:
    """A service that watches many virtual hosts asks for all of them at the same time."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=server.http_url or "", auth=("guest", "guest"), trust_env=False, limits=limits
    ) as client:
        answers = await asyncio.gather(*(client.get("/api/queues") for _ in range(150)))
    assert {answer.status_code for answer in answers} == {200}


async def test_clock_is_advanced_over_http(server: BrokerServer, http: httpx.AsyncClient) -> None:
    back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    waits = Queue("waits", arguments={"x-message-ttl": 1_800_000, **back})
    await _declare(server, Topology("clock", queues=(Queue("q"), waits)))
    connection = await RabbitMQ(server.url).connect()
    channel = await connection.open_channel()
    await channel.publish(Message("", "waits", b"m"))
    clock = (await http.get("/clock")).json()
    assert (clock["clock"], clock["next_deadline"]) == ("virtual", clock["now"] + 1800)
    turned = (await http.post("/clock/advance", json={"seconds": 1800})).json()
    assert turned == {"now": clock["now"] + 1800, "deadlines": 1}
    assert await channel.get("q") is not None
    await connection.close()


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"{}", b'{"seconds": -1}', b'{"seconds": "9"}', b'{"seconds": NaN}']
)
async def test_invalid_advance_is_refused(http: httpx.AsyncClient, body: bytes) -> None:
    answer = await http.post("/clock/advance", content=body)
    assert answer.status_code == 400
    assert "expected" in answer.json()["reason"]


async def test_advance_of_real_clock_is_refused_with_remedy() -> None:
    async with (
        _create_server(clock=ClockKind.SYSTEM) as server,
        httpx.AsyncClient(base_url=server.http_url or "", auth=("guest", "guest")) as http,
    ):
        answer = await http.post("/clock/advance", json={"seconds": 1})
    assert answer.status_code == 400
    assert "--clock virtual" in answer.json()["reason"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Basic !!!"}, 401),
        ({"Authorization": "Bearer x"}, 401),
        ({"Authorization": "Basic " + base64.b64encode(b"guest:wrong").decode()}, 401),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "rebound.example"}, 403),
    ],
)
async def test_requests_without_password_or_from_other_sites_are_refused(
    server: BrokerServer, headers: dict[str, str], status: int
) -> None:
    async with httpx.AsyncClient(base_url=server.http_url or "", trust_env=False) as http:
        answer = await http.get("/api/overview", headers=headers)
    assert answer.status_code == status


@pytest.mark.parametrize(
    "document",
    [
        {"queues": 1},
        {"queues": [{"name": 1}]},
        {"queues": [{"name": "q", "vhost": "other"}]},
        {"policies": [{"name": "p", "pattern": "(", "definition": {"max-length": 1}}]},
        {"bindings": [{"source": "no", "destination": "no", "destination_type": "queue"}]},
        {"queues": [{"name": "q", "arguments": {"x-message-ttl": "soon"}}]},
        {"exchanges": [{"name": "\ud800", "type": "direct"}]},
    ],
)
async def test_invalid_definitions_are_400_with_place(
    http: httpx.AsyncClient, document: object
) -> None:
    answer = await http.post("/api/definitions", content=json.dumps(document))
    assert answer.status_code == 400
    assert answer.json()["reason"]
    assert (await http.get("/api/overview")).status_code == 200


@pytest.mark.parametrize("depth", [101, 500, 900, 5000])
async def test_json_nested_too_deep_is_400(http: httpx.AsyncClient, depth: int) -> None:
    nested = "[" * depth + "]" * depth
    answer = await http.put("/api/queues/%2F/deep", content=f'{{"arguments":{{"x":{nested}}}}}')
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")
    assert (await http.get("/api/overview")).status_code == 200


@pytest.mark.parametrize("digits", [20, 400, 5000])
async def test_huge_number_is_400(http: httpx.AsyncClient, digits: int) -> None:
    """Clock, arguments and definitions are tested."""
    huge = "9" * digits
    asked = [
        ("POST", "/clock/advance", f'{{"seconds":{huge}}}'),
        ("PUT", "/api/queues/%2F/num", f'{{"arguments":{{"x-message-ttl":{huge}}}}}'),
        (
            "POST",
            "/api/definitions",
            f'{{"queues":[{{"name":"n","vhost":"/","arguments":{{"x-message-ttl":{huge}}}}}]}}',
        ),
    ]
    for method, path, content in asked:
        answer = await http.request(method, path, content=content)
        assert (answer.status_code, path) == (400, path)


async def test_queue_name_is_limited_to_255_bytes(http: httpx.AsyncClient) -> None:
    for name in ("a" * 255, "%C3%A9" * 127):
        assert (await http.put(f"/api/queues/%2F/{name}", json={})).status_code == 201
    for name in ("a" * 256, "%C3%A9" * 128):
        answer = await http.put(f"/api/queues/%2F/{name}", json={})
        words = "queue should be less than 255 bytes, actually was 256\n"
        assert (answer.status_code, answer.json()["reason"]) == (400, words)
