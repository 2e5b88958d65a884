"""Inbox, outbox, migrations and relay, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import replace
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, event, text
from sqlalchemy.exc import DBAPIError

from hopback import App, Context, compose
from hopback.broker.supervise import Backoff
from hopback.clock import ManualClock, SystemClock
from hopback.errors import ConnectionFailed, InvalidMessage, Nacked, PublishInterrupted
from hopback.fields import FieldValue, Float32, Int8, LongStr, RawValue, Timestamp, UInt64
from hopback.message import Message, Properties, Received
from hopback.observe.logs import LEVELS
from hopback.observe.metrics import Metrics
from hopback.runtime.relay import Relay
from hopback.store import (
    LATEST,
    CursorTransaction,
    Database,
    DatabaseUrlError,
    DelayedMessages,
    NoInboxKey,
    Outbox,
    Transaction,
    current_version,
    forget_processed,
    migrate,
    open_database,
    transaction,
)
from hopback.store.transaction import slot_of
from hopback.testing import AppTest, in_virtual_time
from tests.conformance.suite.chapters.arrangements import nested
from tests.integration.database import database_url, engine
from tests.integration.waiting import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from sqlalchemy.ext.asyncio import AsyncEngine

    from hopback.message import Delivery

__all__ = ["database_url", "engine"]

CLOCK = SystemClock()
AT_ONCE = Backoff(first=0.0, most=0.0)


def message(number: int, key: str = "k") -> Message:
    """A message with a distinct id."""
    return Message("events", key, str(number).encode(), Properties(message_id=f"{key}-{number}"))


async def put(engine: AsyncEngine, *messages: Message, keyed: bool = True) -> None:
    """Leave messages in the outbox, in one transaction."""
    async with transaction(engine, CLOCK) as tx:
        for one in messages:
            await tx.send(one, key=one.routing_key if keyed else None)


class Sink:
    """A publisher for relays that records messages and refuses selected ones."""

    def __init__(self) -> None:
        self.got: list[str] = []
        self.refuse: set[str] = set()
        self.first = asyncio.Event()

    async def publish(self, message: Message) -> None:
        """Take the message, or refuse it as a full queue does."""
        await asyncio.sleep(0)
        name = message.properties.message_id or ""
        if name in self.refuse:
            raise Nacked("the queue is full")
        self.got.append(name)
        self.first.set()


async def test_migrations_are_applied_once(database_url: str) -> None:
    fresh = open_database(database_url)
    assert await current_version(fresh) == 0
    assert await migrate(fresh, CLOCK) == list(range(1, LATEST + 1))
    assert await migrate(fresh, CLOCK) == []
    assert await current_version(fresh) == LATEST
    await fresh.dispose()


async def test_concurrent_migrations_apply_each_version_once(database_url: str) -> None:
    engines = [open_database(database_url) for _ in range(2)]
    applied = await asyncio.gather(*(migrate(one, CLOCK) for one in engines))
    assert sorted(chain.from_iterable(applied)) == list(range(1, LATEST + 1))
    for one in engines:
        await one.dispose()


async def test_concurrent_create_tables_succeed(database_url: str) -> None:
    """On PostgreSQL two concurrent creations of a table conflict."""
    engines, own = [open_database(database_url) for _ in range(4)], MetaData()
    Table("orders", own, Column("id", Integer, primary_key=True))
    await asyncio.gather(*(migrate(one, CLOCK, also=own) for one in engines))
    async with engines[0].connect() as connection:
        assert (await connection.execute(text("SELECT * FROM orders"))).all() == []
    for one in engines:
        await one.dispose()


async def test_migration_waits_for_database_locked_by_writer(tmp_path: Path) -> None:
    """Switching to the write-ahead log needs an exclusive lock, for which SQLite does not wait."""
    file = tmp_path / "new.db"
    other = sqlite3.connect(file)
    other.execute("CREATE TABLE theirs (x)")
    other.execute("BEGIN IMMEDIATE")
    other.execute("INSERT INTO theirs VALUES (1)")
    engine = open_database(f"sqlite:///{file}")
    opening = asyncio.ensure_future(migrate(engine, CLOCK))
    done, _ = await asyncio.wait([opening], timeout=0.5)
    assert not done
    other.rollback()
    other.close()
    assert list(await opening) == list(range(1, LATEST + 1))
    await engine.dispose()


async def test_message_is_processed_once_by_each_consumer(engine: AsyncEngine) -> None:
    seen = []
    for consumer in ("a", "a", "b"):
        async with transaction(engine, CLOCK) as tx:
            seen.append(await tx.first_time(consumer, "m1"))
    assert seen == [True, False, True]


def _order(value: object) -> dict[str, Any]:
    return {"order-id": value}


def _delivery(body: bytes = b"{}", user: str | None = None, **headers: Any) -> Delivery:
    properties = Properties(message_id="m1", user_id=user, headers=headers)
    return Received("orders", "", "orders", body, properties)


async def test_guessed_message_id_suppresses_message_of_other_producer(engine: AsyncEngine) -> None:
    """The default key is the message id alone."""
    async with transaction(engine, CLOCK) as tx:
        assert await tx.first_time("a", _delivery(b"forged", user="mallory"))
        assert not await tx.first_time("a", _delivery(b"honest", user="shop"))


def _without_id(exchange: str, key: str, kind: str | None = None, **headers: Any) -> Delivery:
    return Received("q", exchange, key, b'{"user": "fy"}', Properties(type=kind, headers=headers))


async def test_messages_without_id_differ_by_exchange_key_type_and_headers(
    engine: AsyncEngine,
) -> None:
    different = [
        _without_id("events", "auth.failed"),
        _without_id("events", "auth.succeeded"),
        _without_id("others", "auth.failed"),
        _without_id("events", "auth.failed", "v2"),
        _without_id("events", "auth.failed", tenant="acme"),
    ]
    for expected in (True, False):
        for delivery in different:
            async with transaction(engine, CLOCK) as tx:
                assert await tx.first_time("a", delivery) is expected


async def test_message_without_id_is_recognised_after_retry_park_and_loop(
    engine: AsyncEngine,
) -> None:
    first = _without_id("events", "auth.failed", tenant="acme")
    death = {"queue": "q", "reason": "rejected", "count": 1, "exchange": "events"}
    origin = {"hopback-origin-exchange": "events", "hopback-origin-routing-key": "auth.failed"}
    counted: dict[str, Any] = {**origin, "hopback-attempts": 1, "hopback-queue": "q"}
    retried = _without_id("", "q", None, tenant="acme", **counted)
    died: dict[str, Any] = {"x-death": [{**death, "routing-keys": ["auth.failed"]}]}
    looped = _without_id("", "q", None, tenant="acme", **died)
    async with transaction(engine, CLOCK) as tx:
        assert await tx.first_time("a", first)
    for delivery in (retried, looped):
        async with transaction(engine, CLOCK) as tx:
            assert not await tx.first_time("a", delivery)


async def test_message_dropped_as_handled_is_logged_outside_a_service(
    engine: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        async with transaction(engine, CLOCK) as tx:
            await tx.first_time("a", "m-1")
    assert [one.getMessage() for one in caplog.records] == ["inbox of a: m-1 was already handled"]


@pytest.mark.parametrize("way", ["async", "thread", "batch"])
async def test_message_dropped_as_handled_is_an_event_and_counted(
    engine: AsyncEngine, way: str, tmp_path: Path
) -> None:
    app = App("shop")
    file = tmp_path / "thread.db"

    async def mark(delivery: Delivery | str) -> None:
        async with transaction(engine, CLOCK) as tx:
            await tx.first_time("billing", delivery)

    if way == "async":

        @app.handler("orders", retry=["1s"], concurrency=1)
        async def handle(context: Context) -> None:
            await mark(context.delivery)
    elif way == "batch":

        @app.batch("orders", retry=["1s"], size=2)
        async def insert(rows: list[dict[str, int]]) -> None:
            for _ in rows:
                await mark("m-1")
    else:
        own = open_database(f"sqlite:///{file}")
        await migrate(own, CLOCK)
        await own.dispose()

        @app.handler("orders", retry=["1s"], concurrency=1)
        def handle_in_thread(context: Context) -> None:
            with closing(sqlite3.connect(file)) as connection, connection:
                cursor = CursorTransaction(connection.cursor(), placeholder="?", clock=CLOCK)
                cursor.first_time("billing", context.delivery)

    async with AppTest(app) as test:
        metrics = Metrics()
        for _ in range(2):
            await test.publish("orders", {"n": 1}, message_id="m-1", message_type="order")
        assert (await test.drain()).done == 2
        (told,) = test.find_events("inbox.duplicate", consumer="billing", key="m-1")
        metrics(told.name, told.fields)
    if way != "batch":
        known = {name: told.fields[name] for name in ("queue", "message_id", "message_type")}
        assert known == {"queue": "orders", "message_id": "m-1", "message_type": "order"}
    assert b'hopback_inbox_duplicates_total{consumer="billing"} 1.0' in metrics.render()
    assert LEVELS["inbox.duplicate"] == "warning"


async def test_inbox_key_with_user_separates_producers(engine: AsyncEngine) -> None:
    """The broker validates the user id. A redelivery is still recognised."""

    def by_user(delivery: Delivery) -> str:
        return f"{delivery.properties.user_id} {delivery.properties.message_id}"

    seen = []
    for user in ("mallory", "shop", "shop"):
        async with transaction(engine, CLOCK) as tx:
            seen.append(await tx.first_time("a", _delivery(user=user), key=by_user))
    assert seen == [True, True, False]


async def test_inbox_key_may_be_a_header(engine: AsyncEngine) -> None:
    """Texts and numbers are different keys. A message without the header fails."""
    keys: list[object] = ["7", 7, "7", b"7", "x" * 5000, "x" * 5000, "a\0b", "é"]
    seen = []
    for key in keys:
        async with transaction(engine, CLOCK) as tx:
            seen.append(await tx.first_time("a", _delivery(**_order(key)), key="order-id"))
    assert seen == [True, True, False, True, True, False, True, True]
    wrongs: list[dict[str, Any]] = [{}, *map(_order, ("", None, [1], True))]
    for wrong in wrongs:
        with pytest.raises(NoInboxKey, match="order-id"):
            async with transaction(engine, CLOCK) as tx:
                await tx.first_time("a", _delivery(**wrong), key="order-id")


async def test_inbox_key_option_requires_delivery(engine: AsyncEngine) -> None:
    """An id given as text is the key itself."""
    async with transaction(engine, CLOCK) as tx:
        with pytest.raises(TypeError, match="delivery"):
            await tx.first_time("a", "m1", key="order-id")


async def test_crash_before_commit_leaves_no_inbox_mark(engine: AsyncEngine) -> None:
    async def handle() -> None:
        async with transaction(engine, CLOCK) as tx:
            await tx.execute(text("CREATE TABLE work (x INTEGER)"))
            assert await tx.first_time("a", "m1")
            await tx.send(message(1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await handle()
    outbox = Outbox(engine, "relay", CLOCK)
    assert await outbox.depth() == 0
    async with transaction(engine, CLOCK) as tx:
        assert await tx.first_time("a", "m1")


async def test_concurrent_handlers_of_message_do_its_work_once(engine: AsyncEngine) -> None:
    """A redelivery waits for the first run and then finds it done."""

    async def handle() -> bool:
        async with transaction(engine, CLOCK) as tx:
            first = await tx.first_time("a", "m1")
            await asyncio.sleep(0.05)
            return first

    assert sorted(await asyncio.gather(handle(), handle())) == [False, True]


async def test_old_inbox_marks_are_deleted(engine: AsyncEngine) -> None:
    clock = ManualClock(1000.0)
    for moment, name in ((1000.0, "old"), (2000.0, "new")):
        clock.advance_to(moment)
        async with transaction(engine, clock) as tx:
            await tx.first_time("a", name)
    assert await forget_processed(engine, before=1500.0) == 1
    async with transaction(engine, clock) as tx:
        assert await tx.first_time("a", "old")
        assert not await tx.first_time("a", "new")


async def test_outbox_message_is_published_unchanged(engine: AsyncEngine) -> None:
    """Body, routing, properties and header types are equal."""
    headers: dict[str, FieldValue] = {
        "text": "ä",
        "int": 5,
        "int8": Int8(5),
        "big": UInt64(2**63),
        "float": 1.5,
        "short": Float32(0.5),
        "none": None,
        "yes": True,
        "bytes": b"\x00\xff",
        "odd": LongStr(b"\xff"),
        "when": Timestamp(2**40),
        "price": Decimal("1.10"),
        "list": [1, {"$bytes": "x"}],
        "table": {"a": {"b": Int8(1)}},
    }
    sent = Message(
        "ex",
        "key",
        b"\x00\x01",
        Properties(message_id="m", headers=headers, priority=3, timestamp=9),
    )
    await put(engine, sent)
    outbox = Outbox(engine, "relay", CLOCK)
    (pending,) = await outbox.pending(await outbox.claim(), 10)
    assert pending.message == sent
    found = pending.message.properties.headers
    assert {name: type(value) for name, value in found.items()} == {
        name: type(value) for name, value in headers.items()
    }


async def test_outbox_refuses_message_without_id(engine: AsyncEngine) -> None:
    """A relay may publish it twice."""
    with pytest.raises(ValueError, match="message id"):
        async with transaction(engine, CLOCK) as tx:
            await tx.send(Message("e", "k", b""))


@pytest.mark.parametrize(
    "headers",
    [
        {"n": 2**70}, {"n": float("nan")}, {"n": Decimal("1e99")}, {"n": "\ud800"}, {"n": {"a": 2**70}},
        {"n" * 300: 1}, {5: 1}, {"n": object()}, {"n": "x" * 140_000},
    ],
    ids=lambda headers: repr(headers)[:20],
)  # fmt: skip
async def test_outbox_refuses_message_that_no_broker_takes(headers: Any, tmp_path: Path) -> None:
    """The relay could not read its row, or would try to publish it forever."""
    engine = open_database(f"sqlite:///{tmp_path / 'test.db'}")
    await migrate(engine, CLOCK)
    unsendable = Message("", "q", b"", Properties(message_id="m", headers=headers))
    async with transaction(engine, CLOCK) as tx:
        with pytest.raises(InvalidMessage, match="not sent"):
            await tx.send(unsendable)
        with pytest.raises(InvalidMessage, match="not sent"):
            await tx.send(replace(unsendable, delay=5000))
        await tx.send(message(1))
    assert await Outbox(engine, "relay", CLOCK).depth() == 1
    await engine.dispose()


@pytest.mark.parametrize("keyed", [True, False])
async def test_unreadable_row_delays_only_its_key(engine: AsyncEngine, keyed: bool) -> None:
    """Written by hand, or by another version."""
    await put(engine, *(message(n, key) for n in range(3) for key in "ab"), keyed=keyed)
    async with engine.begin() as connection:
        await connection.execute(
            text("UPDATE hopback_outbox SET properties = '{}' WHERE message_id = 'a-1'")
        )
    sink = Sink()
    outbox = Outbox(engine, "relay", CLOCK)
    relay = Relay(outbox, sink.publish, backoff=AT_ONCE)
    for _ in range(3):
        await relay.sweep()
    left = {"a-1", "a-2"} if keyed else {"a-1"}
    assert set(sink.got) == {f"{key}-{n}" for n in range(3) for key in "ab"} - left
    first = (await outbox.pending(await outbox.claim(), 10))[0]
    assert (first.failures, first.problem) == (3, "unreadable row: KeyError: 'properties'")


async def test_unexpected_error_of_a_publish_delays_only_its_message(engine: AsyncEngine) -> None:
    await put(engine, *(message(n) for n in range(20)), keyed=False)
    sink = Sink()

    async def publish(message: Message) -> None:
        if message.properties.message_id == "k-7":
            raise ValueError("cannot be \udcff\0 published")
        await sink.publish(message)

    outbox = Outbox(engine, "relay", CLOCK)
    relay = Relay(outbox, publish, backoff=AT_ONCE)
    assert await relay.sweep() == 19
    assert await relay.sweep() == 0
    assert sorted(sink.got) == sorted(f"k-{n}" for n in range(20) if n != 7)
    async with engine.connect() as connection:
        found = (await connection.execute(text("SELECT failures, error FROM hopback_outbox"))).one()
    assert tuple(found) == (2, "ValueError: cannot be \ufffd\ufffd published")


@pytest.mark.parametrize("message_id", ["a\0b", "\udcff", "i" * 255, "ü" * 127])
async def test_message_id_of_any_bytes_is_known_to_inbox_and_delays(
    engine: AsyncEngine, message_id: str
) -> None:
    delivery = Received("q", "", "q", b"", Properties(message_id=message_id))
    delayed = DelayedMessages(engine, CLOCK)
    async with transaction(engine, CLOCK) as tx:
        assert await tx.first_time("a", delivery)
        assert not await tx.first_time("a", delivery)
        assert await tx.first_time("a", f"{message_id[1:]}?")
    assert await delayed.begin(message_id)
    assert await delayed.begin(message_id)
    assert not await delayed.cancel(message_id)
    assert await delayed.cancel(f"{message_id[1:]}?")
    assert not await delayed.begin(f"{message_id[1:]}?")


async def test_relay_of_an_application_continues_after_an_unexpected_error(tmp_path: Path) -> None:
    """An extension of SQLAlchemy raises, for example."""
    database = Database(f"sqlite:///{tmp_path / 'test.db'}")
    sink, errors = Sink(), list[str]()

    def fail_once(*arguments: Any) -> None:
        if "FROM hopback_outbox" in arguments[2] and "DELETE" not in arguments[2] and not errors:
            errors.append(arguments[2])
            raise RuntimeError("an extension failed")

    class Sender:
        send = staticmethod(sink.publish)

    async with database.lifespan(Sender()):
        event.listen(database.engine.sync_engine, "before_cursor_execute", fail_once)
        async with database.transaction() as tx:
            await tx.send(message(1))
        await asyncio.wait_for(sink.first.wait(), 20)
    assert (sink.got, len(errors)) == (["k-1"], 1)


async def test_outbox_keeps_unusual_headers_and_omits_unreadable_ones(
    engine: AsyncEngine,
) -> None:
    odd = Properties(
        message_id="m",
        headers={"deep": nested(40)},
        further_headers=((b"deep", 1),),
        opaque_headers=b"\x01kz",
    )
    await put(engine, Message("", "q", b"x", odd))
    outbox = Outbox(engine, "relay", CLOCK)
    (pending,) = await outbox.pending(await outbox.claim(), 10)
    found = pending.message.properties
    assert found.headers == {"deep": nested(40), "hopback-unread-headers": b"\x01kz"}
    assert type(found.headers["deep"]) is RawValue
    assert (found.further_headers, found.opaque_headers) == (((b"deep", 1),), b"")


async def test_relay_publishes_all_messages_and_empties_outbox(engine: AsyncEngine) -> None:
    """Messages of a key are in order."""
    await put(engine, *(message(n, key) for n in range(20) for key in ("a", "b", "c")))
    await put(engine, *(message(n, "free") for n in range(10)), keyed=False)
    sink = Sink()
    relay = Relay(Outbox(engine, "relay", CLOCK), sink.publish, most=7)
    while await relay.sweep():
        pass
    assert len(sink.got) == 70
    for key in "abc":
        assert [name for name in sink.got if name.startswith(key)] == [
            f"{key}-{n}" for n in range(20)
        ]
    assert await Outbox(engine, "other", CLOCK).depth() == 0


async def test_failed_message_delays_only_its_key(engine: AsyncEngine) -> None:
    await put(engine, message(1, "a"), message(2, "a"), message(1, "b"), message(3, "a"))
    sink = Sink()
    sink.refuse = {"a-2"}
    outbox = Outbox(engine, "relay", CLOCK)
    relay = Relay(outbox, sink.publish, backoff=AT_ONCE)
    await relay.sweep()
    assert sorted(sink.got) == ["a-1", "b-1"]
    assert await outbox.depth() == 2
    sink.refuse = set()
    await relay.sweep()
    assert [name for name in sink.got if name.startswith("a")] == ["a-1", "a-2", "a-3"]


async def test_many_unpublishable_messages_delay_no_others(engine: AsyncEngine) -> None:
    """There is more than a page of them in every slot."""
    hopeless = [message(n, f"bad{n}") for n in range(200)]
    await put(engine, *hopeless)
    await put(engine, *(message(n, f"good{n}") for n in range(100)))
    sink = Sink()
    sink.refuse = {one.properties.message_id or "" for one in hopeless}
    relay = Relay(Outbox(engine, "relay", CLOCK), sink.publish, most=7)
    for _ in range(4):  # sixteen of the sixty-four slots at a time
        await relay.sweep()
    assert len(sink.got) == 100
    assert await Outbox(engine, "look", CLOCK).depth() == 200


async def test_message_that_closes_channel_is_published_alone_next_time(
    engine: AsyncEngine,
) -> None:
    """A missing exchange interrupts all publishes in flight, the second time only its own."""
    await put(engine, *(message(n, f"key{n}") for n in range(20)))
    in_flight: set[str] = set()
    got: list[str] = []

    async def publish(sent: Message) -> None:
        name = sent.properties.message_id or ""
        in_flight.add(name)
        await asyncio.sleep(0)
        beside = "key3-3" in in_flight
        await asyncio.sleep(0)
        in_flight.discard(name)
        if beside:
            raise PublishInterrupted("the channel was closed: 404 no exchange")
        got.append(name)

    relay = Relay(Outbox(engine, "relay", CLOCK), publish, backoff=AT_ONCE)
    for _ in range(8):
        await relay.sweep()
    assert len(got) == len(set(got)) == 19
    assert await Outbox(engine, "look", CLOCK).depth() == 1


class Crash(BaseException):
    """The process is gone."""


class Mortal:
    """Allows a number of steps, then none, not even cleanup."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def alive(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """The same call in a process that may be dead before it, or die after it."""

        async def step(*args: Any, **kwargs: Any) -> Any:
            self._tick()
            found = await call(*args, **kwargs)
            self._tick()
            return found

        return step

    def _tick(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise Crash


@pytest.mark.parametrize("steps", range(40))
async def test_crash_at_any_step_of_relay_loses_no_message(tmp_path: Path, steps: int) -> None:
    """The next relay publishes the remaining messages in order per key."""
    engine = open_database(f"sqlite:///{tmp_path / 'crash.db'}")
    await migrate(engine, CLOCK)
    clock = ManualClock(CLOCK.now())
    await put(engine, *(message(n, key) for n in range(3) for key in ("a", "b")))
    sink, mortal = Sink(), Mortal(steps)
    outbox = Outbox(engine, "mortal", clock, lease=30)
    for name in ("claim", "renew", "pending", "settle", "release"):
        setattr(outbox, name, mortal.alive(getattr(outbox, name)))
    with suppress(Crash, BaseExceptionGroup):
        await Relay(outbox, mortal.alive(sink.publish), most=2).sweep()
    clock.advance(31)
    heir = Outbox(engine, "heir", clock, lease=30)
    await Relay(heir, sink.publish).sweep()
    assert await heir.depth() == 0
    for key in "ab":
        first = list(dict.fromkeys(name for name in sink.got if name.startswith(key)))
        assert first == [f"{key}-{n}" for n in range(3)]
    again = len(sink.got) - len(set(sink.got))
    assert again <= 2  # messages in flight, with the same ids
    await engine.dispose()


async def test_leased_slots_are_not_claimed_by_another_relay(engine: AsyncEngine) -> None:
    clock = ManualClock()
    await put(engine, message(1))
    first, second = (Outbox(engine, name, clock, lease=30) for name in ("one", "two"))
    claimed = await first.claim()
    assert len(claimed) == 1
    assert await second.claim() == []
    clock.advance(31)
    assert await second.claim() == claimed
    assert not await first.renew(claimed)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_relay_skips_slots_locked_by_another_relay(engine: AsyncEngine) -> None:
    """On PostgreSQL it does not wait for the lock."""
    await put(engine, *(message(n, f"key{n}") for n in range(10)))
    taken = slot_of("key0")
    async with engine.begin() as other:
        await other.execute(
            text("SELECT * FROM hopback_outbox_slots WHERE slot = :slot FOR UPDATE"),
            {"slot": taken},
        )
        async with asyncio.timeout(10):
            claimed = await Outbox(engine, "relay", CLOCK).claim()
    assert set(claimed) == {slot_of(f"key{n}") for n in range(10)} - {taken}


async def test_relay_killed_between_confirm_and_settlement_repeats_message(
    engine: AsyncEngine,
) -> None:
    """The id is the same."""
    clock = ManualClock()
    await put(engine, message(1))
    dead = Outbox(engine, "dead", clock, lease=30)
    (pending,) = await dead.pending(
        await dead.claim(), 10
    )  # published and confirmed, but not settled
    clock.advance(31)
    sink = Sink()
    await Relay(Outbox(engine, "alive", clock, lease=30), sink.publish).sweep()
    assert sink.got == [pending.message.properties.message_id]


@pytest.mark.parametrize("step", ["claim", "renew", "pending", "settle", "release"])
async def test_stopped_relay_releases_its_leases(engine: AsyncEngine, step: str) -> None:
    """Another relay can publish the remaining message at once."""
    await put(engine, message(1, "key"), message(2, "key"))
    outbox, reached = Outbox(engine, "stopped", CLOCK, lease=30), asyncio.Event()
    plain = getattr(outbox, step)

    async def slow(*positional: Any, **named: Any) -> Any:
        """The database has done it, and its answer is on its way."""
        found = await plain(*positional, **named)
        reached.set()
        await asyncio.sleep(0.1)
        return found

    accepted: list[Message] = []

    async def accept_one(one: Message) -> None:
        if accepted:
            raise ConnectionFailed("no broker")
        accepted.append(one)

    setattr(outbox, step, slow)
    relaying = asyncio.create_task(Relay(outbox, accept_one, most=1).run())
    async with asyncio.timeout(30):
        await reached.wait()
    relaying.cancel()
    await asyncio.wait({relaying})
    assert len(await Outbox(engine, "next", CLOCK, lease=30).claim()) == 1


async def test_four_relays_publish_each_message_once(
    engine: AsyncEngine,
) -> None:
    """Messages of a key are in order."""
    await put(engine, *(message(n, f"key{k}") for n in range(10) for k in range(12)))
    sink = Sink()
    relays = [Relay(Outbox(engine, f"relay{n}", CLOCK), sink.publish, most=5) for n in range(4)]

    async def drain(relay: Relay) -> None:
        while await Outbox(engine, "look", CLOCK).depth():
            await relay.sweep()

    await asyncio.gather(*(drain(relay) for relay in relays))
    assert len(sink.got) == len(set(sink.got)) == 120
    for k in range(12):
        mine = [name for name in sink.got if name.startswith(f"key{k}-")]
        assert mine == [f"key{k}-{n}" for n in range(10)]


async def test_publishes_that_outlast_the_lease_are_not_repeated_by_another_relay(
    engine: AsyncEngine,
) -> None:
    """During a memory alarm, publishes wait without a limit."""
    clock, alarm_ended, published = SystemClock(), asyncio.Event(), list[int]()

    async def publish(message: Message) -> None:
        await alarm_ended.wait()
        published.append(int(message.body))

    async with transaction(engine, clock) as tx:
        for number in range(20):
            await tx.send(compose("events", number), key=f"k{number % 4}")
    relays = [Relay(Outbox(engine, name, clock, lease=1.5), publish, idle=0.1) for name in "ab"]
    relaying = [asyncio.create_task(relay.run()) for relay in relays]
    await asyncio.sleep(4)
    alarm_ended.set()
    await until(lambda: len(published) >= 20)
    await asyncio.sleep(0.5)
    for task in relaying:
        task.cancel()
    await asyncio.gather(*relaying, return_exceptions=True)
    assert sorted(published) == list(range(20))


async def test_nudge_wakes_idle_relay(engine: AsyncEngine) -> None:
    sink = Sink()
    relay = Relay(Outbox(engine, "relay", CLOCK), sink.publish, idle=3600)
    running = asyncio.create_task(relay.run())
    await asyncio.sleep(0.05)
    await put(engine, message(1))
    relay.nudge()
    async with asyncio.timeout(10):
        await sink.first.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@in_virtual_time
async def test_relay_polls_rarely_in_virtual_time_but_finds_new_messages_at_once() -> None:
    engine, sink = open_database("sqlite://"), Sink()
    await migrate(engine, CLOCK)
    outbox, looks = Outbox(engine, "relay", CLOCK), list[int]()
    claim = outbox.claim

    async def counted(most_slots: int = 16) -> list[int]:
        looks.append(1)
        return await claim(most_slots)

    outbox.claim = counted  # type: ignore[method-assign]
    running = asyncio.create_task(Relay(outbox, sink.publish).run())
    await asyncio.sleep(7200)
    assert len(looks) < 300
    async with transaction(engine, CLOCK) as tx:
        await tx.send(message(1))
    await asyncio.sleep(1)
    assert sink.got == ["k-1"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await engine.dispose()


@pytest.mark.parametrize("url", ["mysql://user:hunter2@host/db", "not a url hunter2"])
def test_invalid_database_url_is_refused_without_password(url: str) -> None:
    with pytest.raises(DatabaseUrlError) as refused:
        open_database(url)
    assert "expected" in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_connection_closed_by_server_is_replaced_before_use(engine: AsyncEngine) -> None:
    """Several connections of a pool are closed, and no transaction fails."""
    async with AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(engine.connect())
    async with engine.connect() as connection:
        ending = text(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        assert len((await connection.execute(ending)).all()) == 2
        await asyncio.sleep(0.1)  # the servers' processes end
        async with AsyncExitStack() as stack:
            for number in range(2):
                tx = await stack.enter_async_context(transaction(engine))
                assert await tx.first_time("orders", f"m-{number}")


async def test_database_error_of_inbox_is_sqlalchemy_error(engine: AsyncEngine) -> None:
    """Handlers catch the same errors with every driver."""
    async with engine.begin() as connection:
        await connection.execute(text("DROP TABLE hopback_inbox"))
    with pytest.raises(DBAPIError, match="hopback_inbox"):
        async with transaction(engine) as tx:
            await tx.first_time("orders", "m-1")


async def test_transaction_on_plain_connection_commits_with_it(engine: AsyncEngine) -> None:
    """SQLAlchemy begins a transaction at the first statement, and so does the inbox."""
    for is_first in (True, False):
        async with engine.connect() as connection:
            assert await Transaction(connection).first_time("orders", "m-1") is is_first
            await connection.commit()
