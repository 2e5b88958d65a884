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
from hopback.topology.model import Binding, Exchange, Queue, QueueType, Topology
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
    """What is in a queue, in order; it is all taken out."""
    channel = await connection.open_channel()
    found = []
    while delivery := await channel.get(queue):
        found.append(delivery.body.decode())
        channel.ack(delivery.tag)
    await channel.close()
    return found


def live(queues: tuple[Queue, ...], base: Topology) -> Topology:
    """What a management API would tell of the broker."""
    return replace(base, queues=queues, plans=(), policies=())


def test_faithful_to_hardened_keeps_every_message_and_its_order() -> None:
    """Main, retry and dead-letter queue change their type; what was inside is inside again."""

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


def test_a_message_in_a_retry_queue_waits_again_and_returns() -> None:
    """Later than planned, never early, never lost."""

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


def test_attempts_counted_by_the_broker_are_carried_over() -> None:
    """A message that failed twice under the old form has one attempt left under the new one."""

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


def test_a_queue_without_plan_is_taken_over_with_its_messages_and_bindings() -> None:
    """Bindings that only the broker knows are kept too."""
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


def test_what_comes_in_meanwhile_is_not_lost() -> None:
    """Messages published between any two steps are in the new queue at the end."""

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
def test_an_interrupted_migration_is_finished_by_the_next(step: int) -> None:
    """Whichever step it dies after, starting again loses nothing and leaves no shadow."""
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


def test_a_queue_with_consumers_is_not_touched() -> None:
    """Messages in the hands of a consumer cannot be moved; the refusal names the queue."""

    async def play(connection: Connection) -> None:
        await declare(connection, FAITHFUL)
        channel = await connection.open_channel()
        await channel.consume(QUEUE, lambda delivery: None)
        planned = migration(HARDENED, live(FAITHFUL.queues, FAITHFUL))
        with pytest.raises(UnsafeOperation, match=r"q\.validator"):
            await migrate(connection, planned)
        await declare(connection, FAITHFUL)  # everything stands as it was
        await channel.close()

    with_broker(play)


def test_an_exchange_of_another_type_is_an_obstacle() -> None:
    """Only queues can be migrated; nothing is changed."""
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
def test_a_queue_that_cannot_be_emptied_safely_is_an_obstacle(now: Queue, why: str) -> None:
    """To end a consumer, or to consume at all, would lose messages or fail: nothing is begun."""
    others = tuple(queue for queue in FAITHFUL.queues if queue.name != QUEUE)
    planned = migration(HARDENED, live((now, *others), FAITHFUL))
    assert any(f"'{QUEUE}' {why}" in obstacle for obstacle in planned.obstacles)


def test_nothing_to_migrate_gives_an_empty_plan() -> None:
    """A broker that has the new form already needs nothing."""
    assert migration(HARDENED, live(HARDENED.queues, HARDENED)).replacements == ()


def test_the_shadow_is_a_quorum_queue_that_lets_nothing_go() -> None:
    """No TTL, no dead-letter exchange, no length limit, no default delivery limit."""
    planned = migration(HARDENED, live(FAITHFUL.queues, FAITHFUL))
    shadow = planned.replacements[0].shadow
    assert shadow.type is QueueType.QUORUM
    assert set(shadow.arguments) == {"x-delivery-limit"}
