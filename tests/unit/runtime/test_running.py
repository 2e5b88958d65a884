"""Running an application: order, pauses, the circuit breaker and the start."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from hopback import App, BreakerPolicy, Context, Done, Service, ServiceOptions, Snooze
from hopback.broker import EmbeddedBroker, Ownership
from hopback.broker.embedded import Fault, Refusal
from hopback.broker.supervise import SupervisedState
from hopback.designs import DESIGNS
from hopback.errors import TopologyConflict, TopologyError, UnsafeOperation
from hopback.policy.breaker import BreakerState
from hopback.runtime.consumer import Consumer, ConsumerState, Leftover
from hopback.testing import AppTest, Tally, in_virtual_time
from hopback.topology.expand import harden_queues, recommend_plan
from hopback.topology.model import Queue, Topology
from tests.unit.runtime.slow import alone, slow_app

if TYPE_CHECKING:
    from hopback.message import Delivery


def _state(consumer: Consumer) -> ConsumerState:
    """Asked anew each time: a type checker takes a property for a constant."""
    return consumer.state


def _breaker(consumer: Consumer) -> BreakerState:
    """The same for the breaker."""
    return consumer.breaker


# --- order ------------------------------------------------------------------------------------------


@in_virtual_time
async def test_messages_of_same_key_run_one_after_another() -> None:
    """Other keys run concurrently."""

    def customer(delivery: Delivery) -> str:
        return delivery.body.decode()[0]

    app, told = slow_app(1, key=customer, concurrency=10)
    async with AppTest(app) as test:
        for payload in ("a1", "a2", "b1", "a3", "b2"):
            await test.publish("orders", payload)
        await test.drain()
    assert [one for one in told if " a" in one] == [
        f"{what} a{n}" for n in (1, 2, 3) for what in ("begin", "end")
    ]
    assert told[:2] == ["begin a1", "begin b1"]


@in_virtual_time
async def test_header_may_be_key_as_it_is() -> None:
    """A numeric header is a key, too. mypy accepts the value of a header."""
    app, told = slow_app(
        1, key=lambda delivery: delivery.properties.headers.get("customer"), concurrency=10
    )
    async with AppTest(app) as test:
        for payload, customer in (("a1", 1), ("b1", 2), ("a2", 1)):
            await test.publish("orders", payload, headers={"customer": customer})
        await test.drain()
    assert told[:2] == ["begin a1", "begin b1"]
    assert told.index("end a1") < told.index("begin a2")


@pytest.mark.parametrize("key", [lambda _delivery: 1 / 0, lambda _delivery: ["no text"]])
@in_virtual_time
async def test_message_whose_key_function_raises_fails(key: Any) -> None:
    app, told = slow_app(1, key=key)
    async with AppTest(app) as test:
        await test.publish("orders", "a1")
        tally = await test.drain()
    assert told == []
    assert tally == Tally(retried=1, parked=1)


@in_virtual_time
async def test_concurrency_of_service_overrides_handler() -> None:
    at_once: list[int] = []
    running = 0
    app = App("shop")

    @app.handler("orders", retry=["1s"], concurrency=10)
    async def handle() -> None:
        nonlocal running
        running += 1
        at_once.append(running)
        await asyncio.sleep(1)
        running -= 1

    async with AppTest(app, options=ServiceOptions(concurrency=3)) as test:
        for _ in range(20):
            await test.publish("orders", {})
        await test.drain()
    assert max(at_once) == 3


# --- pausing ----------------------------------------------------------------------------------------


@in_virtual_time
async def test_paused_queue_takes_no_delivery_until_resumed() -> None:
    """Running messages are settled, waiting ones are requeued."""
    app, told = slow_app(10, concurrency=1)
    async with AppTest(app) as test:
        consumer = test.service.consumer("orders")
        for payload in "abc":
            await test.publish("orders", payload)
        await test.advance(1)
        consumer.pause("maintenance")
        await consumer.wait_paused()
        assert told == ["begin a", "end a"]
        assert _state(consumer) is ConsumerState.PAUSED
        await test.advance(1000)
        assert told == ["begin a", "end a"]
        queue = test.broker.snapshot().queue("orders")
        assert (len(queue.ready), queue.consumers) == (2, ())
        consumer.resume("maintenance is over")
        tally = await test.drain()
        assert _state(consumer) is ConsumerState.CONSUMING
    assert tally == Tally(done=3)
    assert sorted(told) == sorted(f"{what} {one}" for one in "abc" for what in ("begin", "end"))
    reasons = [one.fields["reason"] for one in test.events if one.name.startswith("consumer.p")]
    assert reasons == ["maintenance"]
    assert not test.find_events("consumer.lost")


@in_virtual_time
async def test_pause_and_resume_work_in_any_state() -> None:
    """Examples are before the start, while idle and across a lost connection."""
    app, _ = slow_app(1)
    async with AppTest(app) as test:
        consumer = test.service.consumer("orders")
        for pause in (0.0, 0.1, 0.3, 2.0):
            consumer.pause("now")
            await asyncio.sleep(pause)
            consumer.resume("now")
            await test.publish("orders", "x")
            consumer.pause("again")
            test.broker.cut()
            consumer.resume("again")
        tally = await test.drain()
        assert tally.done >= 4
        assert not test.broker.snapshot().queue("orders").messages


@in_virtual_time
async def test_resumed_queue_is_consumed_while_earlier_handler_runs() -> None:
    """That handler settles its message. The waiting messages are requeued at the pause."""
    app, told = slow_app(100, concurrency=2)
    async with AppTest(app) as test:
        consumer = test.service.consumer("orders")
        await test.publish("orders", "a")
        await test.advance(50)
        for payload in "bcd":
            await test.publish("orders", payload)
        consumer.pause("maintenance")
        await test.advance(1)
        assert [one.body for one in test.broker.snapshot().queue("orders").ready] == [b"c", b"d"]
        consumer.resume("maintenance is over")
        await test.advance(1)
        assert _state(consumer) is ConsumerState.CONSUMING
        await test.advance(50)
        assert told == ["begin a", "begin b", "end a", "begin c"]
        tally = await test.drain()
        await test.advance(60)
        assert not consumer.retired
        assert len(test.broker.snapshot().queue("orders").consumers) == 1
    assert tally == Tally(done=4)
    assert len(told) == 8


@in_virtual_time
async def test_pause_requeues_suspected_messages_that_were_not_started() -> None:
    """They wait for the handlers of lost connections."""
    app, _ = slow_app(100)
    async with AppTest(app) as test:
        for payload in "ab":
            await test.publish("orders", payload)
        for _ in range(4):
            await test.advance(5)
            test.broker.cut()
        await test.advance(10)
        test.service.consumer("orders").pause("maintenance")
        await test.advance(1)
        queue = test.broker.snapshot().queue("orders")
        assert (len(queue.unacked), len(queue.ready)) == (0, 2)
        test.service.consumer("orders").resume("maintenance is over")
        assert (await test.drain()).done == 2


@in_virtual_time
async def test_closed_channel_requeues_waiting_messages_of_earlier_channels() -> None:
    """The earlier channel stays open for a slow handler."""
    app, told = slow_app(100, concurrency=1)
    async with AppTest(app) as test:
        for payload in "ab":
            await test.publish("orders", payload)
        await test.advance(60)
        (consumer,) = test.broker.node.queues["orders"].ring.consumers
        consumer.channel.fail(Refusal(406, "PRECONDITION_FAILED"))
        await test.advance(0.1)
        assert [one.body for one in test.broker.snapshot().queue("orders").ready] == [b"b"]
        await test.drain()
    assert told == ["begin a", "end a", "begin b", "end b"]


@pytest.mark.parametrize("pause_after", [1, 60])
@in_virtual_time
async def test_queue_with_hanging_handler_can_be_paused_and_resumed(pause_after: float) -> None:
    """After a minute, the hanging handler is on another channel than the other messages."""
    app, told = App("shop"), list[str]()

    @app.handler("orders", retry=["30s"])
    async def handle(payload: str) -> None:
        told.append(payload)
        if payload == "hang":
            await asyncio.Event().wait()

    async with AppTest(app) as test:
        consumer = test.service.consumer("orders")
        await test.publish("orders", "hang")
        await test.advance(pause_after)
        consumer.pause("maintenance")
        await test.advance(1)
        await test.publish("orders", "next")
        await test.advance(100)
        assert told == ["hang"]
        consumer.resume("maintenance is over")
        await test.advance(1)
        assert told == ["hang", "next"]
        consumer.pause("maintenance again")
        await test.advance(1)
        report = await test.stop()
    assert report.left == (Leftover("orders", not_started=0, interrupted=1),)
    assert [one.body for one in test.broker.snapshot().queue("orders").ready] == [b"hang"]
    alone()


@pytest.mark.parametrize(("prefetch", "until"), [(1, 22), (10, 23)])
@in_virtual_time
async def test_queue_paused_while_its_consumer_restarts_takes_no_delivery(
    prefetch: int, until: int
) -> None:
    """Each answer of the broker takes a second, so the restart takes about 22 s. In the last second
    the message is in transit. With a prefetch of 1 it is then handled.
    """
    for after in range(until):
        app, told = slow_app(0, prefetch=prefetch)
        async with AppTest(app) as test:
            consumer = test.service.consumer("orders")
            test.faults.latency = 1.0
            consumer.restore("lost")
            await test.advance(0.1)
            await test.publish("orders", "x")
            await test.advance(after)
            consumer.pause("maintenance")
            await test.advance(50)
            assert (told, _state(consumer)) == ([], ConsumerState.PAUSED), f"after {after} s"
            consumer.resume("maintenance is over")
            await test.drain()
        assert told == ["begin x", "end x"]


@in_virtual_time
async def test_pause_before_consumer_restarts_requeues_waiting_messages() -> None:
    """They were received on the earlier channel, which stays open for the running handler."""
    app, told = slow_app(10, concurrency=1)
    async with AppTest(app) as test:
        consumer = test.service.consumer("orders")
        for payload in "abc":
            await test.publish("orders", payload)
        consumer.restore("lost")
        await test.advance(0.1)
        consumer.pause("maintenance")
        await test.advance(100)
        assert told == ["begin a", "end a"]
        assert [one.body for one in test.broker.snapshot().queue("orders").ready] == [b"b", b"c"]
        consumer.resume("maintenance is over")
        assert await test.drain() == Tally(done=3)


@in_virtual_time
async def test_paused_service_can_be_stopped() -> None:
    app, told = slow_app(1)
    async with AppTest(app) as test:
        consumer = test.service.consumer("orders")
        consumer.pause("maintenance")
        await consumer.wait_paused()
        await test.publish("orders", "x")
        report = await test.stop()
    assert told == []
    assert report.left == ()
    assert len(test.broker.snapshot().queue("orders").ready) == 1
    alone()


@in_virtual_time
async def test_pausing_unknown_queue_lists_known_ones() -> None:
    app, _ = slow_app(1)
    async with AppTest(app) as test:
        with pytest.raises(KeyError, match="orders"):
            test.service.consumer("order")


# --- the circuit breaker ----------------------------------------------------------------------------


@in_virtual_time
async def test_breaker_pauses_queue_after_three_failures() -> None:
    """One probe follows each cool-down, which doubles with each opening."""
    began = asyncio.get_running_loop().time()
    runs: list[int] = []
    app, healthy = App("shop"), False

    @app.handler(
        "orders",
        retry=["1h"],
        concurrency=5,
        breaker=BreakerPolicy(failures=3, cool_down=10, probes=1),
    )
    async def handle() -> None:
        runs.append(round(asyncio.get_running_loop().time() - began))
        await asyncio.sleep(0)
        if not healthy:
            raise OSError("the database is away")

    async with AppTest(app) as test:
        consumer = test.service.consumer("orders")
        for _ in range(30):
            await test.publish("orders", {})
        await test.advance(1)
        assert _breaker(consumer) is BreakerState.OPEN
        burst = len(runs)
        assert 3 <= burst <= 8
        await test.advance(35)
        assert runs[burst:] == [10, 30]
        healthy = True
        await test.advance(100)
        assert _breaker(consumer) is BreakerState.CLOSED
        assert len(runs) >= 30
        await test.drain()
        untils = [round(one.fields["until"]) for one in test.find_events("consumer.paused")]
        assert untils == [10, 20, 40]
        assert len(test.find_events("consumer.resumed")) == 1
        assert test.dead_letters("orders") == ()


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({}, {"payload": b"{"}),
        ({"message_type": "paid"}, {"payload": {}, "message_type": "lost"}),
        ({"key": lambda delivery: delivery.properties.headers["customer"]}, {"payload": {}}),
        ({"replies": True}, {"payload": {}, "reply_to": "elsewhere"}),
    ],
    ids=["undecodable", "unhandled-type", "no-key", "reply-refused"],
)
@in_virtual_time
async def test_messages_that_reach_no_handler_do_not_open_breaker(
    options: dict[str, Any], wrong: dict[str, Any]
) -> None:
    """One faulty producer does not stop the messages of the others."""
    app, runs = App("shop"), list[object]()

    @app.handler("orders", retry=["1h"], breaker=BreakerPolicy(failures=3), **options)
    async def handle(order: dict[str, int]) -> None:
        runs.append(order)

    async with AppTest(app) as test:
        for _ in range(5):
            await test.publish("orders", **wrong)
        await test.publish("orders", {"id": 1}, message_type="paid", headers={"customer": "a"})
        await test.advance(1)
        assert runs == [{"id": 1}]
        assert not test.find_events("consumer.paused")


@in_virtual_time
async def test_probe_that_reaches_no_handler_leaves_breaker_half_open() -> None:
    """The next message is the probe. An unhandled type does not close the breaker either."""
    app, runs = App("shop"), list[str]()
    app.types("orders", unhandled=Done())

    @app.handler(
        "orders",
        retry=["1h"],
        message_type="paid",
        concurrency=1,
        breaker=BreakerPolicy(failures=1, cool_down=10),
    )
    async def handle(order: dict[str, str]) -> None:
        runs.append(order["id"])
        if order["id"].startswith("bad"):
            raise OSError("the database is away")

    async with AppTest(app) as test:
        await test.publish("orders", {"id": "bad 1"}, message_type="paid")
        await test.publish("orders", b"{", message_type="paid")
        await test.publish("orders", {}, message_type="lost")
        await test.publish("orders", {"id": "bad 2"}, message_type="paid")
        await test.publish("orders", {"id": "good"}, message_type="paid")
        await test.advance(11)
        assert runs == ["bad 1", "bad 2"]
        untils = [round(one.fields["until"]) for one in test.find_events("consumer.paused")]
        assert untils == [10, 20]
        assert not test.find_events("consumer.resumed")
        await test.advance(20)
        assert runs == ["bad 1", "bad 2", "good"]
        assert _breaker(test.service.consumer("orders")) is BreakerState.CLOSED


@in_virtual_time
async def test_open_breaker_does_not_delay_shutdown() -> None:
    """Messages that it holds are reported as not started."""
    app = App("shop")

    @app.handler("orders", retry=["1h"], concurrency=1, breaker=BreakerPolicy(failures=1))
    async def handle() -> None:
        raise OSError("away")

    async with AppTest(app) as test:
        for _ in range(3):
            await test.publish("orders", {})
        await test.advance(1)
        report = await test.stop()
    assert report.left == (Leftover("orders", not_started=2, interrupted=0),)
    assert report.clean
    alone()


# --- the start --------------------------------------------------------------------------------------


@in_virtual_time
async def test_check_errors_refuse_start_unless_accepted_by_name() -> None:
    """Ratatoskr as documented can lose messages on 4.0."""
    app = App("ratatoskr", topology=DESIGNS["ratatoskr"].build({}, hardened=False))
    queue = app.topology.plans[0].queue

    @app.handler(queue)
    async def handle() -> None: ...

    with pytest.raises(UnsafeOperation) as caught:
        async with AppTest(app):
            pass
    assert "delivery-limit-feeds-retry" in str(caught.value)
    assert "accept them by name" in str(caught.value)
    alone()
    accept = ["delivery-limit-feeds-retry", "looking-deletes"]
    async with AppTest(app, options=ServiceOptions(accept=accept)) as test:
        test.broker.cut()
        await test.advance(60)
        assert test.service.consumers[0].is_consuming
    said = [one.fields["rule"] for one in test.find_events("topology.warning")]
    assert set(accept) <= set(said)
    places = [
        (one.fields["rule"], one.fields["place"]) for one in test.find_events("topology.warning")
    ]
    assert len(places) == len(set(places))


@in_virtual_time
async def test_topology_conflict_ends_run_and_closes_connections() -> None:
    """A new connection cannot repair it."""
    broker = EmbeddedBroker()
    connection = await broker.connect()
    channel = await connection.open_channel()
    await channel.declare_queue(Queue("orders"))
    app, _ = slow_app(1)
    service = Service(app, broker)
    with pytest.raises(TopologyConflict):
        await service.run()
    assert broker.connections == (connection,)
    assert service.lines["consuming"] is SupervisedState.CLOSED
    assert service.lines["publishing"] is SupervisedState.CLOSED
    with pytest.raises(TopologyConflict):
        await service.ready.wait()
    await connection.close()
    alone()


@in_virtual_time
async def test_ownership_check_names_missing_objects_and_creates_none() -> None:
    app, _ = slow_app(1)
    broker = EmbeddedBroker()
    with pytest.raises(TopologyError, match="orders"):
        async with AppTest(app, broker=broker, options=ServiceOptions(ownership=Ownership.CHECK)):
            pass
    assert broker.snapshot().queues == ()
    alone()


@in_virtual_time
async def test_ready_is_set_when_every_consumer_has_started() -> None:
    """A broker that refuses at first delays it."""
    app, _ = slow_app(1)
    app.handler("more", retry=["1s"])(lambda: None)
    broker = EmbeddedBroker()
    broker.faults.latency = 1.0
    broker.faults.inject(Fault.REFUSE_CONNECTION, 3)
    service = Service(app, broker)
    running = asyncio.create_task(service.run())
    await asyncio.sleep(1)
    assert not service.ready.is_set()
    assert [one.state for one in service.consumers] == [ConsumerState.STARTING] * 2
    await service.ready.wait()
    assert [one.state for one in service.consumers] == [ConsumerState.CONSUMING] * 2
    service.stop()
    await running
    alone()


@in_virtual_time
async def test_standby_of_single_active_consumer_is_not_lost() -> None:
    """It takes over when the active consumer stops."""
    plan = recommend_plan("orders", tiers_ms=(1000,))
    main, *others = harden_queues(plan)
    single = replace(main, arguments={**main.arguments, "x-single-active-consumer": True})
    topology = Topology("shop", queues=(single, *others), plans=(plan,))

    def make_app() -> App:
        app = App("shop", topology=topology)

        @app.handler("orders", concurrency=1, prefetch=1)
        async def handle() -> None:
            await asyncio.sleep(5)

        return app

    broker = EmbeddedBroker()
    active, standby = (AppTest(make_app(), broker=broker) for _ in range(2))
    async with active, standby:
        for _ in range(100):
            await active.publish("orders", {})
        await active.advance(280)
        assert active.find_events("delivery.done")
        assert not standby.find_events("delivery.done")
        assert not standby.find_events("consumer.lost")
        await active.stop()
        await standby.drain()
        assert not broker.snapshot().queue("orders").messages


@in_virtual_time
async def test_application_without_handlers_runs_and_publishes() -> None:
    app = App("producer")
    app.queue("orders")
    async with AppTest(app) as test:
        await app.publish("orders", {})
        await test.advance(1000)
        states = [
            one.fields["state"] for one in test.find_events("connection.state", state="ready")
        ]
        assert len(states) == 2
        assert len(test.broker.snapshot().queue("orders").ready) == 1


# --- the documented designs -------------------------------------------------------------------------


def _runs(topology: Topology, queue: str, version: Any = None) -> tuple[int, Tally, int]:
    """Number of runs of a handler that always fails, and the remaining messages."""
    runs, tallies, resting = 0, list[Tally](), list[int]()
    app = App(topology.name, topology=topology)

    @app.handler(queue)
    async def handle(context: Context) -> None:
        nonlocal runs
        runs += 1
        assert context.attempt == runs
        raise ValueError("always")

    @in_virtual_time
    async def play() -> None:
        accept = ["delivery-limit-feeds-retry", "looking-deletes"]
        broker = EmbeddedBroker(version=version) if version else None
        # Some designs wait for hours: a look at the topology every 30 virtual seconds takes seconds.
        options = ServiceOptions(accept=accept, upkeep=86_400)
        async with AppTest(app, broker=broker, options=options) as test:
            await test.publish(queue, {})
            tallies.append(await test.drain())
            resting.append(len(test.dead_letters(queue)))

    play()
    return runs, tallies[0], resting[0]


@pytest.mark.parametrize("hardened", [False, True], ids=["faithful", "hardened"])
@pytest.mark.parametrize(
    ("design", "runs"),
    [("file-pipeline", 3), ("event-bus", 11), ("freeflow", 4), ("raffle", 4), ("ratatoskr", None)],
)
def test_every_design_has_documented_number_of_attempts(
    design: str, runs: int | None, hardened: bool
) -> None:
    """Then the message is in the dead-letter queue."""
    topology = DESIGNS[design].build({}, hardened=hardened)
    for plan in topology.plans:
        expected = runs or plan.attempts
        assert plan.attempts == expected
        assert _runs(topology, plan.queue) == (
            expected,
            Tally(retried=expected - 1, parked=1),
            1,
        )


@in_virtual_time
async def test_held_snoozes_leave_half_of_slots_free() -> None:
    """The event bus waits in the process. Further snoozes wait in the retry queue."""
    topology = DESIGNS["event-bus"].build({}, hardened=False)
    queue = topology.plans[0].queue
    app, handled = App("event-bus", topology=topology), list[str]()

    @app.handler(queue, concurrency=4)
    async def handle(payload: str) -> Snooze | None:
        if payload == "early":
            return Snooze(60)
        handled.append(payload)
        return None

    async with AppTest(app) as test:
        for _ in range(6):
            await test.publish(queue, "early")
        await test.publish(queue, "due")
        assert handled == ["due"]
        held = [one.fields["delay_ms"] for one in test.find_events("delivery.snoozed")]
        assert held == [5000] * 4  # these four wait in the retry queue, two are still held
        assert test.service.consumer(queue).in_flight == 2
        await test.advance(3)
        released = test.find_events("delivery.snoozed", delay_ms=1250)
        assert len(released) >= 2
        assert not test.find_events("delivery.retried")
        test.service.stop()
