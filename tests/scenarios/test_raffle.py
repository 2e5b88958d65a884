"""Statements of the raffle's document, "Processo de Enfileiramento de Usuários"."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import pytest

from hopback.broker.embedded import EventKind, Fault
from hopback.designs import raffle
from hopback.errors import ConnectionFailed, Nacked
from hopback.headers import broker_failures
from hopback.policy import Done, Retry
from tests.scenarios.scenario import EVERY_VERSION, FAITHFUL, POLICY, RUNTIME, Scenario, for_design

if TYPE_CHECKING:
    from tests.scenarios.consumers import Reaction, Run

_NEW_USER = ("raffle_exchange", "raffle_queue")
_QUEUE, _WAITING, _DLQ = "raffle_queue", "raffle_retry_10s", "raffle_dlq"
_USER = b'{"id": "u-1", "name": "Ada", "email": "ada@example.org"}'
_DONE = Done()
_DB_ERROR = Retry("db_error: connection timeout")
_QUICK = {"retry_ttl_ms": 60}


@for_design(raffle)
async def test_published_user_is_consumed_inserted_and_acked(scenario: Scenario) -> None:
    """Normal processing: one run, and all queues are empty afterwards."""
    consumer = scenario.consumer(_QUEUE, reads_json=True)
    await scenario.publish(*_NEW_USER, _USER)
    await scenario.drain()
    assert [(run.body, run.attempt) for run in consumer.runs] == [(_USER, 1)]
    assert await scenario.sizes(_QUEUE, _WAITING, _DLQ) == [0, 0, 0]


@for_design(raffle, versions=EVERY_VERSION, quick=_QUICK)
async def test_persistent_failure_is_retried_three_times_after_10_s_then_goes_to_the_dlq(
    scenario: Scenario,
) -> None:
    """`x-retries` is compared before it is incremented: with three retries, the fourth failure
    parks.

    Each retry has its number and reason. The body is unchanged.
    """
    consumer = scenario.consumer(_QUEUE, rest=_DB_ERROR, reads_json=True)
    await scenario.publish(*_NEW_USER, _USER)
    await scenario.drain(runs=4)
    assert scenario.ran_at(consumer, [0.0, 10.0, 20.0, 30.0])
    assert consumer.attempts == [1, 2, 3, 4]
    assert [run.headers.get("x-retries") for run in consumer.runs] == [None, 1, 2, 3]
    assert [run.headers.get("x-retry-reason") for run in consumer.runs] == [
        None,
        *["db_error: connection timeout"] * 3,
    ]
    assert {run.body for run in consumer.runs} == {_USER}
    parked = await scenario.only(_DLQ)
    assert parked.body == _USER
    assert parked.headers["x-retries"] == 3
    assert parked.headers["x-retry-reason"] == "db_error: connection timeout"


@for_design(raffle)
async def test_retry_uses_the_retry_exchange_and_returns_through_the_main_exchange(
    scenario: Scenario,
) -> None:
    """It waits 10 s in `raffle_retry_10s`. In the hardened form it returns directly to the queue."""
    scenario.consumer(_QUEUE, rest=_DB_ERROR)
    await scenario.publish(*_NEW_USER, _USER)
    await scenario.drain()
    back = ("", _QUEUE) if scenario.is_hardened else _NEW_USER
    assert scenario.arrivals(_QUEUE) == [
        (0.0, *_NEW_USER),
        *((at, *back) for at in (10.0, 20.0, 30.0)),
    ]
    assert scenario.arrivals(_WAITING) == [
        (at, "raffle_retry_exchange", _WAITING) for at in (0.0, 10.0, 20.0)
    ]
    assert scenario.arrivals(_DLQ) == [(30.0, "raffle_dlx", _DLQ)]
    assert scenario.drops() == []


@for_design(raffle)
async def test_original_is_acked_only_after_the_retry_is_published(
    scenario: Scenario,
) -> None:
    """As in the sequence diagram: increment the count, publish the retry, ack the original."""
    scenario.consumer(_QUEUE, _DB_ERROR)
    await scenario.publish(*_NEW_USER, _USER)
    await scenario.drain()
    kinds = [
        (event.kind, event.queue)
        for event in scenario.journal
        if event.kind in (EventKind.ENQUEUED, EventKind.ACKED)
    ]
    waits = kinds.index((EventKind.ENQUEUED, _WAITING))
    assert kinds[waits + 1] == (EventKind.ACKED, _QUEUE)


@for_design(raffle)
async def test_exhausted_message_is_rejected_to_the_dlq(scenario: Scenario) -> None:
    """The dead-letter exchange moves it to the DLQ. In the hardened form it is published there."""
    scenario.consumer(_QUEUE, rest=_DB_ERROR)
    await scenario.publish(*_NEW_USER, _USER)
    await scenario.drain()
    parked = await scenario.only(_DLQ)
    assert broker_failures(parked.headers, _QUEUE) == (0 if scenario.is_hardened else 1)
    assert (
        parked.headers["x-last-death-queue" if not scenario.is_hardened else "hopback-queue"]
        == _QUEUE
    )


@for_design(raffle)
async def test_temporary_database_failure_recovers_without_intervention(scenario: Scenario) -> None:
    """The database fails for 15 s, so the run at 20 s succeeds."""

    def script(run: Run) -> Reaction:
        return _DB_ERROR if run.at < 15 else _DONE

    consumer = scenario.script(_QUEUE, script)
    await scenario.publish(*_NEW_USER, _USER)
    await scenario.drain()
    assert consumer.times == [0.0, 10.0, 20.0]
    assert await scenario.sizes(_QUEUE, _WAITING, _DLQ) == [0, 0, 0]


@for_design(raffle, versions=EVERY_VERSION)
async def test_malformed_json_goes_to_the_dlq_without_retry(scenario: Scenario) -> None:
    """No handler runs, and other users are not delayed."""
    consumer = scenario.consumer(_QUEUE, reads_json=True)
    await scenario.publish(*_NEW_USER, b'{"id": ')
    await scenario.publish(*_NEW_USER, _USER)
    await scenario.drain()
    assert [run.body for run in consumer.runs] == [_USER]
    assert scenario.arrivals(_WAITING) == []
    parked = await scenario.only(_DLQ)
    assert parked.body == b'{"id": '
    assert "x-retries" not in parked.headers
    if scenario.is_hardened:
        assert "Expecting value" in str(parked.headers["hopback-failure"])


@for_design(partial(raffle, retry_ttl_ms=2_000, max_retries=1), runners=[RUNTIME])
async def test_environment_sets_wait_and_limit(scenario: Scenario) -> None:
    """`RETRY_TTL_MS` 2000 and `MAX_RETRIES` 1: two runs, two seconds apart."""
    consumer = scenario.consumer(_QUEUE, rest=_DB_ERROR)
    await scenario.publish(*_NEW_USER, _USER)
    await scenario.drain()
    assert consumer.times == [0.0, 2.0]
    assert (await scenario.only(_DLQ)).headers["x-retries"] == 1


@for_design(raffle, versions=EVERY_VERSION, quick=_QUICK)
async def test_manual_recovery_from_the_dlq_resets_the_attempts(scenario: Scenario) -> None:
    """The re-driven user has all attempts again, without `x-retries`."""
    consumer = scenario.consumer(_QUEUE, *[_DB_ERROR] * 4)
    await scenario.publish(*_NEW_USER, _USER)
    await scenario.drain(runs=4)
    await scenario.contents(_DLQ, 1)
    await scenario.redrive(_QUEUE)
    await scenario.drain(runs=5)
    assert consumer.attempts == [1, 2, 3, 4, 1]
    assert "x-retries" not in consumer.runs[-1].headers
    assert await scenario.contents(_DLQ) == []


@for_design(raffle, runners=[POLICY], versions=EVERY_VERSION)
async def test_dlq_consumer_rejects_and_requeues_on_failure(scenario: Scenario) -> None:
    """Failed manual runs leave the message in the DLQ, in any number."""
    scenario.consumer(_QUEUE, rest=_DB_ERROR)
    await scenario.publish(*_NEW_USER, _USER)
    await scenario.drain()
    connection = await scenario.broker.connect("dead-letter consumer")
    channel = await connection.open_channel()
    for _ in range(30):
        delivery = await channel.get(_DLQ)
        assert delivery is not None
        channel.nack(delivery.tag, requeue=True)
    assert (await scenario.only(_DLQ)).body == _USER
    delivery = await channel.get(_DLQ)
    assert delivery is not None
    channel.ack(delivery.tag)
    await connection.close()
    assert await scenario.sizes(_DLQ) == [0]


@for_design(raffle, runners=[POLICY], forms=[FAITHFUL])
async def test_publisher_receives_an_error_and_may_publish_again(
    scenario: Scenario,
) -> None:
    """If RabbitMQ is unreachable or nacks, the publish raises and no user is stored. The second
    publish succeeds.
    """
    await scenario.open()
    scenario.faults.inject(Fault.REFUSE_CONNECTION)
    with pytest.raises(ConnectionFailed):
        await scenario.publish(*_NEW_USER, _USER)
    scenario.faults.inject(Fault.NACK)
    with pytest.raises(Nacked):
        await scenario.publish(*_NEW_USER, _USER)
    assert scenario.arrivals(_QUEUE) == []
    await scenario.publish(*_NEW_USER, _USER)
    await scenario.drain()
    assert scenario.consumers[_QUEUE].times == [0.0]


@for_design(raffle, versions=EVERY_VERSION)
async def test_messages_survive_a_restart_during_the_wait(scenario: Scenario) -> None:
    """Queues are durable and messages are persistent, so the retry arrives after a restart."""
    consumer = scenario.consumer(_QUEUE, _DB_ERROR)
    await scenario.publish(*_NEW_USER, _USER)
    await scenario.wait(5)
    assert await scenario.sizes(_WAITING) == [1]
    scenario.embedded.restart()
    await scenario.drain()
    assert consumer.attempts == [1, 2]
    assert consumer.runs[1].headers["x-retries"] == 1


@for_design(raffle)
async def test_crash_before_the_ack_inserts_no_user_twice(scenario: Scenario) -> None:
    """The message is redelivered, and the insert by ID has no effect."""
    users: set[str] = set()

    def insert(run: Run) -> Reaction:
        users.add(json.loads(run.body)["id"])
        return _DONE

    scenario.faults.inject(Fault.CUT_BEFORE_SETTLE)
    consumer = scenario.script(_QUEUE, insert)
    await scenario.publish(*_NEW_USER, _USER)
    await scenario.drain()
    assert [run.redelivered for run in consumer.runs] == [False, True]
    assert users == {"u-1"}
    assert await scenario.sizes(_QUEUE, _WAITING, _DLQ) == [0, 0, 0]
