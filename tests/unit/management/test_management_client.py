"""The management client against answers as brokers give them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from hopback.broker.management import Alarm, Management, ManagementAddress
from hopback.broker.management.readings import ChannelReading
from hopback.clock import ManualClock
from hopback.errors import (
    ConnectionFailed,
    ManagementError,
    ManagementNotFound,
    ManagementRefused,
)
from hopback.topology.model import Binding, Policy, QueueType
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

ADDRESS = ManagementAddress.derive("amqp://ann:hidden@mq.example")

QUORUM: dict[str, Any] = {
    "name": "orders",
    "vhost": "/",
    "type": "quorum",
    "durable": True,
    "auto_delete": False,
    "exclusive": False,
    "arguments": {"x-queue-type": "quorum", "x-dead-letter-exchange": ""},
    "policy": "p",
    "effective_policy_definition": {"max-length": 10},
    "operator_policy": None,
    "state": "running",
    "leader": "rabbit@one",
    "messages": 7,
    "messages_ready": 4,
    "messages_unacknowledged": 1,
    "messages_dlx": 2,
    "consumers": 3,
}
FRESH: dict[str, Any] = {"name": "new", "vhost": "/", "durable": True, "arguments": {}}


def answering(answer: Callable[[httpx.Request], httpx.Response], **options: Any) -> Management:
    """A client whose every request is answered by `answer`."""
    transport = httpx.MockTransport(answer)
    return Management(ADDRESS, transport=transport, clock=ManualClock(100.0), **options)


def fixed(status: int, body: object) -> Management:
    """A client that gets one answer to everything."""
    return answering(lambda _: httpx.Response(status, json=body))


async def test_overview_has_comparable_version() -> None:
    async with fixed(200, {"rabbitmq_version": "4.0.5", "cluster_name": "c"}) as management:
        found = await management.overview()
    assert (found.version, found.cluster) == (BrokerVersion(4, 0, 5), "c")


async def test_overview_without_version_is_an_error() -> None:
    async with fixed(200, {"hello": "world"}) as management:
        with pytest.raises(ManagementError, match="expected the broker's version"):
            await management.overview()


async def test_alarms_name_node_and_resource() -> None:
    failing = {"status": "failed", "alarms": [{"node": "rabbit@one", "resource": "memory"}]}
    async with fixed(503, failing) as management:
        assert await management.alarms() == (Alarm("rabbit@one", "memory"),)
    async with fixed(200, {"status": "ok"}) as management:
        assert await management.alarms() == ()


async def test_alarm_without_details_is_reported() -> None:
    async with fixed(503, {"status": "failed"}) as management:
        assert len(await management.alarms()) == 1


async def test_queues_have_policy_and_counts() -> None:
    page = {"items": [QUORUM, FRESH], "page_count": 1}
    async with fixed(200, page) as management:
        orders, new = await management.queues("/")
    assert orders.queue.type is QueueType.QUORUM
    assert dict(orders.queue.arguments) == {"x-dead-letter-exchange": ""}
    assert (orders.policy, dict(orders.effective_policy or {})) == ("p", {"max-length": 10})
    counts = orders.counts
    assert (counts.messages, counts.ready, counts.unacked, counts.held_back) == (7, 4, 1, 2)
    assert (counts.source, counts.read_at, counts.lag_s) == ("management", 100.0, 5.0)
    assert (new.counts.messages, new.effective_policy) == (None, None)


async def test_totals_are_requested_without_statistics() -> None:
    asked: list[dict[str, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(dict(request.url.params))
        return httpx.Response(200, json={"items": [QUORUM], "page_count": 1})

    async with answering(answer) as management:
        found = await management.totals("/")
    assert (found["orders"].messages, found["orders"].unacked) == (7, 1)
    assert asked[0]["disable_stats"] == asked[0]["enable_queue_totals"] == "true"
    assert asked[0]["page"] == "1"


async def test_holders_are_named() -> None:
    channel = {"vhost": "/", "user": "ann", "messages_unacknowledged": 0}
    answers = {
        "connections": [
            {"name": "1 -> 2", "user_provided_name": "shop", "connected_at": 1_800_000_000_500},
            {"name": "3 -> 4"},
        ],
        "consumers": [
            {
                "queue": {"name": "orders"},
                "channel_details": {"name": "1 -> 2 (1)"},
                "consumer_tag": "w-1",
            }
        ],
        "channels": [
            {**channel, "name": "1 -> 2 (1)", "connection_details": {"name": "1 -> 2"}},
            {**channel, "name": "3 -> 4 (1)", "connection_details": {"name": "3 -> 4"}}
            | {"messages_unacknowledged": 9},
            {**channel, "name": "3 -> 4 (2)", "connection_details": {"name": "3 -> 4"}},
            {**channel, "name": "5", "vhost": "other", "messages_unacknowledged": 7},
        ],
    }

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=answers[request.url.path.split("/")[2]])

    async with answering(answer) as management:
        found = await management.holders("/", "orders")
        channels = await management.channels("/")
    assert found == (
        "'shop' (1 -> 2), user 'ann': consumes, 0 unacked",
        "3 -> 4, user 'ann': 9 unacked",
    )
    assert channels == (
        ChannelReading("1 -> 2", "shop", "ann", 0, 1_800_000_000.5, (("orders", "w-1"),)),
        ChannelReading("3 -> 4", "", "ann", 9),
    )


async def test_connection_names_are_listed() -> None:
    asked: list[dict[str, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(dict(request.url.params))
        named = [("/", "shop"), ("other", "theirs"), ("/", "")]
        return httpx.Response(
            200,
            json=[{"vhost": "/"}]
            + [{"vhost": vhost, "user_provided_name": name} for vhost, name in named],
        )

    async with answering(answer) as management:
        assert await management.connection_names("/") == {"shop"}
    assert asked == [{"columns": "vhost,user_provided_name"}]


async def test_queues_are_read_by_page() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.raw_path.decode())
        number = int(request.url.params["page"])
        entry = {"name": f"q{number}", "arguments": {}}
        return httpx.Response(200, json={"items": [entry], "page_count": 3})

    async with answering(answer) as management:
        found = await management.queues("/")
    assert [reading.queue.name for reading in found] == ["q1", "q2", "q3"]
    assert all(path.startswith("/api/queues/%2F?") for path in asked)


async def test_queues_of_plugin_types_are_omitted() -> None:
    other = {"name": "mqtt", "type": "rabbit_mqtt_qos0_queue", "arguments": {}}
    async with fixed(200, [other, QUORUM]) as management:
        assert [found.queue.name for found in await management.queues("/")] == ["orders"]


def live(request: httpx.Request) -> httpx.Response:
    """A small broker: one queue, one exchange besides the built-in ones, a policy."""
    answers: dict[str, object] = {
        "/api/queues/v": {"items": [QUORUM], "page_count": 1},
        "/api/exchanges/v": [{"name": n, "type": "topic"} for n in ("", "amq.topic", "events")],
        "/api/bindings/v": [
            {
                "source": "",
                "destination": "orders",
                "destination_type": "queue",
                "routing_key": "o",
            },
            {
                "source": "events",
                "destination": "e2",
                "destination_type": "exchange",
                "routing_key": "a.#",
                "arguments": {"k": 1},
            },
        ],
        "/api/policies/v": [
            {
                "name": "p",
                "pattern": "^o",
                "definition": {"max-length": 10},
                "priority": 2,
                "apply-to": "queues",
            }
        ],
    }
    return httpx.Response(200, json=answers[request.url.path])


async def test_live_topology_omits_built_in_exchanges() -> None:
    async with answering(live) as management:
        topology = await management.live_topology("v")
    assert [exchange.name for exchange in topology.exchanges] == ["events"]
    assert topology.bindings == (Binding("events", "e2", "a.#", True, {"k": 1}),)
    assert topology.policies == (Policy("p", "^o", {"max-length": 10}, 2, "queues"),)
    assert topology.queue("orders") is not None


async def test_live_topology_without_permission_for_policies() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if "policies" in request.url.path:
            return httpx.Response(401, json={"error": "not_authorized", "reason": "no"})
        return live(request)

    async with answering(answer) as management:
        topology = await management.live_topology("v")
    assert topology.policies == (Policy("p", "^orders$", {"max-length": 10}),)


async def test_put_policy_sends_json() -> None:
    sent: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(204)

    policy = Policy("limit.a/b", "^a/b$", {"delivery-limit": -1}, 5, "queues")
    async with answering(answer) as management:
        await management.put_policy("/", policy)
    assert (sent[0].method, sent[0].url.raw_path) == ("PUT", b"/api/policies/%2F/limit.a%2Fb")
    assert json.loads(sent[0].content) == {
        "pattern": "^a/b$",
        "definition": {"delivery-limit": -1},
        "priority": 5,
        "apply-to": "queues",
    }


async def test_deleting_policy_twice_is_not_an_error() -> None:
    async with fixed(404, {"error": "Object Not Found"}) as management:
        await management.delete_policy("/", "gone")


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, ManagementRefused),
        (403, ManagementRefused),
        (404, ManagementNotFound),
        (400, ManagementError),
        (302, ManagementError),
    ],
)
async def test_refusals_have_class_status_and_reason(
    status: int, error: type[ManagementError]
) -> None:
    async with fixed(status, {"error": "x", "reason": "because of this"}) as management:
        with pytest.raises(error, match="because of this") as caught:
            await management.policies("/")
    assert type(caught.value) is error
    assert caught.value.status == status
    assert "hidden" not in str(caught.value)


async def test_unreachable_api_raises_connection_failed() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    async with answering(answer) as management:
        with pytest.raises(ConnectionFailed, match="--management URL") as caught:
            await management.overview()
    assert "hidden" not in str(caught.value)


async def test_endless_answer_is_cut_off() -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1000
            yield b" " * 1000

    async with answering(
        lambda _: httpx.Response(200, content=endless()), limit_bytes=10_000
    ) as management:
        with pytest.raises(ManagementError, match="at most 10000 bytes"):
            await management.overview()
    assert sent <= 12_000


async def test_html_answer_is_reported() -> None:
    async with answering(lambda _: httpx.Response(200, text="<html>")) as management:
        with pytest.raises(ManagementError, match="is this address a management API"):
            await management.overview()
