"""The management client on a real RabbitMQ."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from hopback.broker.management import Management, ManagementAddress
from hopback.broker.rabbitmq import RabbitMQ
from hopback.designs import DESIGNS
from hopback.errors import ManagementError, ManagementNotFound, ManagementRefused
from hopback.topology.definitions import read_definitions, write_definitions
from hopback.topology.diff import diff
from hopback.topology.model import Binding, Exchange, Policy, Queue, QueueType, Topology

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.shared import SharedNode

pytestmark = pytest.mark.broker

TOPOLOGY = Topology(
    "made",
    (Exchange("events", "topic"), Exchange("inner", "headers", arguments={"alternate-exchange": "events"})),
    (
        Queue("plain"),
        Queue("waits", QueueType.QUORUM, arguments={"x-message-ttl": 9, "x-dead-letter-exchange": ""}),
        Queue("log", QueueType.STREAM, arguments={"x-max-length-bytes": 1_000_000}),
    ),
    (
        Binding("events", "plain", "a.#"),
        Binding("events", "plain", "b.*"),
        Binding("events", "inner", "#", to_exchange=True),
        Binding("inner", "waits", "", arguments={"x-match": "all", "kind": "slow"}),
    ),
)  # fmt: skip


@pytest.fixture
async def management(rabbitmq: SharedNode) -> AsyncIterator[Management]:
    """A client of the run's node."""
    async with Management(ManagementAddress.derive(None, rabbitmq.management_url)) as client:
        yield client


async def declare(url: str, topology: Topology) -> None:
    """Create the topology over AMQP."""
    connection = await RabbitMQ(url).connect("test")
    channel = await connection.open_channel()
    for exchange in topology.exchanges:
        await channel.declare_exchange(exchange)
    for queue in topology.queues:
        await channel.declare_queue(queue)
    for binding in topology.bindings:
        await channel.bind(binding)
    await connection.close()


async def test_overview_has_version_and_no_alarms(management: Management) -> None:
    overview = await management.overview()
    assert overview.version.major >= 3
    assert await management.alarms() == ()
    assert any(flag.name == "quorum_queue" for flag in await management.feature_flags())


async def test_live_topology_equals_declared_topology(
    management: Management, amqp_url: str, vhost: str
) -> None:
    """Types, arguments and bindings are compared."""
    await declare(amqp_url, TOPOLOGY)
    live = await management.live_topology(vhost)
    found = diff(TOPOLOGY, live)
    assert (found.create, found.conflict, found.extra) == ((), (), ())
    assert sorted(live.queues, key=repr) == sorted(TOPOLOGY.queues, key=repr)
    assert sorted(live.bindings, key=repr) == sorted(TOPOLOGY.bindings, key=repr)


async def test_policies_are_set_read_and_deleted(
    management: Management, amqp_url: str, vhost: str
) -> None:
    """Deleting twice is not an error."""
    await declare(amqp_url, TOPOLOGY)
    policy = Policy(
        "odd name/1", "^plain$", {"max-length": 7, "overflow": "reject-publish"}, 3, "queues"
    )
    await management.put_policy(vhost, policy)
    assert await management.policies(vhost) == (policy,)
    for _ in range(100):
        reading = await management.queue(vhost, "plain")
        if reading.policy:
            break
        await asyncio.sleep(0.1)
    assert reading.policy == policy.name
    assert dict(reading.effective_policy or {}) == dict(policy.definition)
    await management.delete_policy(vhost, policy.name)
    await management.delete_policy(vhost, policy.name)
    assert await management.policies(vhost) == ()


async def test_invalid_policy_is_refused_with_reason_of_broker(
    management: Management, vhost: str
) -> None:
    with pytest.raises(ManagementError, match=r'"many".* is not a valid maximum length') as caught:
        await management.put_policy(vhost, Policy("p", "^x", {"max-length": "many"}))
    assert caught.value.status == 400
    assert await management.policies(vhost) == ()


@pytest.mark.parametrize("name", ["event-bus", "ratatoskr"])
async def test_definitions_round_trip_through_rabbitmq(
    management: Management, vhost: str, name: str
) -> None:
    desired = DESIGNS[name].build({}, hardened=True)
    document, _ = write_definitions(desired, vhost=vhost)
    await management.import_definitions(document, vhost)
    exported = await management.definitions(vhost)
    back = read_definitions(exported, vhost=vhost)
    found = diff(desired, back)
    assert (found.create, found.conflict) == ((), ())


async def test_management_errors_distinguish_missing_and_refused(
    management: Management, rabbitmq: SharedNode, vhost: str
) -> None:
    with pytest.raises(ManagementNotFound):
        await management.queue(vhost, "missing")
    with pytest.raises(ManagementNotFound):
        await management.live_topology("no-such-vhost")
    address = ManagementAddress.derive("amqp://guest:wrong-one@mq", _without_user(rabbitmq))
    async with Management(address) as stranger:
        with pytest.raises(ManagementRefused) as caught:
            await stranger.overview()
    assert "wrong-one" not in str(caught.value)


def _without_user(rabbitmq: SharedNode) -> str:
    scheme, _, rest = rabbitmq.management_url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
