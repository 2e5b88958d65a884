"""The three ways to adopt a queue, computed from the broker's topology, and the parking policy set
and removed.
"""

from __future__ import annotations

import pytest

from hopback.broker.embedded import EmbeddedBroker
from hopback.broker.embedded.management import EmbeddedManagement
from hopback.errors import NoSuch, UnsafeOperation
from hopback.message import Message
from hopback.ops.brokers.adoption import (
    AdoptionWay,
    adoption,
    policy_name,
    revert_beside,
    set_beside,
)
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.testing import in_virtual_time
from hopback.topology import read_toml, write_toml
from hopback.topology.diff import diff
from hopback.topology.effective import effective_policy
from hopback.topology.expand import harden_queues, recommend_plan
from hopback.topology.model import Binding, Exchange, Policy, Queue, QueueType, Topology
from hopback.version import BrokerVersion

_V3_10 = BrokerVersion(3, 10)
_AS, _BESIDE, _MIGRATED = AdoptionWay.AS_IT_IS, AdoptionWay.BESIDE, AdoptionWay.MIGRATED


def _live(queue: Queue, *others: Queue, policies: tuple[Policy, ...] = ()) -> Topology:
    return Topology(
        "/",
        exchanges=(Exchange("shop", "topic"), Exchange("unused")),
        queues=(queue, *others),
        bindings=(Binding("shop", queue.name, "order.*"), Binding("shop", "elsewhere", "#")),
        policies=policies,
    )


_FORMS = {
    "classic": Queue("orders"),
    "limited": Queue("orders", arguments={"x-max-length": 10, "x-max-priority": 5}),
    "passing": Queue("orders", durable=False),
    "quorum": Queue("orders", QueueType.QUORUM, arguments={"x-delivery-limit": 5}),
    "recommended": harden_queues(recommend_plan("orders", tiers_ms=[1000]))[0],
}


@pytest.mark.parametrize("form", _FORMS)
@pytest.mark.parametrize("way", [_AS, _BESIDE])
def test_adopting_queue_unchanged_has_no_conflicts(form: str, way: AdoptionWay) -> None:
    """The written file parses to the same topology."""
    live = _live(_FORMS[form])
    choice = adoption(live, "orders", _V3_10).choice(way)
    written = read_toml(write_toml(choice.topology))
    assert written == choice.topology
    found = diff(written, live)
    assert found.conflict == ()
    assert [entry.name for entry in found.same] == ["shop", "orders", 'shop → orders by "order.*"']


@pytest.mark.parametrize("form", _FORMS)
def test_migration_declares_recommended_quorum_queue(form: str) -> None:
    """It keeps the bindings and the supported arguments.

    Notes name the arguments that are dropped.
    """
    choice = adoption(_live(_FORMS[form]), "orders", _V3_10).choice(_MIGRATED)
    written = read_toml(write_toml(choice.topology))
    main = written.queue("orders")
    assert main is not None
    assert main.type is QueueType.QUORUM
    assert main.arguments["x-dead-letter-strategy"] == "at-least-once"
    assert [binding.source for binding in written.bindings] == ["shop"]
    assert ("x-max-length" in main.arguments) is (form == "limited")
    assert any("x-max-priority" in note for note in choice.notes) is (form == "limited")
    assert any("does not need a migration" in note for note in choice.notes) is (
        form == "recommended"
    )
    assert main.arguments["x-delivery-limit"] == (5 if form == "quorum" else 200)


def test_decorator_is_offered_only_for_recommended_form() -> None:
    """Its delays are those of the existing retry queues."""
    plan = recommend_plan("orders", tiers_ms=[1000, 300_000])
    found = adoption(_live(*harden_queues(plan)), "orders", _V3_10)
    assert found.choice(_AS).decorator == '@app.handler("orders", retry=["1s", "5m"])'
    assert adoption(_live(Queue("orders")), "orders", _V3_10).choice(_AS).decorator == ""


def test_adoption_uses_existing_retry_and_dead_letter_queues() -> None:
    wait = Queue(
        "orders-wait",
        arguments={
            "x-message-ttl": 7000,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "orders",
        },
    )
    main = Queue("orders", arguments={"x-dead-letter-exchange": "dead"})
    live = Topology(
        "/",
        exchanges=(Exchange("dead", "fanout"),),
        queues=(main, wait, Queue("graveyard")),
        bindings=(Binding("dead", "graveyard"),),
    )
    choice = adoption(live, "orders", _V3_10).choice(_AS)
    (plan,) = choice.topology.plans
    assert plan.parking.queue == "graveyard"
    assert [route.queue for tier in plan.tiers for route in tier.routes] == ["orders-wait"]
    assert diff(choice.topology, live).create == ()
    assert choice.refused == ()


def _policy(name: str, priority: int = 0, **definition: object) -> Policy:
    keys = {key.replace("_", "-"): value for key, value in definition.items()}
    return Policy(name, "^orders$", keys, priority, "queues")  # type: ignore[arg-type]


def test_beside_policy_keeps_keys_of_policy_in_force() -> None:
    """Policies do not merge.

    The new one has the keys of the stronger policy and a higher priority.
    """
    policies = (
        _policy("weak", 1, expires=9),
        _policy("strong", 7, max_length=50, overflow="drop-head"),
    )
    choice = adoption(_live(Queue("orders"), policies=policies), "orders", _V3_10).choice(_BESIDE)
    (ours,) = choice.topology.policies
    assert dict(ours.definition) == {
        "max-length": 50,
        "overflow": "drop-head",
        "dead-letter-exchange": "",
        "dead-letter-routing-key": "orders.dlq",
    }
    assert (ours.priority, ours.pattern, choice.refused) == (8, "^orders$", ())


_QUORUM = Queue("orders", QueueType.QUORUM)


@pytest.mark.parametrize(
    ("queue", "policies", "told", "why"),
    [
        (
            Queue("orders", arguments={"x-dead-letter-exchange": "x"}),
            (),
            None,
            "arguments override policies",
        ),
        (
            Queue("orders"),
            (_policy("p", dead_letter_exchange="x"),),
            None,
            "already sets the dead-letter exchange",
        ),
        (_QUORUM, (_policy("p", dead_letter_strategy="at-least-once"),), None, "at-least-once"),
        (Queue("orders", arguments={"x-overflow": "reject-publish-dlx"}), (), None, "overflow"),
        (_QUORUM, (_policy("hopback-main-limit.orders"),), None, "topology revert"),
        (Queue("orders"), (_policy("p"),), "another", "the broker applies policy another"),
        (Queue("orders", QueueType.STREAM), (), None, "stream"),
        (Queue("orders", exclusive=True), (), None, "exclusive"),
    ],
    ids=["argument", "policy", "strategy", "overflow", "limit", "told", "stream", "exclusive"],
)
def test_beside_policy_is_refused_if_it_changes_behaviour(
    queue: Queue, policies: tuple[Policy, ...], told: str | None, why: str
) -> None:
    """The other ways are still offered."""
    found = adoption(_live(queue, policies=policies), "orders", _V3_10, reported_policy=told)
    assert any(why in each for each in found.choice(_BESIDE).refused)
    assert found.choice(_AS).topology.queue("orders") == queue


def test_beside_policy_is_refused_if_dead_letter_queue_expires_messages() -> None:
    """The limit comes from an existing queue of that name or from a policy for all queues."""
    short = Queue("orders.dlq", arguments={"x-message-ttl": 5})
    found = adoption(_live(Queue("orders"), short), "orders", _V3_10)
    assert any("x-message-ttl = 5" in why for why in found.choice(_BESIDE).refused)
    every = Policy("every", "", {"max-length": 7})
    found = adoption(_live(Queue("orders"), policies=(every,)), "orders", _V3_10)
    assert any(
        "x-max-length = 7, under policy every" in why for why in found.choice(_BESIDE).refused
    )


def test_adopting_missing_queue_raises_no_such() -> None:
    with pytest.raises(NoSuch, match="'orders'"):
        adoption(Topology("/"), "orders", _V3_10)


@in_virtual_time
async def test_rejected_messages_are_parked_until_policy_is_reverted() -> None:
    """Setting it twice has no further effect. Reverting restores the former policy."""
    broker = EmbeddedBroker()
    connection = await broker.connect("test")
    view = EmbeddedManagement(broker)
    managed = ManagedBroker(broker, management=view)
    channel = await connection.open_channel()
    await channel.declare_queue(Queue("orders"))
    former = _policy("former", 3, max_length=100)
    await view.put_policy("/", former)
    for number in range(10):
        await channel.publish(Message("", "orders", b"%d" % number))
    assert (await set_beside(managed, "orders")).created == "orders.dlq"
    assert (await set_beside(managed, "orders")).created is None
    queue = Queue("orders")
    ours = effective_policy(queue, await view.policies("/"))
    assert ours is not None
    assert (ours.name, ours.definition["max-length"]) == (policy_name("orders"), 100)
    for _ in range(4):
        delivery = await channel.get("orders")
        assert delivery is not None
        channel.nack(delivery.tag, requeue=False)
    await channel.close()
    channel = await connection.open_channel()
    dead = await channel.declare_queue(Queue("orders.dlq"), passive=True)
    left = await channel.declare_queue(Queue("orders"), passive=True)
    assert (left.messages, dead.messages) == (6, 4)
    assert await revert_beside(managed, "orders") == ours
    assert await revert_beside(managed, "orders") is None
    assert effective_policy(queue, await view.policies("/")) == former
    await connection.close()


@in_virtual_time
async def test_refused_beside_policy_creates_no_queue_and_no_policy() -> None:
    broker = EmbeddedBroker()
    connection = await broker.connect("test")
    channel = await connection.open_channel()
    await channel.declare_queue(Queue("orders", arguments={"x-dead-letter-exchange": "x"}))
    view = EmbeddedManagement(broker)
    managed = ManagedBroker(broker, management=view)
    with pytest.raises(UnsafeOperation, match="did not change the broker"):
        await set_beside(managed, "orders")
    assert await view.policies("/") == ()
    assert [queue.name for queue in (await view.live_topology("/")).queues] == ["orders"]
    await connection.close()
