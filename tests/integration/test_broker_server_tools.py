"""The management API of `hopback broker` with external tools behaves like RabbitMQ."""

from __future__ import annotations

import asyncio
import json
import subprocess
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import httpx
import pytest

from hopback.broker.management import Management, ManagementAddress
from hopback.broker.rabbitmq import RabbitMQ
from hopback.broker.server import BrokerServer, ClockKind, ServerSettings
from hopback.errors import BrokerError
from hopback.topology.model import Queue
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.harness.shared import SharedNode

_ADMIN = "/usr/bin/rabbitmqadmin"  # of Debian's rabbitmq-server
_PATH = "%2F"

_COMMANDS = [
    "show overview",
    *(
        f"list {kind}"
        for kind in (
            "connections", "channels", "consumers", "exchanges", "queues", "bindings", "users", "vhosts",
            "permissions", "nodes", "parameters", "policies", "operator_policies", "vhost_limits",
        )
    ),
    "declare queue name=tools durable=true",
    "declare exchange name=tools type=topic internal=false",
    "declare binding source=tools destination=tools routing_key=a.#",
    "declare policy name=tools pattern=^tools$ definition={\"max-length\":10} priority=3",
    "declare operator_policy name=tools pattern=^tools$ definition={\"max-length\":9}",
    "publish exchange=tools routing_key=a.b payload=hello",
    "get queue=tools count=1 ackmode=ack_requeue_true",
    "purge queue name=tools",
    "delete binding source=tools destination_type=queue destination=tools properties_key=a.%23",
    "delete policy name=tools",
    "delete operator_policy name=tools",
    "delete queue name=tools",
    "delete exchange name=tools",
    "declare vhost name=tools",
    "declare user name=tools password=secret tags=",
    "declare permission vhost=tools user=tools configure=.* write=.* read=.*",
    "delete permission vhost=tools user=tools",
    "declare vhost_limit vhost=tools name=max-queues value=100",
    "delete vhost_limit vhost=tools name=max-queues",
    "delete user name=tools",
    "delete vhost name=tools",
    "declare parameter component=shovel name=tools value={}",
    "delete parameter component=shovel name=tools",
    "close connection name=tools",
    "export {file}",
    "import {file}",
]  # fmt: skip
_REFUSED = {
    "declare parameter component=shovel name=tools value={}",
    "delete parameter component=shovel name=tools",
    "close connection name=tools",
}
"""Without the plugin, and without such a connection."""


@pytest.fixture
async def server() -> AsyncIterator[BrokerServer]:
    """A server with a management API."""
    settings = ServerSettings(port=0, http_port=0, clock=ClockKind.SYSTEM)
    async with BrokerServer(settings) as server:
        yield server


@pytest.fixture
async def http(server: BrokerServer) -> AsyncIterator[httpx.AsyncClient]:
    """A client that has logged in."""
    async with httpx.AsyncClient(
        base_url=f"{server.http_url}/api", auth=("guest", "guest")
    ) as http:
        yield http


def _exit_codes(url: str, file: Path) -> dict[str, int]:
    place = urlsplit(url)
    login = ["-H", str(place.hostname), "-P", str(place.port), "-u", "guest", "-p", "guest"]
    return {
        command: subprocess.run(
            [_ADMIN, *login, *command.replace("{file}", str(file)).split()],
            capture_output=True,
            check=False,
        ).returncode
        for command in _COMMANDS
    }


@pytest.mark.broker
@pytest.mark.socket
async def test_rabbitmqadmin_works_as_on_rabbitmq(
    rabbitmq: SharedNode, server: BrokerServer, tmp_path: Path
) -> None:
    """All 41 commands of the tool of RabbitMQ 3.10 are run."""
    assert server.http_url is not None
    assert len(_COMMANDS) == 41
    ours = await asyncio.to_thread(_exit_codes, server.http_url, tmp_path / "ours")
    theirs = await asyncio.to_thread(_exit_codes, rabbitmq.management_url, tmp_path / "theirs")
    assert ours == theirs == {command: int(command in _REFUSED) for command in _COMMANDS}


_VHOST = "compared"
_ASKED = (
    "queues/{v}?columns=name,durable", "queues/{v}?columns=name,arguments.x-max-length",
    "queues/{v}?columns=nosuch", "queues/{v}/b?columns=vhost,name", "queues/{v}?sort=name&columns=name",
    "queues/{v}?sort=name&sort_reverse=true&columns=name", "queues/{v}?page=1&page_size=2&columns=name",
    "bindings/{v}?columns=source,destination,routing_key", "policies/{v}?columns=name,priority",
    "operator-policies/{v}", "parameters/policy/{v}", "parameters/operator_policy/{v}",
    "parameters/operator_policy/{v}/o", "parameters/operator_policy/{v}/x", "parameters/nosuch/{v}",
    "parameters/vhost-limits/{v}", "vhost-limits/{v}", "vhost-limits/nosuch", "user-limits/nobody",
)  # fmt: skip


async def _answers(http: httpx.AsyncClient) -> dict[str, Any]:
    """Create the same objects, send the same requests and return the answers."""
    told: dict[str, Any] = {}

    async def ask(method: str, path: str, body: object = None) -> None:
        try:
            found = await http.request(method, f"/{path}", json=body)
        except httpx.RemoteProtocolError:
            # RabbitMQ 3.10 closes 4 % of the connections that list queues with `columns` right after they
            # were declared.
            if method != "GET" or "columns" not in path:
                raise
            found = await http.request(method, f"/{path}", json=body)
        told[f"{method} {path} {body}"] = (
            found.status_code,
            found.json() if found.content else None,
        )

    await http.put(f"/vhosts/{_VHOST}", json={})
    await http.put(
        f"/permissions/{_VHOST}/guest", json=dict.fromkeys(("configure", "write", "read"), ".*")
    )
    for name in ("b", "a", "C"):
        arguments = {"x-max-length": 5} if name == "b" else {}
        await http.put(f"/queues/{_VHOST}/{name}", json={"durable": True, "arguments": arguments})
        rule = {
            "pattern": f"^{name}",
            "definition": {"max-length": 3},
            "priority": 1,
            "apply-to": "all",
        }
        await http.put(f"/policies/{_VHOST}/{name}", json=rule)
        await http.post(f"/bindings/{_VHOST}/e/amq.direct/q/{name}", json={"routing_key": "k"})
    rule = {"pattern": "^x", "definition": {"max-length": 3}, "priority": 0, "apply-to": "all"}
    await http.put(f"/operator-policies/{_VHOST}/o", json=rule)
    limits = f"vhost-limits/{_VHOST}"
    for value in (7, "x", None):
        await ask("PUT", f"{limits}/max-queues", {"value": value})
    await ask("PUT", f"{limits}/nosuch", {"value": 1})
    await ask("PUT", "vhost-limits/nosuch/max-queues", {"value": 1})
    for path in _ASKED:
        await ask("GET", path.format(v=_VHOST))
    await ask("DELETE", f"{limits}/max-queues")
    await ask("GET", f"{limits}?again")
    given: tuple[dict[str, Any], ...] = ({}, {"headers": {}}, {"headers": {"a": 1}, "app_id": "x"})
    for properties in given:
        message = {"routing_key": "a", "payload": "m", "payload_encoding": "string"}
        place = f"exchanges/{_VHOST}/amq.default/publish"
        await ask("POST", place, {**message, "properties": properties})
    get = {"count": 5, "ackmode": "ack_requeue_false", "encoding": "auto"}
    await ask("POST", f"queues/{_VHOST}/a/get", get)
    await http.delete(f"/vhosts/{_VHOST}")
    return told


@pytest.mark.broker
@pytest.mark.socket
async def test_columns_order_limits_parameters_and_properties_equal_rabbitmq(
    rabbitmq: SharedNode,
) -> None:
    version = BrokerVersion(3, 10)
    settings = ServerSettings(port=0, http_port=0, clock=ClockKind.SYSTEM, version=version)
    async with (
        BrokerServer(settings) as server,
        httpx.AsyncClient(
            base_url=f"{server.http_url}/api", auth=("guest", "guest"), trust_env=False
        ) as ours,
        httpx.AsyncClient(
            base_url=f"{rabbitmq.management_url}/api", trust_env=False, timeout=60
        ) as theirs,
    ):
        assert await _answers(ours) == await _answers(theirs)


@pytest.mark.socket
async def test_connection_is_listed_with_channels_and_closed_by_name(
    server: BrokerServer, http: httpx.AsyncClient
) -> None:
    connection = await RabbitMQ(server.url).connect("worker")
    channel = await connection.open_channel()
    await channel.declare_queue(Queue("orders"))
    await channel.qos(7)
    await channel.consume("orders", lambda _: None)
    (listed,) = (await http.get("/connections")).json()
    assert listed["user_provided_name"] == "worker"
    assert listed["client_properties"]["connection_name"] == "worker"
    assert (listed["state"], listed["channels"]) == ("running", 1)
    name = quote(listed["name"], safe="")
    assert (await http.get(f"/connections/{name}")).json() == listed
    (told,) = (await http.get(f"/connections/{name}/channels")).json()
    assert (told["prefetch_count"], told["consumer_count"]) == (7, 1)
    assert (await http.get(f"/channels/{quote(told['name'], safe='')}")).json() == told
    (consumer,) = (await http.get(f"/consumers/{_PATH}")).json()
    assert consumer["channel_details"]["name"] == told["name"]
    closed = await http.delete(f"/connections/{name}", headers={"X-Reason": "enough"})
    assert closed.status_code == 204
    with pytest.raises(BrokerError, match=r"320.*enough"):
        await channel.declare_queue(Queue("orders"), passive=True)
    assert (await http.delete(f"/connections/{name}")).status_code == 404
    await connection.close()


@pytest.mark.socket
async def test_holders_of_messages_are_named(server: BrokerServer) -> None:
    connection = await RabbitMQ(server.url).connect("worker")
    channel = await connection.open_channel()
    await channel.declare_queue(Queue("orders"))
    await channel.consume("orders", lambda _: None)
    async with Management(ManagementAddress.derive(None, server.http_url)) as client:
        (holder,) = await client.holders("/", "orders")
    assert "worker" in holder
    await connection.close()


async def _publish(http: httpx.AsyncClient, exchange: str = "amq.default", **more: Any) -> Any:
    asked = {"routing_key": "q", "payload": "m", "payload_encoding": "string", "properties": {}}
    return (
        await http.post(f"/exchanges/{_PATH}/{exchange}/publish", json={**asked, **more})
    ).json()


async def _get(http: httpx.AsyncClient, **more: Any) -> Any:
    asked = {"count": 5, "ackmode": "ack_requeue_true", "encoding": "auto"}
    return (await http.post(f"/queues/{_PATH}/q/get", json={**asked, **more})).json()


@pytest.mark.socket
async def test_messages_are_published_and_read_over_http(http: httpx.AsyncClient) -> None:
    """With properties, as text or base64, requeued in order or removed."""
    await http.put(f"/queues/{_PATH}/q", json={"durable": "true"})
    assert await _publish(http, properties={"headers": {"a": [1]}, "message_id": "1"}) == {
        "routed": True
    }
    assert await _publish(http, payload="/w==", payload_encoding="base64", properties=[]) == {
        "routed": True
    }
    assert await _publish(http, routing_key="nowhere") == {"routed": False}
    for redelivered in (False, True):
        first, second = await _get(http)
        assert (first["payload"], first["payload_encoding"]) == ("m", "string")
        assert first["properties"] == {"headers": {"a": [1]}, "message_id": "1"}
        assert first["redelivered"] is redelivered
        assert (second["payload"], second["payload_encoding"]) == ("/w==", "base64")
    (cut,) = await _get(http, ackmode="ack_requeue_false", count=1, encoding="base64", truncate=0)
    assert (cut["payload"], cut["payload_bytes"]) == ("", 1)
    assert len(await _get(http, ackmode="reject_requeue_false")) == 1
    assert await _get(http) == []


@pytest.mark.socket
@pytest.mark.parametrize(
    "wrong",
    [
        {"payload": 1},
        {"payload_encoding": "hex"},
        {"payload": "*", "payload_encoding": "base64"},
        {"properties": {"headers": 1}},
        {"properties": {"priority": "high"}},
        {"properties": {"message_id": 1}},
        {"properties": {"color": "red"}},
        {"properties": 1},
    ],
)
async def test_invalid_http_publish_is_refused(
    http: httpx.AsyncClient, wrong: dict[str, Any]
) -> None:
    refused = await _publish(http, **wrong)
    assert refused["error"] == "bad_request"
    assert "expected" in refused["reason"]


@pytest.mark.socket
@pytest.mark.parametrize(
    "wrong", [{"count": -1}, {"count": "x"}, {"ackmode": "no"}, {"encoding": "x"}, {"truncate": -1}]
)
async def test_invalid_http_get_is_refused(http: httpx.AsyncClient, wrong: dict[str, Any]) -> None:
    """A missing queue is not found."""
    assert (await _get(http))["error"] == "Object Not Found"
    await http.put(f"/queues/{_PATH}/q", json={})
    assert "expected" in (await _get(http, **wrong))["reason"]


@pytest.mark.socket
async def test_bindings_are_created_listed_and_deleted(http: httpx.AsyncClient) -> None:
    """Bindings with arguments have separate keys."""
    await http.put(f"/queues/{_PATH}/q", json={})
    for arguments in ({}, {"x-match": "all", "a": 1}):
        made = await http.post(
            f"/bindings/{_PATH}/e/amq.headers/q/q",
            json={"routing_key": "k", "arguments": arguments},
        )
        assert made.status_code == 201
    await http.post(f"/bindings/{_PATH}/e/amq.topic/e/amq.fanout", json={"routing_key": "#"})
    one, other = (await http.get(f"/bindings/{_PATH}/e/amq.headers/q/q")).json()
    assert one["properties_key"] == "k"
    path = f"/bindings/{_PATH}/e/amq.headers/q/q/{quote(other['properties_key'], safe='')}"
    assert (await http.get(path)).json() == other
    assert (await http.delete(path)).status_code == 204
    assert (await http.get(path)).status_code == 404
    assert len((await http.get(f"/queues/{_PATH}/q/bindings")).json()) == 2
    (inner,) = (await http.get(f"/exchanges/{_PATH}/amq.topic/bindings/source")).json()
    assert (inner["destination"], inner["properties_key"]) == ("amq.fanout", "%23")
    assert (await http.get(f"/exchanges/{_PATH}/amq.fanout/bindings/destination")).json() == [inner]


@pytest.mark.socket
async def test_single_objects_are_found_by_name(http: httpx.AsyncClient) -> None:
    for path in (
        "vhosts/%2F", "nodes/hopback@localhost", "users/guest", "permissions/%2F/guest",
        "exchanges/%2F/amq.topic", "exchanges/%2F/amq.default", "aliveness-test/%2F", "cluster-name",
        "users/guest/permissions", "vhosts/%2F/permissions",
    ):  # fmt: skip
        found = await http.get(f"/{path}")
        assert (path, found.status_code) == (path, 200)
        assert json.loads(found.text)
    for path in (
        "vhosts/x",
        "nodes/x",
        "users/x",
        "exchanges/%2F/x",
        "policies/%2F/x",
        "channels/x",
    ):
        assert (path, (await http.get(f"/{path}")).status_code) == (path, 404)


_READS = (
    "auth/attempts/nobody", "bindings/{v}", "channels", "cluster-name", "connections",
    "connections/username/other", "consumers/{v}", "definitions/{v}", "exchanges/{v}",
    "feature-flags", "federation-links", "global-parameters", "health/checks/alarms",
    "health/checks/local-alarms", "health/checks/node-is-quorum-critical",
    "health/checks/protocol-listener/amqp", "nodes", "operator-policies", "operator-policies/{v}",
    "overview", "parameters", "parameters/shovel", "parameters/shovel/{v}", "permissions",
    "policies", "policies/{v}", "queues/{v}", "shovels", "topic-permissions", "user-limits",
    "user-limits/guest", "users", "users/guest", "users/guest/permissions",
    "users/guest/topic-permissions", "vhost-limits", "vhost-limits/{v}", "vhosts", "vhosts/{v}",
    "vhosts/{v}/channels", "vhosts/{v}/connections", "vhosts/{v}/permissions",
    "vhosts/{v}/topic-permissions", "whoami",
)  # fmt: skip
"""Paths that the newer `rabbitmqadmin` reads, from its source."""


@pytest.mark.broker
async def test_endpoints_of_newer_rabbitmqadmin_equal_rabbitmq(
    rabbitmq: SharedNode,
) -> None:
    version = BrokerVersion(3, 10)
    settings = ServerSettings(port=0, http_port=0, clock=ClockKind.SYSTEM, version=version)
    async with (
        BrokerServer(settings) as server,
        httpx.AsyncClient(
            base_url=f"{server.http_url}/api", auth=("guest", "guest"), trust_env=False
        ) as ours,
        httpx.AsyncClient(
            base_url=f"{rabbitmq.management_url}/api", trust_env=False, timeout=60
        ) as theirs,
    ):
        for place in (each.format(v=_PATH) for each in _READS):
            found, expected = await ours.get(f"/{place}"), await theirs.get(f"/{place}")
            assert found.status_code == expected.status_code, place
            assert type(found.json()) is type(expected.json()), place


async def test_connections_of_a_user_are_listed_and_closed(
    server: BrokerServer, http: httpx.AsyncClient
) -> None:
    """Connections of other users stay open."""
    connection = await RabbitMQ(server.url).connect("mine")
    place = "/connections/username/guest"
    assert [each["user"] for each in (await http.get(place)).json()] == ["guest"]
    assert (await http.delete("/connections/username/other")).status_code == 204
    assert len((await http.get(place)).json()) == 1
    assert (await http.delete(place)).status_code == 204
    assert isinstance(await connection.wait_closed(), BrokerError)


async def test_cluster_name_can_be_set(http: httpx.AsyncClient) -> None:
    """Invalid names are refused."""
    assert (await http.put("/cluster-name", json={"name": "lab"})).status_code == 204
    assert (await http.put("/cluster-name", json={})).status_code == 400
    assert (await http.put("/cluster-name", json={"name": 1})).status_code == 400
    assert (await http.get("/cluster-name")).json() == {"name": "lab"}
    assert (await http.post("/rebalance/queues")).status_code == 204
