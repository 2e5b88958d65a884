"""The documented re-drives of the five designs, and the plan of a job. In virtual time."""

from __future__ import annotations

import json

import pytest

from hopback.errors import NoSuch, UnsafeOperation
from hopback.fields import Timestamp
from hopback.message import Message, Properties
from hopback.ops.brokers.discovery import Override
from hopback.ops.contract.requests import (
    Pace,
    Selection,
    SessionRequest,
    Submission,
    Target,
    TargetKind,
)
from hopback.ops.contract.values import JobState
from hopback.testing import in_virtual_time
from hopback.topology.model import Binding, Queue
from hopback.version import BrokerVersion
from tests.unit.ops.shop import ANN, DLQ, MAIN, open_shop, properties, redrive


@in_virtual_time
async def test_file_pipeline_redrives_to_retry_exchange_and_publishes_event() -> None:
    """Messages get the `x-redriven-…` headers. `DlqRedriveCompleted.v1` follows at the end."""
    async with open_shop("file-pipeline") as shop:
        connection = await shop.broker.connect("listener")
        channel = await connection.open_channel()
        await channel.declare_queue(Queue("heard"))
        await channel.bind(Binding("domain.events", "heard", "operations.#"))
        await shop.park(2, queue="q.validator.dlq")
        job = await shop.operations.on_behalf_of(ANN).start(
            redrive(queue="q.validator.dlq", selection=Selection(limit=1)),
            Submission(operation="corr-1"),
        )
        done = await shop.operations.wait(job.id)
        assert (done.state, done.counts.done) == (JobState.COMPLETED, 1)
        (waiting,) = shop.queue("q.validator.retry").ready
        headers = waiting.properties.headers
        assert headers["x-redriven-from-dlq"] == "q.validator.dlq"
        assert headers["x-redriven-by-user-id"] == "u-1"
        assert headers["x-redriven-by-user-name"] == "Ann"
        assert headers["x-redrive-operation-correlation-id"] == "corr-1"
        assert str(headers["x-redriven-at"]).endswith("Z")
        (event,) = shop.queue("heard").ready
        envelope = json.loads(event.body)
        assert (event.exchange, event.routing_key) == (
            "domain.events",
            "operations.dlq.redrive.completed.v1",
        )
        assert (envelope["type"], envelope["kind"], envelope["correlationId"]) == (
            "DlqRedriveCompleted.v1",
            "event",
            "corr-1",
        )
        assert envelope["payload"]["moved"] == 1
        assert envelope["payload"]["retryExchange"] == "retry.q.validator"
        await connection.close()


@in_virtual_time
async def test_event_bus_redrive_keeps_attempt_count_and_x_death() -> None:
    async with open_shop("event-bus") as shop:
        dlq, main = "wms.dlq.wms-orders", "wms.queue.wms-orders"
        death = {
            "count": 10, "queue": main, "reason": "rejected", "exchange": "", "time": Timestamp(5),
            "routing-keys": [""],
        }  # fmt: skip
        headers = {"hopback-queue": main, "hopback-attempts": 11, "x-death": [death]}
        await shop.publish([Message("", dlq, b"x", properties("m", headers))])
        job = await shop.operations.start(redrive(queue=dlq))
        assert (await shop.operations.wait(job.id)).counts.done == 1
        (sent,) = shop.queue(main).ready
        assert sent.properties.headers["hopback-attempts"] == 11
        assert "x-death" in sent.properties.headers
        assert "x-redriven-at" not in sent.properties.headers


@in_virtual_time
async def test_freeflow_redrive_targets_queue_named_by_x_death() -> None:
    """All queues share one dead-letter queue. Counters are reset."""
    async with open_shop("freeflow") as shop:
        users, alarms = "freeflow.users.queue", "freeflow.alarms.queue"
        for queue in (users, alarms):
            await shop.publish(
                [Message("", queue, queue.encode(), properties("m", {"x-retry-count": 3}))]
            )
        connection = await shop.broker.connect("consumer")
        channel = await connection.open_channel()
        for queue in (users, alarms):
            delivery = await channel.get(queue)
            assert delivery is not None
            channel.nack(delivery.tag, requeue=False)
        await connection.close()
        await shop.publish([Message("", "freeflow.events.dlq", b"unknown")])
        plan = await shop.operations.plan(redrive(queue="freeflow.events.dlq"))
        assert {(way.exchange, way.routing_key) for way in plan.ways} >= {("", users), ("", alarms)}
        assert "not between them" in plan.order
        job = await shop.operations.start(redrive(queue="freeflow.events.dlq"))
        done = await shop.operations.wait(job.id)
        assert (done.counts.done, done.counts.failed) == (2, 1)
        for queue in (users, alarms):
            (sent,) = shop.queue(queue).ready
            assert sent.body == queue.encode()
            assert sent.properties.headers.get("x-retry-count", 0) == 0
        (failed,) = await shop.operations.failures(job.id)
        assert "does not contain the queue it failed in" in failed.reason
        assert shop.bodies("freeflow.events.dlq") == [b"unknown"]
        with pytest.raises(NoSuch):
            await shop.operations.job("j-unknown")


@pytest.mark.parametrize(
    ("design", "dlq", "main"), [("raffle", "raffle_dlq", "raffle_queue"), ("ratatoskr", DLQ, MAIN)]
)
@in_virtual_time
async def test_raffle_and_ratatoskr_redrive_resets_counters(
    design: str, dlq: str, main: str
) -> None:
    """The target is the queue that failed."""
    async with open_shop(design) as shop:
        headers = {"x-retries": 3, "x-retry-count": 3, "hopback-queue": main, "hopback-attempts": 4}
        await shop.publish([Message("", dlq, b"x", properties("m", headers))])
        job = await shop.operations.start(redrive(queue=dlq))
        assert (await shop.operations.wait(job.id)).counts.done == 1
        (sent,) = shop.queue(main).ready
        assert sent.properties.headers["hopback-attempts"] == 0
        assert sent.properties.headers["hopback-redrives"] == 1


@in_virtual_time
async def test_plan_lists_errors_targets_omissions_cost_and_order() -> None:
    async with open_shop() as shop:
        await shop.park(3, headers={"x-final-error": "Boom"})
        await shop.park(2, headers={"hopback-redrives": 9})
        plan = await shop.operations.plan(redrive())
        assert (plan.selected, plan.seen, plan.matching, plan.may_start) == (5, 5, 5, True)
        assert [(group.key, group.count) for group in plan.reasons] == [
            ("parked", 3),
            ("unknown", 2),
        ]
        (way,) = plan.ways
        assert (way.routing_key, way.count, way.flaw) == (MAIN, 3, None)
        (left,) = plan.left_out
        assert (left.count, left.reason) == (2, "re-driven 9 times already, expected fewer than 3")
        assert plan.watch_s == 480.0  # the tiers need longer, and the text states it
        assert "53 min" in plan.watch_text
        assert len(shop.bodies(DLQ)) == 5
        warned = await shop.operations.plan(redrive(target=Target(TargetKind.ORIGIN_EXCHANGE)))
        assert any("every queue bound" in warning for warning in warned.warnings)


@in_virtual_time
async def test_queue_list_reports_depth_source_and_age_without_browsing() -> None:
    """A declared queue that is missing is listed as missing."""
    async with open_shop() as shop:
        await shop.park(4)
        job = await shop.operations.start(redrive(pace=Pace(rate=0.1)))
        (row,) = await shop.operations.queues()
        assert (row.queue, row.main_queue, row.known_by, row.exists) == (DLQ, MAIN, "plan", True)
        assert row.depth.source == "embedded"
        assert row.active_job is not None
        assert row.active_job.id == job.id
        await shop.operations.cancel(job.id)
        await shop.operations.wait(job.id)
        detail = await shop.operations.queue(DLQ)
        assert (detail.depth.source, detail.depth.age(shop.broker.node.now())) == (
            "amqp",
            0.0,
        )
        default = next(choice for choice in detail.targets if choice.is_default)
        assert (default.exchange, default.routing_key, default.flaw) == ("", MAIN, None)
    async with open_shop(live=False) as shop:
        await shop.park(2)
        connection = await shop.broker.connect("x")
        await (await connection.open_channel()).delete_queue(DLQ)
        (row,) = await shop.operations.queues()
        assert (row.exists, row.depth.ready) == (False, None)
        await connection.close()


@in_virtual_time
async def test_override_names_queue_and_origin() -> None:
    """It can also hide a queue."""
    overrides = [Override("rest", main_queue=MAIN), Override(DLQ, hidden=True)]
    async with open_shop(overrides=overrides) as shop:
        connection = await shop.broker.connect("x")
        await (await connection.open_channel()).declare_queue(Queue("rest"))
        await connection.close()
        (row,) = await shop.operations.queues()
        assert (row.queue, row.label, row.known_by, row.main_queue) == (
            "rest",
            MAIN,
            "operator",
            MAIN,
        )
        await shop.publish([Message("", "rest", b"x", Properties(delivery_mode=2))])
        job = await shop.operations.start(redrive(queue="rest"))
        assert (await shop.operations.wait(job.id)).counts.done == 1
        with pytest.raises(NoSuch, match="is not known as a dead-letter queue"):
            await shop.operations.queue(MAIN)


@in_virtual_time
async def test_retry_of_failures_selects_only_failed_messages() -> None:
    async with open_shop("freeflow") as shop:
        dlq = "freeflow.events.dlq"
        await shop.publish([Message("", dlq, b"a"), Message("", dlq, b"b")])
        job = await shop.operations.start(redrive(queue=dlq))
        done = await shop.operations.wait(job.id)
        assert (done.state, done.counts.failed) == (JobState.COMPLETED, 2)
        await shop.publish([Message("", dlq, b"new")])
        again = await shop.operations.on_behalf_of(ANN).retry_failures(job.id)
        ended = await shop.operations.wait(again.id)
        assert (ended.counts.selected, ended.counts.failed) == (2, 2)
        assert shop.bodies(dlq) == [b"a", b"b", b"new"]


@in_virtual_time
async def test_retry_of_failures_is_refused_until_delivery_limit_is_lifted() -> None:
    """Like the first run: the messages that are not retried are requeued."""
    async with open_shop("ratatoskr", version=BrokerVersion(4, 0)) as shop:
        await shop.park(3)
        await shop.operations.lift_limit(DLQ)
        to_origin = redrive(target=Target(TargetKind.ORIGIN_EXCHANGE))
        job = await shop.operations.wait((await shop.operations.start(to_origin)).id)
        assert job.counts.failed == 3
        await shop.operations.restore_limit(DLQ)
        with pytest.raises(UnsafeOperation, match=r"requeued 21 times.*Lift the limit"):
            await shop.operations.retry_failures(job.id)
        await shop.operations.lift_limit(DLQ)
        again = await shop.operations.wait((await shop.operations.retry_failures(job.id)).id)
        assert again.counts.failed == 3


@in_virtual_time
async def test_plan_warns_of_messages_that_sessions_hold() -> None:
    async with open_shop() as shop:
        await shop.park(5)
        session = await shop.operations.open_session(DLQ, SessionRequest(limit=2))
        held = await shop.operations.plan(redrive())
        chosen = await shop.operations.plan(redrive(selection=Selection(session=session.id)))
    assert held.selection.count == 3
    assert f"browse sessions hold 2 messages of {DLQ}, which are not selected" in held.warnings
    assert not any("browse sessions" in one for one in chosen.warnings)
