"""The steps and headers of each decision."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hopback.designs import event_bus, file_pipeline, freeflow, raffle, ratatoskr, recommended
from hopback.fields import Timestamp
from hopback.headers import FRAME_BYTES, Failure, frame_size, read_history
from hopback.message import Properties, Received
from hopback.policy import Occasion, Park, Retry, Snooze, decide, effects
from hopback.policy import decision as decided
from hopback.policy.decision import Hold, Publish, Settle, Settlement
from hopback.policy.delays import read_delayed
from hopback.policy.effects import park_raw
from hopback.topology.plan import Fact, Leave, Stamp
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from hopback.fields import FieldValue, Headers
    from hopback.message import Message
    from hopback.policy import Outcome
    from hopback.topology.plan import Plan

_V310, _V40 = BrokerVersion(3, 10), BrokerVersion(4, 0)
_NOW = 1_700_000_000.0
_OCCASION = Occasion(_NOW, "host-1")
_RAFFLE = raffle().plans[0]
_USERS = freeflow().plans[0]
_ORDERS = recommended().plans[0]


def _publish(
    plan: Plan,
    outcome: Outcome,
    headers: Headers | None = None,
    *,
    occasion: Occasion = _OCCASION,
    key: str = "user.created",
    version: BrokerVersion = _V40,
) -> Message:
    properties = Properties(headers=headers or {}, message_id="m")
    delivery = Received(plan.queue, "freeflow.events", key, b"body", properties)
    decision = decide(delivery, outcome, plan, version=version)
    publish, settle = effects(decision, delivery, plan, occasion)
    assert isinstance(publish, Publish)
    assert settle == Settle(Settlement.ACK)
    assert (publish.message.body, publish.message.properties.message_id) == (b"body", "m")
    return publish.message


def _without_failure(message: Message) -> dict[str, FieldValue]:
    return {k: v for k, v in message.properties.headers.items() if k != "hopback-failure"}


def test_freeflow_retry_has_count_and_origin_headers() -> None:
    message = _publish(_USERS, Retry("no"), {"tenant": "acme"})
    assert (message.exchange, message.routing_key) == ("freeflow.events.retry", "user.30s")
    assert _without_failure(message) == {
        "tenant": "acme",
        "hopback-queue": "freeflow.users.queue",
        "hopback-attempts": 1,
        "x-retry-count": 1,
        "hopback-origin-routing-key": "user.created",
        "hopback-origin-exchange": "freeflow.events",
        "x-original-routing-key": "user.created",
        "x-original-exchange": "freeflow.events",
    }


def test_original_routing_key_is_never_overwritten() -> None:
    """The second retry arrives as `user.retry` and still has `user.created`."""
    first = _publish(_USERS, Retry("no"))
    second = _publish(_USERS, Retry("no"), first.properties.headers, key="user.retry")
    assert second.routing_key == "user.5m"
    headers = second.properties.headers
    assert headers["x-original-routing-key"] == "user.created"
    assert headers["hopback-origin-routing-key"] == "user.created"
    assert (headers["x-retry-count"], headers["hopback-attempts"]) == (2, 2)


def test_raffle_retry_has_count_and_latest_reason() -> None:
    first = _publish(_RAFFLE, Retry("db_error: connection timeout"))
    assert (first.exchange, first.routing_key) == ("raffle_retry_exchange", "raffle_retry_10s")
    assert first.properties.headers["x-retries"] == 1
    assert first.properties.headers["x-retry-reason"] == "db_error: connection timeout"
    second = _publish(_RAFFLE, Retry("db_error: deadlock"), first.properties.headers)
    assert second.properties.headers["x-retries"] == 2
    assert second.properties.headers["x-retry-reason"] == "db_error: deadlock"


def test_parked_file_message_has_documented_headers() -> None:
    plan = file_pipeline().plans[1]
    message = _publish(plan, Park("bad file"), {"hopback-queue": plan.queue, "hopback-attempts": 1})
    assert (message.exchange, message.routing_key) == ("dlq.q.validator", "parking")
    headers = message.properties.headers
    assert headers["x-parked-at"] == "2023-11-14T22:13:20.000Z"
    assert headers["x-parked-from-queue"] == "q.validator"
    assert headers["x-parked-delivery-attempt"] == 2
    assert headers["x-parked-reason"] == "bad file"
    assert headers["hopback-attempts"] == 2


def test_parked_event_has_status_error_and_retries() -> None:
    """`x-death` is unchanged."""
    plan = event_bus().plans[0]
    death: FieldValue = {
        "queue": plan.queue, "reason": "rejected", "count": 10, "exchange": "wms.main-exchange",
        "routing-keys": [""], "time": Timestamp(1),
    }  # fmt: skip
    died: Headers = {"x-death": [death]}
    by_status = _publish(plan, Retry("HTTP 500"), died, occasion=Occasion(_NOW, status=500))
    assert (by_status.exchange, by_status.routing_key) == ("", "wms.dlq.wms-cincout")
    headers = by_status.properties.headers
    assert headers["x-death"] == [death]
    assert headers["x-original-queue"] == "wms.queue.wms-cincout"
    assert headers["x-final-status-code"] == 500
    assert headers["x-final-retry-count"] == 10
    assert "x-final-error" not in headers
    failure = Failure("httpx.ReadTimeout", "timed out")
    by_error = _publish(
        plan, Retry("no"), headers, occasion=Occasion(_NOW, failure=failure)
    ).properties.headers
    assert by_error["x-final-error"] == "timed out"
    assert "x-final-status-code" not in by_error, "a stale status would be a lie"
    nameless = Occasion(_NOW, failure=Failure("Boom", ""))
    assert (
        _publish(plan, Park("x"), occasion=nameless).properties.headers["x-final-error"] == "Boom"
    )


def test_parked_ratatoskr_message_has_retry_count() -> None:
    """The hardened form has it on every retry."""
    faithful = ratatoskr().plans[0]
    counted: Headers = {"hopback-queue": faithful.queue, "hopback-attempts": 3}
    parked = _publish(faithful, Retry("no"), counted)
    assert (parked.exchange, parked.routing_key) == ("my-service.events.dlq", "")
    assert parked.properties.headers["x-retry-count"] == 3
    hardened = ratatoskr(hardened=True).plans[0]
    retried = _publish(hardened, Retry("no"))
    assert retried.properties.headers["x-retry-count"] == 1
    last = _publish(hardened, Retry("no"), {**counted, "x-retry-count": 3})
    assert last.properties.headers["x-retry-count"] == 3


def test_failure_record_has_first_and_last_time() -> None:
    failure = Failure("shop.OutOfStock", "none left", fingerprint="f", frame="shop:reserve")
    first = _publish(_ORDERS, Retry("no"), occasion=Occasion(_NOW, "a", failure))
    later = Occasion(_NOW + 60, "b", failure)
    second = _publish(_ORDERS, Retry("no"), first.properties.headers, occasion=later)
    assert read_history(second.properties.headers, "orders").failure == failure._replace(
        host="b", first=_NOW, last=_NOW + 60, attempts=2
    )


def test_failure_without_exception_records_reason() -> None:
    record = read_history(_publish(_ORDERS, Park("bad")).properties.headers, "orders").failure
    assert record is not None
    assert (record.message, record.type, record.attempts) == ("bad", "", 1)


def test_snooze_counts_only_itself() -> None:
    """Attempts and the last failure stay."""
    failed = _publish(_ORDERS, Retry("no"))
    snoozed = _publish(_ORDERS, Snooze(1), failed.properties.headers)
    again = _publish(_ORDERS, Snooze(1), snoozed.properties.headers)
    before = read_history(failed.properties.headers, "orders")
    after = read_history(again.properties.headers, "orders")
    assert (after.attempts, after.failure) == (before.attempts, before.failure)
    assert (before.snoozes, after.snoozes) == (0, 2)
    then = _publish(_ORDERS, Retry("no"), again.properties.headers)
    assert read_history(then.properties.headers, "orders").attempts == 2
    assert read_history(then.properties.headers, "orders").snoozes == 2


def test_copy_snoozed_by_other_queue_does_not_inherit_count() -> None:
    copy = _publish(_USERS, Retry("no")).properties.headers
    audit = freeflow().plans[-1]
    snoozed = _publish(audit, Snooze(1), copy).properties.headers
    assert (snoozed["x-retry-count"], snoozed["hopback-attempts"]) == (0, 0)
    assert snoozed["hopback-queue"] == "freeflow.audit.queue"


def test_stamped_texts_are_bounded() -> None:
    message = _publish(_RAFFLE, Retry("\udc80" + "x" * 2_000_000))
    reason = message.properties.headers["x-retry-reason"]
    assert isinstance(reason, str)
    assert len(reason.encode()) <= 1024


def test_custom_plan_can_stamp_every_fact() -> None:
    stamps = tuple(Stamp(f"s-{fact}", fact) for fact in Fact)
    plan = replace(_ORDERS, retry_stamps=stamps, park_stamps=stamps)
    occasion = Occasion(_NOW, failure=Failure("E", "m"), status=503)
    expected = {
        "s-now": "2023-11-14T22:13:20.000Z",
        "s-queue": "orders",
        "s-attempt": 1,
        "s-retries": 0,
        "s-reason": "no",
        "s-error": "m",
        "s-status": 503,
        "s-origin-exchange": "freeflow.events",
        "s-origin-routing-key": "user.created",
    }
    for outcome in (Retry("no"), Park("no")):
        headers = _publish(plan, outcome, occasion=occasion).properties.headers
        assert {k: v for k, v in headers.items() if k.startswith("s-")} == expected


def test_done_is_a_single_ack() -> None:
    steps = effects(decided.Ack(), Received("orders", "", "orders"), _ORDERS, _OCCASION)
    assert steps == (Settle(Settlement.ACK),)


def test_moves_by_broker_are_a_single_nack() -> None:
    delivery = Received("raffle_queue", "x", "k")
    parked = decide(delivery, Park("bad"), _RAFFLE, version=_V40)
    assert effects(parked, delivery, _RAFFLE, Occasion(_NOW)) == (Settle(Settlement.DEAD_LETTER),)


def test_local_wait_holds_and_requeues() -> None:
    steps = effects(
        decided.Requeue(0.7), Received("q", "", "q"), event_bus().plans[0], Occasion(_NOW)
    )
    assert steps == (Hold(0.7), Settle(Settlement.RELEASE))


def test_malformed_x_death_is_parked_by_publish_on_old_broker() -> None:
    """The dead letter keeps its headers."""
    message = _publish(_RAFFLE, Park("bad"), {"x-death": ["text"]}, version=_V310)
    assert (message.exchange, message.routing_key) == ("raffle_dlx", "raffle_dlq")
    assert message.properties.headers["x-death"] == ["text"]
    assert message.properties.headers["hopback-queue"] == "raffle_queue"


def test_kept_message_and_oversized_headers_have_no_effects() -> None:
    assert effects(decided.Keep(1, "x"), Received("q", "", "q"), _ORDERS, Occasion(_NOW)) == ()
    large = Properties(headers={"u": "u" * FRAME_BYTES})
    assert frame_size(large) > FRAME_BYTES
    delivery = Received("orders", "", "orders", b"", large)
    retry = decided.Retry(
        _ORDERS.tiers[0], _ORDERS.tiers[0].routes[0], Leave.PUBLISH, 1, "asked for all the same"
    )
    assert effects(retry, delivery, _ORDERS, Occasion(_NOW)) == ()


def test_message_of_delay_queues_returns_directly() -> None:
    """It is confirmed before the ack and marked as a retry."""
    delivery = Received(_ORDERS.queue, "shop", "order.created", b"body", Properties(message_id="m"))
    decision = decide(
        delivery, Retry("no", after="2h"), _ORDERS, version=_V40, longest_delay_ms=86_400_000
    )
    publish, settle = effects(decision, delivery, _ORDERS, _OCCASION)
    assert isinstance(publish, Publish)
    assert settle == Settle(Settlement.ACK)
    waiting = read_delayed(publish.message)
    assert waiting is not None
    assert waiting.due_ms == (_NOW + 7200) * 1000
    assert (waiting.message.exchange, waiting.message.routing_key) == ("", _ORDERS.queue)
    assert waiting.message.properties.headers["hopback-attempts"] == 1


def test_raw_message_of_queue_that_parks_by_reject_is_rejected() -> None:
    plan = next(each for each in raffle().plans if each.parking.by is Leave.REJECT)
    delivery = Received(plan.queue, "", plan.queue, b"body", Properties())
    assert park_raw(delivery, plan, "unreadable") == [(Settle(Settlement.DEAD_LETTER),)]
