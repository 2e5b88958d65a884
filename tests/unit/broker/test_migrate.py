"""Migrating queues with messages inside, on the embedded broker, interrupted at every step."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from hopback.broker.declare import declare
from hopback.broker.embedded import EmbeddedBroker, EmbeddedManagement, run_virtual
from hopback.broker.migrate import Migration, migration
from hopback.broker.migrate import migrate as carry_out
from hopback.broker.port import count_now
from hopback.designs import DESIGNS
from hopback.errors import BrokerError, UnsafeOperation
from hopback.message import Message, Properties
from hopback.policy import Occasion, attempt_of, decide, effects
from hopback.policy.decision import Publish
from hopback.policy.outcome import Retry
from hopback.topology.expand import SHADOW
from hopback.topology.model import (
    Binding,
    Exchange,
    ExchangeType,
    Policy,
    Queue,
    QueueType,
    Topology,
)
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hopback.broker.port import Connection

V = BrokerVersion(4, 0)
FAITHFUL = DESIGNS["file-pipeline"].build()
HARDENED = DESIGNS["file-pipeline"].build(hardened=True)
QUEUE = "q.validator"
MANAGEMENT: ContextVar[EmbeddedManagement] = ContextVar("management")
"""The management client of the broker that the test plays on."""


async def migrate(
    connection: Connection, planned: Migration, *told: Callable[[str], object]
) -> int:
    """Migrate with the management client of the test's broker."""
    return await carry_out(connection, planned, *told, management=MANAGEMENT.get())


def with_broker(play: Callable[[Connection], Coroutine[Any, Any, None]]) -> None:
    """Play on a fresh embedded broker, in virtual time."""

    async def run() -> None:
        broker = EmbeddedBroker(version=V)
        connection = await broker.connect()
        MANAGEMENT.set(EmbeddedManagement(broker))
        await play(connection)
        await connection.close()

    run_virtual(run())


async def fill(connection: Connection, queue: str, count: int, **properties: Any) -> None:
    """Put numbered messages into a queue."""
    channel = await connection.open_channel()
    for number in range(count):
        body = f"{queue} {number}".encode()
        await channel.publish(Message("", queue, body, Properties(delivery_mode=2, **properties)))
    await channel.close()


async def bodies(connection: Connection, queue: str) -> list[str]:
    """Take all messages of a queue and return their bodies in order."""
    channel = await connection.open_channel()
    found = []
    while delivery := await channel.get(queue):
        found.append(delivery.body.decode())
        channel.ack(delivery.tag)
    await channel.close()
    return found


def live(queues: tuple[Queue, ...], base: Topology) -> Topology:
    """The topology as a management API would report it."""
    return replace(base, queues=queues, plans=(), policies=())


def test_migration_to_hardened_form_keeps_messages_and_order() -> None:
    async def play(connection: Connection) -> None:
        await declare(connection, FAITHFUL)
        for queue in (QUEUE, f"{QUEUE}.dlq"):
            await fill(connection, queue, 300)
        planned = migration(HARDENED, live(FAITHFUL.queues, FAITHFUL))
        assert {one.queue.name for one in planned.replacements} == {q.name for q in HARDENED.queues}
        assert await migrate(connection, planned) == 600
        await declare(connection, HARDENED)  # a queue of the old form would be refused
        for queue in (QUEUE, f"{QUEUE}.dlq"):
            assert await bodies(connection, queue) == [f"{queue} {n}" for n in range(300)]

    with_broker(play)


def test_message_in_migrated_retry_queue_waits_again() -> None:
    async def play(connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        await declare(connection, FAITHFUL)
        await fill(connection, f"{QUEUE}.retry", 3)
        gone: list[float] = []
        returned: list[float] = []

        def note(text: str) -> None:
            if "the old queue is gone" in text:
                gone.append(loop.time())

        async def watch() -> None:
            while not returned:
                state = await count_now(connection, QUEUE)
                if state is not None and state.messages:
                    returned.append(loop.time())
                await asyncio.sleep(0.5)

        watching = asyncio.create_task(watch())
        await migrate(connection, migration(HARDENED, live(FAITHFUL.queues, FAITHFUL)), note)
        await watching
        assert returned[0] - gone[-1] >= 15.0
        assert len(await bodies(connection, QUEUE)) == 3

    with_broker(play)


def test_migration_keeps_attempts_counted_by_broker() -> None:
    async def play(connection: Connection) -> None:
        await declare(connection, FAITHFUL)
        await fill(connection, QUEUE, 1)
        plan = FAITHFUL.plan(QUEUE)
        assert plan is not None
        channel = await connection.open_channel()
        for _ in range(2):
            delivery = await channel.get(QUEUE)
            assert delivery is not None
            channel.nack(delivery.tag, requeue=False)
            await asyncio.sleep(15.1)
        await channel.close()
        await migrate(connection, migration(HARDENED, live(FAITHFUL.queues, FAITHFUL)))
        channel = await connection.open_channel()
        delivery = await channel.get(QUEUE)
        hardened = HARDENED.plan(QUEUE)
        assert delivery is not None
        assert hardened is not None
        assert attempt_of(delivery, hardened) == 3
        decision = decide(delivery, Retry("no"), hardened, version=V)
        (publish, _) = effects(decision, delivery, hardened, Occasion(0.0))
        assert isinstance(publish, Publish)
        assert publish.message.exchange == hardened.parking.exchange
        await channel.close()

    with_broker(play)


def test_queue_without_plan_is_migrated_with_bindings() -> None:
    exchange = Exchange("events", "topic")
    plain = Topology(
        "old",
        exchanges=(exchange,),
        queues=(Queue("orders"),),
        bindings=(Binding("events", "orders", "order.*"),),
    )
    desired = DESIGNS["recommended"].build({"queue": "orders"})

    async def play(connection: Connection) -> None:
        await declare(connection, plain)
        await fill(connection, "orders", 10)
        await migrate(connection, migration(desired, plain))
        channel = await connection.open_channel()
        await channel.publish(Message("events", "order.made", b"new"))
        await channel.close()
        assert len(await bodies(connection, "orders")) == 11
        await declare(connection, desired)

    with_broker(play)


def test_migration_declares_new_exchange_before_binding_queue_to_it() -> None:
    """The binding was refused after the first ones, and every publish was stored twice."""
    ev, ev2 = Exchange("ev", "fanout"), Exchange("ev2", "fanout")
    old = Topology("t", (ev,), (Queue("orders"),), (Binding("ev", "orders"),))
    desired = Topology(
        "t",
        (ev, ev2),
        (Queue("orders", QueueType.QUORUM),),
        (Binding("ev", "orders"), Binding("ev2", "orders")),
    )

    async def play(connection: Connection) -> None:
        await declare(connection, old)
        await fill(connection, "orders", 3)
        assert await migrate(connection, migration(desired, old)) == 3
        channel = await connection.open_channel()
        for exchange in ("ev", "ev2"):
            await channel.publish(Message(exchange, "", exchange.encode()))
        await channel.close()
        found = await bodies(connection, "orders")
        assert found == ["orders 0", "orders 1", "orders 2", "ev", "ev2"]

    with_broker(play)


def test_refused_migration_declares_no_exchange() -> None:
    old = Topology("t", queues=(Queue("orders"),))
    desired = Topology("t", (Exchange("ev2"),), (Queue("orders", QueueType.QUORUM),))

    async def play(connection: Connection) -> None:
        await declare(connection, old)
        channel = await connection.open_channel()
        await channel.consume("orders", lambda delivery: None)
        with pytest.raises(UnsafeOperation, match="no changes were made"):
            await migrate(connection, migration(desired, old))
        assert (await MANAGEMENT.get().live_topology()).exchanges == ()

    with_broker(play)


def test_messages_published_during_migration_are_kept() -> None:
    async def play(connection: Connection) -> None:
        await declare(connection, FAITHFUL)
        channel = await connection.open_channel()
        sent = 0

        def publish_another(_text: str) -> None:
            nonlocal sent
            channel.publish(Message("domain.events", "files.uploaded.v1", f"late {sent}".encode()))
            sent += 1

        planned = migration(HARDENED, live(FAITHFUL.queues, FAITHFUL))
        await migrate(connection, planned, publish_another)
        found = await bodies(connection, QUEUE)
        assert sent > 20
        assert set(found) == {f"late {n}" for n in range(sent)}

    with_broker(play)


class Interrupted(Exception):
    """The process died here."""


@pytest.mark.parametrize("step", range(1, 12))
def test_interrupted_migration_is_completed_by_next(step: int) -> None:
    """No shadow queue is left."""
    one = replace(HARDENED, queues=tuple(q for q in HARDENED.queues if q.name.startswith(QUEUE)))
    old = tuple(q for q in FAITHFUL.queues if q.name.startswith(QUEUE))

    async def attempt(connection: Connection, planned: Migration, last: int) -> None:
        done = 0

        def die(_text: str) -> None:
            nonlocal done
            done += 1
            if done == last:
                raise Interrupted

        await migrate(connection, planned, die)

    async def existing(connection: Connection, names: list[str]) -> tuple[Queue, ...]:
        found = []
        for queue in (*old, *(replace(q, name=q.name + SHADOW) for q in old)):
            channel = await connection.open_channel()
            try:
                await channel.declare_queue(Queue(queue.name), passive=True)
                found.append(queue)
                await channel.close()
            except BrokerError:
                continue
        return tuple(found)

    async def play(connection: Connection) -> None:
        await declare(connection, FAITHFUL)
        await fill(connection, QUEUE, 5)
        planned = migration(one, live(old, FAITHFUL))
        try:
            await attempt(connection, planned, step)
        except Interrupted:
            again = migration(one, live(await existing(connection, []), FAITHFUL))
            await migrate(connection, again)
        assert sorted(await bodies(connection, QUEUE)) == [f"{QUEUE} {n}" for n in range(5)]
        await declare(connection, one)
        left = await existing(connection, [])
        assert not [queue.name for queue in left if queue.name.endswith(SHADOW)]

    with_broker(play)


def test_migration_of_queue_with_consumers_is_refused() -> None:
    async def play(connection: Connection) -> None:
        await declare(connection, FAITHFUL)
        channel = await connection.open_channel()
        await channel.consume(QUEUE, lambda delivery: None)
        planned = migration(HARDENED, live(FAITHFUL.queues, FAITHFUL))
        with pytest.raises(UnsafeOperation, match=r"q\.validator"):
            await migrate(connection, planned)
        await declare(connection, FAITHFUL)  # everything is unchanged
        await channel.close()

    with_broker(play)


@pytest.mark.parametrize(
    ("arguments", "key", "is_refused"),
    [
        ({"x-dead-letter-exchange": ""}, "#", True),
        ({"x-dead-letter-exchange": "back"}, "orders", True),
        ({"x-dead-letter-exchange": "back"}, "orders.#", False),
        ({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"}, "#", False),
    ],
    ids=str,
)
def test_migration_whose_moved_messages_would_be_lost_as_dead_letters_is_refused(
    arguments: dict[str, Any], key: str, is_refused: bool
) -> None:
    """They have the name of their queue as routing key, and keep it when they expire."""
    back = Exchange("back", ExchangeType.TOPIC)
    ways = (Binding("back", "orders", key),)
    waits = {"x-message-ttl": 600_000, **arguments}

    async def play(connection: Connection) -> None:
        queues = (Queue("orders"), Queue("orders.wait", arguments=waits))
        before = Topology("t", (back,), queues, ways)
        after = replace(queues[1], type=QueueType.QUORUM)
        desired = Topology("t", (back,), (queues[0], after), ways)
        await declare(connection, before)
        await fill(connection, "orders.wait", 2)
        planned = migration(desired, before)
        if is_refused:
            with pytest.raises(UnsafeOperation, match=r"no changes.*reaches no queue"):
                await migrate(connection, planned)
            return
        assert await migrate(connection, planned) == 2
        await asyncio.sleep(700)
        assert len(await bodies(connection, "orders")) == 2

    with_broker(play)


_POLICY = Policy("short", "^q$", {"max-length": 5}, apply_to="queues")


@pytest.mark.parametrize(
    ("old", "new", "policies", "is_refused"),
    [
        ({}, {"x-max-length": 5}, (), True),
        ({}, {"x-max-length": 5, "x-overflow": "reject-publish"}, (), True),
        ({}, {"x-max-length": 20}, (), False),
        ({}, {}, (_POLICY,), True),
        ({}, {"x-max-length-bytes": 1_000_000}, (), True),
        ({"x-max-length-bytes": 1_000_000}, {"x-max-length-bytes": 1_000_000}, (), False),
    ],
    ids=str,
)
def test_migration_into_queue_without_room_is_refused(
    old: dict[str, Any], new: dict[str, Any], policies: tuple[Policy, ...], is_refused: bool
) -> None:
    """The new queue dropped the oldest messages, and the shadow was deleted."""

    async def play(connection: Connection) -> None:
        before = Topology("t", queues=(Queue("q", arguments=old),))
        desired = Topology("t", queues=(Queue("q", QueueType.QUORUM, arguments=new),))
        await declare(connection, before)
        await fill(connection, "q", 20)
        planned = migration(desired, replace(live(before.queues, before), policies=policies))
        if is_refused:
            with pytest.raises(UnsafeOperation, match="20 messages may not fit"):
                await migrate(connection, planned)
            assert await count_now(connection, f"q{SHADOW}") is None
        else:
            assert await migrate(connection, planned) == 20
        assert await bodies(connection, "q") == [f"q {n}" for n in range(20)]

    with_broker(play)


def test_exchange_of_another_type_prevents_migration() -> None:
    other = replace(
        FAITHFUL, exchanges=(Exchange("domain.events", "fanout"), *FAITHFUL.exchanges[1:])
    )
    planned = migration(HARDENED, live(FAITHFUL.queues, other))
    assert any("domain.events" in obstacle for obstacle in planned.obstacles)

    async def play(connection: Connection) -> None:
        with pytest.raises(UnsafeOperation, match=r"domain\.events"):
            await migrate(connection, planned)

    with_broker(play)


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (Queue(QUEUE, auto_delete=True), "is auto-delete"),
        (Queue(QUEUE, QueueType.STREAM), "is a stream"),
        (Queue(QUEUE, exclusive=True), "is exclusive"),
    ],
)
def test_queue_that_cannot_be_emptied_safely_prevents_migration(now: Queue, why: str) -> None:
    others = tuple(queue for queue in FAITHFUL.queues if queue.name != QUEUE)
    planned = migration(HARDENED, live((now, *others), FAITHFUL))
    assert any(f"'{QUEUE}' {why}" in obstacle for obstacle in planned.obstacles)


def test_migration_of_current_form_is_empty() -> None:
    assert migration(HARDENED, live(HARDENED.queues, HARDENED)).replacements == ()


def test_shadow_queue_has_no_ttl_or_limits() -> None:
    planned = migration(HARDENED, live(FAITHFUL.queues, FAITHFUL))
    shadow = planned.replacements[0].shadow
    assert shadow.type is QueueType.QUORUM
    assert set(shadow.arguments) == {"x-delivery-limit"}
