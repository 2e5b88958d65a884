"""Queues that are empty only in name are not deleted: on the embedded broker, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from hopback.broker.apply import apply, live_plan
from hopback.broker.declare import declare
from hopback.broker.embedded import EmbeddedBroker, EmbeddedManagement
from hopback.broker.emptiness import Emptiness, feeders
from hopback.broker.migrate import migrate, migration
from hopback.broker.port import count_now
from hopback.designs import DESIGNS
from hopback.errors import UnsafeOperation
from hopback.message import Message, Properties
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.operations import Operations
from hopback.testing import in_virtual_time
from hopback.topology.expand import SHADOW
from hopback.topology.model import Binding, Exchange, Policy, Queue, QueueType, Topology
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from hopback.broker.management.readings import QueueCounts
    from hopback.broker.port import Channel, Connection
    from hopback.fields import FieldValue
    from hopback.topology.plan import Plan

V = BrokerVersion(4, 0)
FAITHFUL = DESIGNS["raffle"].build()
HARDENED = DESIGNS["raffle"].build(hardened=True)
DLQ = "raffle_dlq"


@dataclass(frozen=True, slots=True)
class Site:
    """A broker with a connection and a management client."""

    broker: EmbeddedBroker
    connection: Connection
    management: EmbeddedManagement

    async def fill(self, queue: str, count: int) -> None:
        """Put numbered messages into a queue."""
        channel = await self.connection.open_channel()
        for number in range(count):
            body, properties = f"{number}".encode(), Properties(delivery_mode=2)
            await channel.publish(Message("", queue, body, properties))
        await channel.close()

    async def hold(self, queue: str, count: int, name: str = "somebody") -> Channel:
        """Take messages, cancel the consumer and hold them."""
        channel = await (await self.broker.connect(name)).open_channel()
        taken = asyncio.Semaphore(0)
        await channel.qos(count)
        tag = await channel.consume(queue, lambda _: taken.release())
        for _ in range(count):
            await taken.acquire()
        await channel.cancel(tag)
        return channel

    async def fetch(self, queue: str, count: int, name: str = "somebody") -> Channel:
        """Hold messages without ever having been a consumer: a quorum queue counts cancelled ones too."""
        channel = await (await self.broker.connect(name)).open_channel()
        for _ in range(count):
            assert await channel.get(queue) is not None
        return channel

    async def migrate(self, desired: Topology) -> int:
        """Migrate from the live topology."""
        live = await self.management.live_topology()
        return await migrate(self.connection, migration(desired, live), management=self.management)

    async def replace(self, desired: Topology, queue: str) -> None:
        """Apply with --replace."""
        planned = await live_plan(desired, self.connection, self.management, "/")
        await apply(planned, self.connection, self.management, replace=[queue])

    async def bodies(self, queue: str) -> Counter[bytes]:
        """Take all messages of a queue and return their bodies."""
        channel = await self.connection.open_channel()
        found: Counter[bytes] = Counter()
        while delivery := await channel.get(queue):
            found[delivery.body] += 1
            channel.ack(delivery.tag)
        await channel.close()
        return found


async def site(version: BrokerVersion = V) -> Site:
    """An empty broker."""
    broker = EmbeddedBroker(version=version)
    return Site(broker, await broker.connect("test"), EmbeddedManagement(broker))


def numbered(count: int) -> Counter[bytes]:
    """The messages of `fill`, each once."""
    return Counter(f"{number}".encode() for number in range(count))


async def just_after_a_tick() -> None:
    """Go to where what happens now stays out of the totals for nearly five seconds."""
    now = asyncio.get_running_loop().time()
    await asyncio.sleep(5.0 - now % 5.0 + 0.01)


# --- the four ways in which messages were lost


@in_virtual_time
async def test_browse_session_prevents_migration_until_released() -> None:
    """The error names the session, and no message is lost."""
    on = await site()
    await declare(on.connection, FAITHFUL)
    await on.fill(DLQ, 300)
    async with Operations(ManagedBroker(on.broker, management=on.management)) as operations:
        session = await operations.open_session(DLQ)
        assert session.held == 100
        with pytest.raises(UnsafeOperation, match="100 messages of 'raffle_dlq' are held unacked"):
            await on.migrate(HARDENED)
        await operations.release(session.id)
    await on.migrate(HARDENED)
    assert await on.bodies(DLQ) == numbered(300)


@in_virtual_time
async def test_session_opened_during_migration_prevents_delete() -> None:
    """The next migration completes."""
    on = await site()
    await declare(on.connection, HARDENED)
    await on.fill(DLQ, 50)
    holding: list[Channel] = []
    told: list[str] = []
    again = Topology(
        "again", queues=(Queue(DLQ, QueueType.QUORUM, arguments={"x-max-length": 10_000}),)
    )

    async def look() -> None:
        holding.append(await on.hold(DLQ, 50, "a curious person"))

    live = await on.management.live_topology()
    planned = migration(again, live)
    await just_after_a_tick()
    looking = asyncio.create_task(look())
    with pytest.raises(
        UnsafeOperation, match=r"Held by: 'a curious person': 50 unacked"
    ) as refused:
        await migrate(on.connection, planned, told.append, management=on.management)
    await looking
    assert "Run the command again" in str(refused.value)
    assert any("waiting: 50 messages of 'raffle_dlq'" in text for text in told)
    await holding[0].close()
    await on.migrate(again)
    assert await on.bodies(DLQ) == numbered(50)


@in_virtual_time
async def test_migration_waits_for_stopping_consumer() -> None:
    """It has cancelled its consumer and ends 30 s later. Its messages are in the new queue."""
    on = await site()
    await declare(on.connection, HARDENED)
    (main,) = [plan.queue for plan in HARDENED.plans]
    await on.fill(main, 15)
    changed = replace(
        HARDENED,
        queues=tuple(
            replace(queue, arguments={**queue.arguments, "x-delivery-limit": 77})
            if queue.name == main
            else queue
            for queue in HARDENED.queues
        ),
    )
    await just_after_a_tick()
    channel = await on.fetch(main, 15)

    async def die() -> None:
        await asyncio.sleep(30)
        await channel.close()

    dying = asyncio.create_task(die())
    await on.migrate(changed)
    await dying
    assert await on.bodies(main) == numbered(15)


@in_virtual_time
async def test_cancelled_consumer_with_unacked_messages_counts_as_consumer() -> None:
    """RabbitMQ counts it for a quorum queue until it acks."""
    on = await site()
    await declare(on.connection, HARDENED)
    (main,) = [plan.queue for plan in HARDENED.plans]
    await on.fill(main, 15)
    changed = Topology(
        "changed", queues=(Queue(main, QueueType.QUORUM, arguments={"x-delivery-limit": 77}),)
    )
    await just_after_a_tick()
    channel = await on.hold(main, 15)
    with pytest.raises(UnsafeOperation, match=f"'{main}' has 1 consumers; 15 messages"):
        await on.migrate(changed)
    await channel.close()
    await on.migrate(changed)
    assert await on.bodies(main) == numbered(15)


def held_back(delay_ms: int) -> Topology:
    """A retry queue that holds messages back because its target rejects them."""
    arguments: dict[str, FieldValue] = {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "full",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        "x-message-ttl": delay_ms,
    }
    full: dict[str, FieldValue] = {"x-max-length": 1, "x-overflow": "reject-publish"}
    return Topology(
        "t",
        queues=(
            Queue("retry", QueueType.QUORUM, arguments=arguments),
            Queue("full", QueueType.QUORUM, arguments=full),
        ),
    )


@in_virtual_time
async def test_queue_with_held_back_dead_letters_is_not_deleted() -> None:
    on = await site()
    await declare(on.connection, held_back(1000))
    await on.fill("full", 2)
    await on.fill("retry", 59)
    await just_after_a_tick()
    await asyncio.sleep(1.5)
    state = await count_now(on.connection, "retry")
    assert state is not None
    assert state.messages == 0
    with pytest.raises(UnsafeOperation, match="59 messages of 'retry' are held back"):
        await on.migrate(held_back(2000))
    channel = await on.connection.open_channel()
    await channel.purge_queue("full")
    arrived: Counter[bytes] = Counter()
    while len(arrived) < 59:  # they come as there is room
        arrived += await on.bodies("full")
        await asyncio.sleep(1)
    assert arrived == numbered(59)


@in_virtual_time
async def test_replacement_does_not_trust_stale_statistics() -> None:
    on = await site()
    await declare(on.connection, Topology("t", queues=(Queue("a"),)))
    await just_after_a_tick()
    await on.fill("a", 50)
    channel = await on.hold("a", 50)
    desired = Topology("t", queues=(Queue("a", arguments={"x-message-ttl": 60_000}),))
    planned = await live_plan(desired, on.connection, on.management, "/")
    assert planned.at_risk[0].messages == 0
    with pytest.raises(UnsafeOperation, match="50 messages of 'a' are held unacked"):
        await on.replace(desired, "a")
    await channel.close()
    assert await on.bodies("a") == numbered(50)


# --- the rule itself


async def deleted_by(on: Site, watch_s: float) -> Counter[bytes]:
    """Try to delete a quorum queue with 50 unacked messages and return the remaining messages."""
    await declare(on.connection, Topology("t", queues=(Queue("q", QueueType.QUORUM),)))
    await just_after_a_tick()
    await on.fill("q", 50)
    channel = await on.fetch("q", 50)
    emptiness = Emptiness(on.connection, on.management, watch_s=watch_s)

    async def nothing_to_move(_queue: str) -> None:
        raise AssertionError("nothing is ready")

    try:
        await emptiness.delete([Queue("q", QueueType.QUORUM)], move=nothing_to_move)
    except UnsafeOperation:
        await channel.close()
        return await on.bodies("q")
    return Counter()


@in_virtual_time
async def test_delete_after_one_reading_loses_unacked_messages_and_after_15_s_does_not() -> None:
    """The totals of a quorum queue lag on both brokers."""
    assert await deleted_by(await site(), watch_s=0.0) == Counter()
    assert await deleted_by(await site(), watch_s=4.0) == Counter()
    assert await deleted_by(await site(), watch_s=15.0) == numbered(50)


@in_virtual_time
async def test_delete_without_management_api_is_refused_with_remedy() -> None:
    on = await site()
    await declare(on.connection, FAITHFUL)
    planned = migration(HARDENED, await on.management.live_topology())
    with pytest.raises(UnsafeOperation, match="--management URL"):
        await migrate(on.connection, planned)
    await declare(on.connection, FAITHFUL)


class Untold(EmbeddedManagement):
    """A management API that has no numbers of a queue for some time, as after a restart."""

    def __init__(self, broker: EmbeddedBroker, until: float) -> None:
        super().__init__(broker)
        self._until = until

    async def totals(self, vhost: str = "/") -> dict[str, QueueCounts]:
        """No totals until that time."""
        found = await super().totals(vhost)
        if asyncio.get_running_loop().time() >= self._until:
            return found
        return {name: replace(one, messages=None, ready=None) for name, one in found.items()}


async def untold(silent_s: float) -> Site:
    """A queue with three messages and no totals for the given time."""
    on = await site()
    await declare(on.connection, Topology("t", queues=(Queue("a", QueueType.QUORUM),)))
    await on.fill("a", 3)
    until = asyncio.get_running_loop().time() + silent_s
    return replace(on, management=Untold(on.broker, until))


@in_virtual_time
async def test_missing_totals_are_awaited() -> None:
    """A queue reports them at its first tick."""
    on = await untold(4.0)
    await on.migrate(Topology("t", queues=(Queue("a"),)))
    assert await on.bodies("a") == numbered(3)


@in_virtual_time
async def test_totals_that_never_arrive_prevent_delete() -> None:
    on = await untold(1000.0)
    with pytest.raises(UnsafeOperation, match="does not report the number of messages in 'a'"):
        await on.migrate(Topology("t", queues=(Queue("a"),)))
    assert await on.bodies("a") == numbered(3)


@in_virtual_time
async def test_queue_is_deleted_only_when_its_feeding_queue_is_empty() -> None:
    """A retry queue returns messages to it by name."""
    on = await site()
    wait: dict[str, FieldValue] = {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "main",
        "x-message-ttl": 30_000,
    }
    retry = Queue("retry", QueueType.QUORUM, arguments=wait)
    await declare(on.connection, Topology("t", queues=(Queue("main"), retry)))
    await on.fill("retry", 7)
    began = asyncio.get_running_loop().time()
    await on.migrate(Topology("t", queues=(Queue("main", QueueType.QUORUM), retry)))
    assert asyncio.get_running_loop().time() - began > 45
    assert await on.bodies("main") == numbered(7)


def keyless(ttl_ms: int, *queues: Queue) -> Topology:
    """A retry queue behind a fanout exchange. Its messages return by their original routing key."""
    wait: dict[str, FieldValue] = {"x-dead-letter-exchange": "", "x-message-ttl": ttl_ms}
    return Topology(
        "t",
        (Exchange("failed", "fanout"),),
        (*queues, Queue("orders.wait", arguments=wait)),
        (Binding("failed", "orders.wait"),),
    )


def classic_orders(ttl_ms: int) -> Topology:
    """A queue whose failures wait in the retry queue."""
    return keyless(ttl_ms, Queue("orders", arguments={"x-dead-letter-exchange": "failed"}))


def quorum_orders(ttl_ms: int) -> Topology:
    """Only the type of the main queue differs."""
    failed = {"x-dead-letter-exchange": "failed"}
    return keyless(ttl_ms, Queue("orders", QueueType.QUORUM, arguments=failed))


async def reject(on: Site, queue: str, count: int) -> None:
    """Publish messages to a queue and reject them."""
    await on.fill(queue, count)
    channel = await on.connection.open_channel()
    while delivery := await channel.get(queue):
        channel.reject(delivery.tag, requeue=False)
    await channel.close()


@in_virtual_time
async def test_queue_is_not_deleted_while_retries_return_by_original_routing_key() -> None:
    """The broker would drop a retry that expires between the delete and the declare."""
    on = await site()
    await declare(on.connection, classic_orders(30_000))
    await reject(on, "orders", 7)
    loop = asyncio.get_running_loop()
    began = loop.time()
    gone: list[float] = []
    told: list[str] = []

    def note(text: str) -> None:
        told.append(text)
        if "the old queue is gone" in text:
            gone.append(loop.time())

    planned = migration(quorum_orders(30_000), await on.management.live_topology())
    assert [one.queue.name for one in planned.replacements] == ["orders"]
    await migrate(on.connection, planned, note, management=on.management)
    assert gone[0] - began > 30
    assert told[0].startswith("waiting: 'orders.wait' has 7 messages, and may send dead letters to")
    assert await on.bodies("orders") == numbered(7)


@in_virtual_time
async def test_retries_that_wait_longer_than_migration_prevent_it_before_any_change() -> None:
    on = await site()
    await declare(on.connection, classic_orders(3_600_000))
    await reject(on, "orders", 7)
    await on.fill("orders", 5)
    refused = r"no changes were made: 'orders\.wait' has 7 messages, and may send dead letters to"
    with pytest.raises(UnsafeOperation, match=refused):
        await on.migrate(quorum_orders(3_600_000))
    assert await count_now(on.connection, "orders" + SHADOW) is None
    await declare(on.connection, classic_orders(3_600_000))
    await asyncio.sleep(3600)
    await on.migrate(quorum_orders(3_600_000))
    assert await on.bodies("orders") == numbered(7) + numbered(5)


@in_virtual_time
async def test_policy_with_dead_letter_key_excludes_unrelated_queue() -> None:
    on = await site()
    await declare(on.connection, classic_orders(3_600_000))
    channel = await on.connection.open_channel()
    await channel.publish(Message("failed", "payments", b"unrelated"))
    definition: dict[str, FieldValue] = {"dead-letter-routing-key": "payments"}
    policy = Policy("other", r"^orders\.wait$", definition, apply_to="queues")
    await on.management.put_policy("/", policy)
    await on.migrate(quorum_orders(3_600_000))
    assert await on.bodies("orders.wait") == Counter([b"unrelated"])


@in_virtual_time
async def test_consumers_that_park_by_name_must_be_stopped() -> None:
    """Only the dead-letter queue differs, but the consumer of the main queue publishes to it."""
    on = await site()
    mixed = Topology(
        "t",
        HARDENED.exchanges,
        tuple(Queue(DLQ) if queue.name == DLQ else queue for queue in HARDENED.queues),
        HARDENED.bindings,
    )
    await declare(on.connection, mixed)
    (main,) = [plan.queue for plan in HARDENED.plans]
    channel = await on.connection.open_channel()
    await channel.consume(main, lambda _: None)
    with pytest.raises(UnsafeOperation, match=f"no changes were made: '{main}' has 1 consumers"):
        await on.migrate(HARDENED)
    await declare(on.connection, mixed)


@in_virtual_time
async def test_publisher_that_continues_prevents_delete() -> None:
    """Its messages are kept."""
    on = await site()
    await declare(on.connection, Topology("t", queues=(Queue("a", QueueType.QUORUM),)))
    channel = await on.connection.open_channel()
    sent = 0

    async def publish() -> None:
        nonlocal sent
        while True:
            await channel.publish(Message("", "a", f"{sent}".encode()))
            sent += 1
            await asyncio.sleep(2)

    publishing = asyncio.create_task(publish())
    with pytest.raises(UnsafeOperation, match="'a' has 1 messages"):
        await on.migrate(Topology("t", queues=(Queue("a"),)))
    publishing.cancel()
    await on.migrate(Topology("t", queues=(Queue("a"),)))
    assert await on.bodies("a") == numbered(sent)


@in_virtual_time
async def test_late_messages_of_shadow_queue_are_moved() -> None:
    on = await site()
    await declare(on.connection, Topology("t", queues=(Queue("a"),)))
    channel = await on.connection.open_channel()
    late: list[asyncio.Future[None]] = []

    async def publish() -> None:
        await asyncio.sleep(35)  # the queue is new by now, and the shadow is being watched
        late.append(channel.publish(Message("", "a" + SHADOW, b"0")))

    publishing = asyncio.create_task(publish())
    await on.migrate(Topology("t", queues=(Queue("a", QueueType.QUORUM),)))
    await publishing
    await late[0]
    assert await on.bodies("a") == numbered(1)
    assert await count_now(on.connection, "a" + SHADOW) is None


@in_virtual_time
async def test_interrupted_replacement_is_completed_on_request() -> None:
    """The shadow queue keeps messages and bindings."""
    on = await site()
    await declare(on.connection, Topology("t", queues=(Queue("a" + SHADOW, QueueType.QUORUM),)))
    await on.fill("a" + SHADOW, 3)
    desired = Topology("t", queues=(Queue("a"),))
    planned = await live_plan(desired, on.connection, on.management, "/")
    assert not planned.is_up_to_date
    assert any("--replace a" in note for note in planned.notes)
    await on.replace(desired, "a")
    assert await on.bodies("a") == numbered(3)
    assert await count_now(on.connection, "a" + SHADOW) is None


def test_feeders_are_found_in_arguments_policies_and_plans() -> None:
    direct = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    by_policy = {"dead-letter-exchange": "", "dead-letter-routing-key": "q"}
    elsewhere = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "other"}
    live = Topology(
        "t",
        queues=(
            Queue("q"),
            Queue("direct", arguments=direct),
            Queue("by-policy"),
            Queue("elsewhere", arguments=elsewhere),
            Queue("plain"),
        ),
        policies=(Policy("p", "^by-policy$", by_policy, apply_to="queues"),),
    )
    assert [each.name for each in feeders("q", live)] == ["direct", "by-policy"]
    plan: Plan = HARDENED.plans[0]
    handled = Topology("t", queues=(Queue(plan.queue), Queue(plan.parking.queue)))
    assert [e.name for e in feeders(plan.parking.queue, handled, [plan])] == [plan.queue]


def test_feeders_without_dead_letter_key_are_found_by_their_bindings() -> None:
    """A queue of which no binding accepts the key does not contain messages for that queue."""
    keeps: dict[str, FieldValue] = {"x-dead-letter-exchange": ""}
    names = ("fanout", "direct", "other", "topic", "narrow", "headers", "predeclared", "unbound")
    live = Topology(
        "t",
        (Exchange("f", "fanout"), Exchange("d"), Exchange("t", "topic"), Exchange("h", "headers")),
        (Queue("q"), *(Queue(name, arguments=keeps) for name in names)),
        (
            Binding("f", "fanout"),
            Binding("d", "direct", "q"),
            Binding("d", "other", "other"),
            Binding("t", "topic", "*"),
            Binding("t", "narrow", "order.#"),
            Binding("h", "headers", arguments={"kind": "order"}),
            Binding("amq.direct", "predeclared", "q"),
        ),
    )
    found = [each.name for each in feeders("q", live)]
    assert found == ["fanout", "direct", "topic", "headers", "predeclared"]
    assert feeders("q" + SHADOW, live) == ()
