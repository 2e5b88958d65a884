"""Apply over AMQP alone on the embedded broker, and refusals that prevent losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hopback.broker.apply import AtRisk, apply, live_plan, plan
from hopback.broker.declare import difference_of
from hopback.broker.embedded import EmbeddedBroker, EmbeddedManagement
from hopback.designs import DESIGNS
from hopback.errors import TopologyConflict, UnsafeOperation
from hopback.message import Message
from hopback.testing import in_virtual_time
from hopback.topology.model import Binding, Exchange, Policy, Queue, QueueType, Topology
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hopback.broker.port import Connection

V4 = BrokerVersion(4, 0)
DESIRED = DESIGNS["file-pipeline"].build({}, hardened=False)


@pytest.fixture
async def connection() -> AsyncIterator[Connection]:
    """A connection to an empty embedded broker."""
    opened = await EmbeddedBroker(version=V4).connect("test")
    yield opened
    await opened.close()


async def names(connection: Connection, topology: Topology) -> set[str]:
    """Which of the topology's queues are missing, by the plan."""
    planned = await live_plan(topology, connection, None, "/")
    return {step.name for step in planned.steps if step.kind == "queue"}


async def test_apply_creates_all_objects_and_is_repeatable(connection: Connection) -> None:
    planned = await live_plan(DESIRED, connection, None, "/")
    told: list[str] = []
    applied = await apply(planned, connection, on_done=told.append)
    assert len(applied.done) == len(planned.steps) == len(told)
    again = await live_plan(DESIRED, connection, None, "/")
    assert {str(step.kind) for step in again.steps} == {"binding"}
    await apply(again, connection)


async def test_plan_creates_no_object(connection: Connection) -> None:
    first = await names(connection, DESIRED)
    assert first == {queue.name for queue in DESIRED.queues}
    assert await names(connection, DESIRED) == first


class Cut(Exception):
    """The line ends."""


@pytest.mark.parametrize("after", range(1, 12))
async def test_interrupted_apply_is_completed_by_next(connection: Connection, after: int) -> None:
    count = 0

    def interrupt(_: str) -> None:
        nonlocal count
        count += 1
        if count == after:
            raise Cut

    with pytest.raises(Cut):
        await apply(await live_plan(DESIRED, connection, None, "/"), connection, on_done=interrupt)
    await apply(await live_plan(DESIRED, connection, None, "/"), connection)
    assert await names(connection, DESIRED) == set()


async def test_conflict_refuses_whole_apply(connection: Connection) -> None:
    channel = await connection.open_channel()
    await channel.declare_queue(Queue("a"))
    desired = Topology("d", queues=(Queue("a", arguments={"x-message-ttl": 5}), Queue("b")))
    planned = await live_plan(desired, connection, None, "/")
    with pytest.raises(TopologyConflict, match="x-message-ttl"):
        await apply(planned, connection)
    assert await names(connection, desired) == {"b"}
    applied = await apply(planned, connection, skip_conflicts=True)
    assert [conflict.name for conflict in applied.left] == ["a"]
    assert await names(connection, desired) == set()


async def test_object_created_after_plan_is_a_conflict(connection: Connection) -> None:
    desired = Topology("d", queues=(Queue("a", arguments={"x-message-ttl": 5}),))
    planned = await live_plan(desired, connection, None, "/")
    channel = await connection.open_channel()
    await channel.declare_queue(Queue("a"))
    with pytest.raises(TopologyConflict, match="queue a: x-message-ttl"):
        await apply(planned, connection)


def replacement() -> tuple[Topology, Topology]:
    """A desired queue `a` and a different live one with an additional binding."""
    live = Topology("/", (Exchange("x"),), (Queue("a"),), (Binding("x", "a", "extra"),))
    return Topology("d", queues=(Queue("a", arguments={"x-message-ttl": 60_000}),)), live


async def make(connection: Connection, live: Topology) -> None:
    """Create a topology unchanged."""
    channel = await connection.open_channel()
    for exchange in live.exchanges:
        await channel.declare_exchange(exchange)
    for queue in live.queues:
        await channel.declare_queue(queue)
    for binding in live.bindings:
        await channel.bind(binding)


@in_virtual_time
async def test_empty_unused_queue_is_replaced_with_its_bindings() -> None:
    broker = EmbeddedBroker(version=V4)
    connection, management = await broker.connect("test"), EmbeddedManagement(broker)
    desired, live = replacement()
    await make(connection, live)
    planned = plan(desired, live, V4, (AtRisk("a", 0, 0),))
    applied = await apply(planned, connection, management, replace=["a"])
    assert applied.done == ("replaced queue a",)
    channel = await connection.open_channel()
    await channel.declare_queue(desired.queues[0])
    await channel.publish(Message("x", "extra", b"still routed"))
    assert (await channel.declare_queue(Queue("a"), passive=True)).messages == 1


async def test_queue_with_messages_is_not_replaced(connection: Connection) -> None:
    desired, live = replacement()
    await make(connection, live)
    planned = plan(desired, live, V4, (AtRisk("a", 3, 0),))
    with pytest.raises(UnsafeOperation, match="queue a: 3 messages at risk"):
        await apply(planned, connection, replace=["a"])


@in_virtual_time
async def test_message_published_after_plan_is_kept() -> None:
    broker = EmbeddedBroker(version=V4)
    connection, management = await broker.connect("test"), EmbeddedManagement(broker)
    desired, live = replacement()
    await make(connection, live)
    planned = plan(desired, live, V4, (AtRisk("a", 0, 0),))
    channel = await connection.open_channel()
    await channel.publish(Message("", "a", b"late"))
    await apply(planned, connection, management, replace=["a"])
    found = await channel.get("a")
    assert found is not None
    assert found.body == b"late"
    await channel.declare_queue(desired.queues[0])


@pytest.mark.parametrize(
    ("live", "desired", "words"),
    [
        (
            Topology("/", queues=(Queue("a", QueueType.QUORUM),)),
            Topology("d", queues=(Queue("a"),)),
            "cannot delete a quorum queue only if it is empty",
        ),
        (
            Topology("/", (Exchange("a", "fanout"),)),
            Topology("d", (Exchange("a", "direct"),)),
            "dead letters sent to it are dropped",
        ),
        (
            Topology("/", queues=(Queue("a", auto_delete=True),)),
            Topology("d", queues=(Queue("a"),)),
            "it is auto-delete",
        ),
    ],
)
async def test_unsafe_replacements_are_refused(
    connection: Connection, live: Topology, desired: Topology, words: str
) -> None:
    await make(connection, live)
    planned = plan(desired, live, V4, (AtRisk("a", 0, 0),))
    with pytest.raises(UnsafeOperation, match=words):
        await apply(planned, connection, replace=["a"])


async def test_replacement_without_management_api_is_refused(connection: Connection) -> None:
    desired, live = replacement()
    await make(connection, live)
    planned = await live_plan(desired, connection, None, "/")
    with pytest.raises(UnsafeOperation, match="bindings of a queue cannot be read"):
        await apply(planned, connection, replace=["a"])


async def test_policy_without_management_api_is_reported(connection: Connection) -> None:
    desired = DESIGNS["ratatoskr"].build({"queue": "q"}, hardened=False)
    planned = await live_plan(desired, connection, None, "/")
    assert any("q.dlq" in note and "21st time" in note for note in planned.notes)
    whole = plan(desired, Topology("/"), V4)
    with pytest.raises(UnsafeOperation, match="without the management API"):
        await apply(whole, connection)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'cc' in vhost 't1': "
            "received the value '5' of type 'long' but current is none",
            ("x-message-ttl", "5", None),
        ),
        (
            "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'cc' in vhost 't1': "
            "received none but current is the value '5' of type 'signedint'",
            ("x-message-ttl", None, "5"),
        ),
        (
            "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'ee' in vhost 't1': "
            "received 'topic' but current is 'direct'",
            ("type", "topic", "direct"),
        ),
        ("PRECONDITION_FAILED - something else", ("declaration", None, None)),
    ],
)
def test_broker_refusal_is_parsed(text: str, expected: tuple[str, str | None, str | None]) -> None:
    found = difference_of(text)
    assert (found.field, found.desired, found.actual) == expected


async def test_conflicting_policy_is_replaced_only_by_name(connection: Connection) -> None:
    desired = Topology("d", policies=(Policy("p", "^a", {"max-length": 1}),))
    live = Topology("/", policies=(Policy("p", "^a", {"max-length": 2}),))
    with pytest.raises(TopologyConflict, match="policy p"):
        await apply(plan(desired, live, V4), connection)
