"""Statements of Ratatoskr's document, "RabbitMQ Topology & Message Flow"."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import pytest

from hopback.broker.embedded import EmbeddedBroker, EventKind, Fault, run_virtual
from hopback.designs import ratatoskr
from hopback.errors import Returned, UnsafeOperation
from hopback.headers import broker_failures
from hopback.message import Message, Properties
from hopback.policy import Done, Park, Retry, Rule, Verdict
from hopback.runtime.app import App
from hopback.testing.kit import AppTest
from hopback.topology.model import Binding, Queue
from hopback.version import BrokerVersion
from tests.scenarios.scenario import (
    EVERY_VERSION,
    FAITHFUL,
    HARDENED,
    POLICY,
    RUNTIME,
    Scenario,
    for_design,
)

if TYPE_CHECKING:
    from tests.scenarios.consumers import Reaction, Run

_EVENT = ("ratatoskr.events", "order.created")
_QUEUE, _WAITING, _DLQ = "my-service.events", "my-service.events.retry", "my-service.events.dlq"
_TRANSIENT = TimeoutError("payment service is slow")
_INVALID = ValueError("order without lines")
_RULES = (Rule(ValueError, Verdict.PARK),)
_DONE = Done()
_QUICK = {"retry_delay_ms": 60}


@for_design(ratatoskr)
async def test_messages_are_consumed_and_acked(scenario: Scenario) -> None:
    """Normal processing. All three queues are quorum queues."""
    await scenario.publish(*_EVENT, b'{"order": 1}')
    await scenario.drain()
    assert scenario.consumers[_QUEUE].times == [0.0]
    assert await scenario.sizes(_QUEUE, _WAITING, _DLQ) == [0, 0, 0]
    queues = scenario.embedded.snapshot().queues
    assert {queue.name: queue.type for queue in queues} == dict.fromkeys(
        (_QUEUE, _WAITING, _DLQ), "quorum"
    )


@for_design(ratatoskr, versions=EVERY_VERSION, quick=_QUICK)
async def test_transient_failures_wait_in_the_retry_queue_until_max_retries(
    scenario: Scenario,
) -> None:
    """They are nacked without requeue, return after the retry delay, and are parked after three
    retries.

    `x-retry-count` contains the retries: 3 in the dead letter.
    """
    consumer = scenario.consumer(_QUEUE, rest=_TRANSIENT, rules=_RULES)
    await scenario.publish(*_EVENT, b'{"order": 1}', headers={"tenant": "blue"})
    await scenario.drain(runs=4)
    assert scenario.ran_at(consumer, [0.0, 5.0, 10.0, 15.0])
    assert consumer.attempts == [1, 2, 3, 4]
    assert {run.routing_key for run in consumer.runs} == {"order.created"}
    parked = await scenario.only(_DLQ)
    assert (parked.body, parked.headers["tenant"]) == (b'{"order": 1}', "blue")
    assert parked.headers["x-retry-count"] == 3
    assert parked.properties.delivery_mode == 2


@for_design(ratatoskr, versions=EVERY_VERSION)
async def test_retry_loop_uses_the_default_exchange_both_ways(scenario: Scenario) -> None:
    """Main queue, retry queue and back by queue name. The topic exchange is not involved."""
    scenario.consumer(_QUEUE, rest=_TRANSIENT)
    await scenario.publish(*_EVENT)
    await scenario.drain()
    assert scenario.arrivals(_QUEUE) == [
        (0.0, *_EVENT),
        *((at, "", _QUEUE) for at in (5.0, 10.0, 15.0)),
    ]
    assert scenario.arrivals(_WAITING) == [(at, "", _WAITING) for at in (0.0, 5.0, 10.0)]
    assert [(at, exchange) for at, exchange, _ in scenario.arrivals(_DLQ)] == [(15.0, _DLQ)]
    assert scenario.drops() == []


@for_design(ratatoskr, forms=[FAITHFUL], versions=EVERY_VERSION)
async def test_broker_counts_retries_in_x_death(scenario: Scenario) -> None:
    """If only the broker moves the message, `x-death` of the main queue is the retry count."""
    consumer = scenario.consumer(_QUEUE, rest=_TRANSIENT)
    await scenario.publish(*_EVENT)
    await scenario.drain()
    assert [broker_failures(run.headers, _QUEUE) for run in consumer.runs] == [0, 1, 2, 3]
    own = [event.kind for event in scenario.journal if event.queue == _QUEUE]
    assert own.count(EventKind.DIED) == 3


@for_design(ratatoskr, forms=[HARDENED])
async def test_hardened_form_counts_retries_in_x_retry_count(scenario: Scenario) -> None:
    """The published retry has the documented header with 1, 2, 3."""
    consumer = scenario.consumer(_QUEUE, rest=_TRANSIENT)
    await scenario.publish(*_EVENT)
    await scenario.drain()
    assert [run.headers.get("x-retry-count") for run in consumer.runs] == [None, 1, 2, 3]
    own = [event.kind for event in scenario.journal if event.queue == _QUEUE]
    assert own.count(EventKind.DIED) == 0


@for_design(ratatoskr, versions=EVERY_VERSION)
async def test_permanent_error_is_published_to_the_dlq_exchange_then_acked(
    scenario: Scenario,
) -> None:
    """A failed validation is not retried. The DLQ receives the message before the main queue's ack."""
    consumer = scenario.consumer(_QUEUE, _INVALID, rules=_RULES)
    await scenario.publish(*_EVENT)
    await scenario.drain()
    assert consumer.times == [0.0]
    parked = await scenario.only(_DLQ)
    assert parked.headers["x-retry-count"] == 0
    assert "order without lines" in str(parked.headers["hopback-failure"])
    kinds = [(event.kind, event.queue) for event in scenario.journal]
    assert kinds.index((EventKind.ENQUEUED, _DLQ)) < kinds.index((EventKind.ACKED, _QUEUE))
    assert scenario.arrivals(_WAITING) == []


@for_design(ratatoskr)
async def test_permanent_error_after_a_retry_is_parked_at_once(scenario: Scenario) -> None:
    """A transient error, then a permanent one: parked at the second run, after one retry."""
    consumer = scenario.consumer(_QUEUE, _TRANSIENT, _INVALID, rules=_RULES)
    await scenario.publish(*_EVENT)
    await scenario.drain()
    assert consumer.times == [0.0, 5.0]
    assert (await scenario.only(_DLQ)).headers["x-retry-count"] == 1


@for_design(ratatoskr)
async def test_dlq_exchange_is_a_fanout(scenario: Scenario) -> None:
    """Every queue bound to the dead-letter exchange receives each dead letter with any key."""
    scenario.consumer(_QUEUE, Park("hopeless"))
    await scenario.open()
    connection = await scenario.broker.connect("watcher")
    channel = await connection.open_channel()
    await channel.declare_queue(Queue("alerts"))
    await channel.bind(Binding(_DLQ, "alerts"))
    await scenario.publish(*_EVENT, b"1")
    await scenario.drain()
    await scenario.send(Message(_DLQ, "any.key", b"2"))
    for queue in ("alerts", _DLQ):
        assert [one.body for one in await scenario.contents(queue)] == [b"1", b"2"]
    await connection.close()


@for_design(ratatoskr)
async def test_waiting_message_does_not_block_others(scenario: Scenario) -> None:
    """Other messages are processed while one is in the retry queue."""
    consumer = scenario.script(_QUEUE, lambda run: Retry("slow") if run.body == b"1" else _DONE)
    await scenario.publish(*_EVENT, b"1")
    await scenario.wait(2)
    await scenario.publish(*_EVENT, b"2")
    await scenario.drain()
    assert [(run.body, round(run.at)) for run in consumer.runs] == [
        (b"1", 0),
        (b"2", 2),
        (b"1", 5),
        (b"1", 10),
        (b"1", 15),
    ]


@pytest.mark.parametrize("max_retries", [0, 1, 5])
@pytest.mark.parametrize("hardened", [False, True], ids=["faithful", "hardened"])
def test_retry_delay_and_max_retries_are_parameters(max_retries: int, hardened: bool) -> None:
    """With a delay of 1 s and N retries, the handler runs N + 1 times, 1 s apart."""
    design = partial(ratatoskr, "orders", retry_delay_ms=1_000, max_retries=max_retries)
    app = App("orders", topology=design(hardened=hardened))
    runs: list[int] = []

    @app.handler("orders")
    async def handle() -> None:
        runs.append(1)
        raise TimeoutError

    async def scenario() -> None:
        async with AppTest(app, broker=EmbeddedBroker(version=BrokerVersion(3, 10))) as test:
            await test.publish("any.key", {}, exchange="ratatoskr.events")
            await test.drain()
            (parked,) = test.dead_letters("orders")
            assert parked.properties.headers["x-retry-count"] == max_retries

    run_virtual(scenario())
    assert len(runs) == max_retries + 1


@for_design(partial(ratatoskr, routing_keys=("order.*", "refund.#")), runners=[POLICY])
async def test_topic_exchange_routes_by_the_configured_keys(scenario: Scenario) -> None:
    """An unroutable message is returned to its publisher."""
    await scenario.publish("ratatoskr.events", "order.created")
    await scenario.publish("ratatoskr.events", "refund.a.b")
    with pytest.raises(Returned):
        await scenario.publish("ratatoskr.events", "user.created")
    await scenario.drain()
    seen = [run.routing_key for run in scenario.consumers[_QUEUE].runs]
    assert seen == ["order.created", "refund.a.b"]


@for_design(ratatoskr, versions=EVERY_VERSION)
async def test_crash_between_processing_and_ack_redelivers(scenario: Scenario) -> None:
    """The message is processed twice, as redelivered the second time, with the same attempt number.

    An idempotent consumer has no effect the second time.
    """
    orders: set[int] = set()

    def process(run: Run) -> Reaction:
        orders.add(json.loads(run.body)["order"])
        return _DONE

    scenario.faults.inject(Fault.CUT_BEFORE_SETTLE)
    consumer = scenario.script(_QUEUE, process)
    await scenario.publish(*_EVENT, b'{"order": 1}')
    await scenario.drain()
    assert [(run.attempt, run.redelivered) for run in consumer.runs] == [(1, False), (1, True)]
    assert orders == {1}
    assert await scenario.sizes(_QUEUE, _WAITING, _DLQ) == [0, 0, 0]


@for_design(ratatoskr, versions=EVERY_VERSION)
async def test_crash_between_dlq_publish_and_ack_leaves_the_message_in_both_queues(
    scenario: Scenario,
) -> None:
    """The message is in the DLQ and is redelivered.

    It is parked again, so there are two dead letters. In the hardened form the runtime continues to
    run, has recorded the parked message and recognises the copy.
    """
    is_recognised = scenario.is_hardened and scenario.setting.runner == RUNTIME
    both: list[list[int]] = []

    def script(run: Run) -> Reaction:
        number = len(scenario.consumers[_QUEUE].runs)
        if number == 4:
            scenario.faults.inject(Fault.CUT_BEFORE_SETTLE)
        elif number == 5:
            assert run.redelivered
            queues = scenario.embedded.snapshot()
            both.append([len(queues.queue(name).messages) for name in (_QUEUE, _DLQ)])
        return Retry("still down")

    consumer = scenario.script(_QUEUE, script)
    await scenario.publish(*_EVENT, b'{"order": 1}')
    await scenario.drain()
    assert both == ([] if is_recognised else [[1, 1]])
    assert consumer.attempts == ([1, 2, 3, 4] if is_recognised else [1, 2, 3, 4, 4])
    parked = await scenario.contents(_DLQ)
    assert [one.body for one in parked] == [b'{"order": 1}'] * (1 if is_recognised else 2)
    assert {one.headers["x-retry-count"] for one in parked} == {3}
    assert await scenario.sizes(_QUEUE, _WAITING) == [0, 0]


@for_design(ratatoskr)
async def test_original_is_acked_only_after_the_dlq_publish_is_confirmed(
    scenario: Scenario,
) -> None:
    """The DLQ nacks once. The original is acked after the second publish is confirmed."""

    def script(_run: Run) -> Reaction:
        if len(scenario.consumers[_QUEUE].runs) == 1:
            scenario.faults.inject(Fault.NACK)
        return Park("hopeless")

    scenario.script(_QUEUE, script)
    await scenario.publish(*_EVENT)
    await scenario.drain()
    assert await scenario.sizes(_QUEUE, _DLQ) == [0, 1]


@for_design(ratatoskr, versions=EVERY_VERSION)
async def test_lost_confirm_duplicates_the_dead_letter(scenario: Scenario) -> None:
    """The message was stored without a confirm, so it is published again and the DLQ contains it twice."""

    def script(_run: Run) -> Reaction:
        if len(scenario.consumers[_QUEUE].runs) == 1:
            scenario.faults.inject(Fault.LOSE_CONFIRM)
        return Park("hopeless")

    scenario.script(_QUEUE, script)
    await scenario.publish(*_EVENT)
    await scenario.drain()
    assert await scenario.sizes(_QUEUE, _WAITING, _DLQ) == [0, 0, 2]


@for_design(ratatoskr, versions=EVERY_VERSION, quick=_QUICK)
async def test_redriven_message_returns_to_its_queue_as_first_attempt(scenario: Scenario) -> None:
    """Directly to the main queue, without the retry count."""
    consumer = scenario.consumer(_QUEUE, *[_TRANSIENT] * 4)
    await scenario.publish(*_EVENT)
    await scenario.drain(runs=4)
    await scenario.contents(_DLQ, 1)
    sent = await scenario.redrive(_QUEUE)
    assert (sent.exchange, sent.routing_key) == ("", _QUEUE)
    await scenario.drain(runs=5)
    assert consumer.attempts == [1, 2, 3, 4, 1]
    again = consumer.runs[-1]
    assert again.routing_key == "order.created"
    assert "x-retry-count" not in again.headers
    assert await scenario.contents(_DLQ) == []


@for_design(ratatoskr, versions=EVERY_VERSION)
async def test_redriven_message_that_fails_has_all_its_retries_again(scenario: Scenario) -> None:
    """Two re-drives in vain give twelve runs and still one dead letter."""
    consumer = scenario.consumer(_QUEUE, rest=_TRANSIENT)
    await scenario.publish(*_EVENT)
    await scenario.drain()
    for _ in range(2):
        await scenario.redrive(_QUEUE)
        await scenario.drain()
    assert consumer.attempts == [1, 2, 3, 4] * 3
    parked = await scenario.only(_DLQ)
    assert (parked.headers["x-retry-count"], parked.headers["hopback-redrives"]) == (3, 2)


async def _get_and_disconnect(scenario: Scenario, queue: str, times: int) -> None:
    """Get a message and close the connection, repeatedly."""
    for _ in range(times):
        connection = await scenario.broker.connect("reader")
        channel = await connection.open_channel()
        await channel.get(queue)
        await connection.close()


@for_design(ratatoskr, runners=[POLICY], versions=EVERY_VERSION)
async def test_reading_the_dlq_deletes_only_in_the_form_with_that_finding(
    scenario: Scenario,
) -> None:
    """From 4.0 on the default delivery limit of quorum queues counts gets. The hardened form disables it."""
    scenario.consumer(_QUEUE, Park("hopeless"))
    await scenario.publish(*_EVENT)
    await scenario.drain()
    await _get_and_disconnect(scenario, _DLQ, 30)
    deleted = not scenario.is_hardened and scenario.version >= BrokerVersion(4, 0)
    assert await scenario.sizes(_DLQ) == [0 if deleted else 1]


@for_design(ratatoskr, runners=[POLICY], versions=EVERY_VERSION)
async def test_crashing_consumer_loses_messages_only_in_the_form_with_that_finding(
    scenario: Scenario,
) -> None:
    """From 4.0 on messages beyond the limit enter the retry loop, and their return is dropped as a cycle."""
    await scenario.open()
    await scenario.close()
    scenario.consumers.clear()
    await scenario.send(Message(*_EVENT, b"1", Properties(delivery_mode=2)))
    await _get_and_disconnect(scenario, _QUEUE, 30)
    await scenario.wait(6)
    dropped = not scenario.is_hardened and scenario.version >= BrokerVersion(4, 0)
    assert await scenario.sizes(_QUEUE, _WAITING) == [0 if dropped else 1, 0]
    assert [reason for _, reason in scenario.drops()] == (["dead-letter cycle"] if dropped else [])


@pytest.mark.parametrize("version", EVERY_VERSION, ids=str)
def test_runtime_refuses_the_documented_form_on_versions_with_errors(
    version: BrokerVersion,
) -> None:
    """Errors of `check` for the connected version prevent the start unless they are accepted by name."""
    app = App("orders", topology=ratatoskr())

    @app.handler(_QUEUE)
    async def handle() -> None:
        pass

    async def scenario() -> None:
        async with AppTest(app, broker=EmbeddedBroker(version=version)):
            pass

    if version >= BrokerVersion(4, 0):
        with pytest.raises(UnsafeOperation, match="delivery-limit-feeds-retry"):
            run_virtual(scenario())
    else:
        run_virtual(scenario())
