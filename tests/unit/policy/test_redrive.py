"""Re-driving dead letters: their plan, the permission and the new message."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from hopback.designs import event_bus, file_pipeline, freeflow, raffle, ratatoskr
from hopback.errors import UnsafeOperation
from hopback.fields import Timestamp
from hopback.headers import FRAME_BYTES, Failure, failure_json, read_history
from hopback.message import Properties, Received
from hopback.policy import RedriveOccasion, plan_of, redrive_message, redrive_refusal
from hopback.topology.plan import Redrive

if TYPE_CHECKING:
    from hopback.fields import FieldValue, Headers
    from hopback.topology.plan import Plan

_NOW = 1_700_000_000.0
_JOB = RedriveOccasion(_NOW, "job-1")
_AUDIT = file_pipeline().plans[-1]
_BUS = event_bus().plans[0]
_RAFFLE = raffle().plans[0]


def _death(queue: str, reason: str = "rejected", count: int = 1) -> dict[str, FieldValue]:
    return {
        "queue": queue,
        "reason": reason,
        "count": count,
        "exchange": "domain.events",
        "routing-keys": ["files.uploaded.v1"],
        "time": Timestamp(1),
    }


def _dead(plan: Plan, headers: Headers) -> Received:
    properties = Properties(
        headers=headers, message_id="m", expiration="5", user_id="alice", delivery_mode=1
    )
    return Received(plan.parking.queue, plan.parking.exchange, "dlq", b"body", properties)


def _headers_of_parked(plan: Plan, attempts: int) -> dict[str, FieldValue]:
    return {
        "tenant": "acme",
        "CC": ["other"],
        "hopback-queue": plan.queue,
        "hopback-attempts": attempts,
        "hopback-snoozes": 2,
        "hopback-origin-exchange": "domain.events",
        "hopback-origin-routing-key": "files.uploaded.v1",
        "hopback-failure": failure_json(Failure("E", "m")),
        "x-death": [_death(plan.queue, count=2)],
    }


def test_redriven_file_message_resets_attempts_and_keeps_history() -> None:
    """It goes to `retry.q.X` with the key `retry`."""
    message = redrive_message(_dead(_AUDIT, _headers_of_parked(_AUDIT, 3)), _AUDIT, _JOB)
    assert (message.exchange, message.routing_key, message.body) == (
        "retry.q.audit",
        "retry",
        b"body",
    )
    headers = message.properties.headers
    assert dict(headers) == {
        "tenant": "acme",
        "hopback-queue": "q.audit",
        "hopback-attempts": 0,
        "hopback-redrives": 1,
        "hopback-origin-routing-key": "files.uploaded.v1",
        "hopback-origin-exchange": "domain.events",
        "hopback-redrive-job": "job-1",
        "hopback-origin-user-id": "alice",
        "hopback-deaths": headers["hopback-deaths"],
        "hopback-failure": headers["hopback-failure"],
    }
    properties = message.properties
    assert (properties.expiration, properties.user_id, properties.delivery_mode) == (None, None, 2)
    assert properties.message_id == "m"
    assert read_history(headers, "q.audit").failure == Failure("E", "m")


def test_redrive_stamps_documented_audit_headers() -> None:
    occasion = RedriveOccasion(_NOW, "job-1", "u-7", "Ana", "corr-9", stamped=True)
    headers = redrive_message(
        _dead(_AUDIT, _headers_of_parked(_AUDIT, 3)), _AUDIT, occasion
    ).properties.headers
    stamped = {k: v for k, v in headers.items() if k.startswith("x-")}
    assert stamped == {
        "x-redriven-from-dlq": "q.audit.dlq",
        "x-redriven-at": "2023-11-14T22:13:20.000Z",
        "x-redriven-by-user-id": "u-7",
        "x-redriven-by-user-name": "Ana",
        "x-redrive-operation-correlation-id": "corr-9",
        "x-original-routing-key": "files.uploaded.v1",
    }
    nobody = redrive_message(_dead(_AUDIT, {}), _AUDIT, _JOB._replace(stamped=True))
    assert "x-redriven-by-user-id" not in nobody.properties.headers


def test_redriven_event_continues_its_count() -> None:
    """It goes to the service's queue, and the next failure parks."""
    message = redrive_message(_dead(_BUS, _headers_of_parked(_BUS, 11)), _BUS, _JOB)
    assert (message.exchange, message.routing_key) == ("", "wms.queue.wms-cincout")
    headers = message.properties.headers
    assert headers["x-death"] == [_death(_BUS.queue, count=2)]
    assert (headers["hopback-attempts"], headers["hopback-snoozes"]) == (11, 2)


def test_event_parked_by_other_consumer_continues_by_x_death() -> None:
    dead = _dead(_BUS, {"x-death": [_death(_BUS.queue, count=10)]})
    headers = redrive_message(dead, _BUS, _JOB).properties.headers
    assert headers["hopback-attempts"] == 10


def test_redrive_reset_removes_counters_of_design() -> None:
    dead = _dead(
        _RAFFLE, {**_headers_of_parked(_RAFFLE, 4), "x-retries": 3, "x-retry-reason": "db"}
    )
    headers = redrive_message(dead, _RAFFLE, _JOB).properties.headers
    assert "x-retries" not in headers
    assert headers["x-retry-reason"] == "db"
    plan = ratatoskr().plans[0]
    tired = _dead(plan, {**_headers_of_parked(plan, 4), "x-retry-count": 3})
    assert "x-retry-count" not in redrive_message(tired, plan, _JOB).properties.headers


def test_continued_count_updates_counter_of_design() -> None:
    target = Redrive("", _RAFFLE.queue, reset=False)
    dead = _dead(_RAFFLE, _headers_of_parked(_RAFFLE, 2))
    headers = redrive_message(dead, _RAFFLE, _JOB, target=target).properties.headers
    assert (headers["x-retries"], headers["hopback-attempts"]) == (2, 2)


def test_redrive_accepts_another_target() -> None:
    message = redrive_message(
        _dead(_AUDIT, {}), _AUDIT, _JOB, target=Redrive("domain.events", "files.uploaded.v1")
    )
    assert (message.exchange, message.routing_key) == ("domain.events", "files.uploaded.v1")


def test_loop_guard_counts_redrives() -> None:
    """It can be lifted."""
    dead = _dead(_AUDIT, {"hopback-redrives": 3})
    assert redrive_refusal(dead, _AUDIT) == "re-driven 3 times already, expected fewer than 3"
    assert redrive_refusal(dead, _AUDIT, max_redrives=4) is None
    assert redrive_refusal(dead, _AUDIT, max_redrives=None) is None
    assert redrive_message(dead, _AUDIT, _JOB).properties.headers["hopback-redrives"] == 4


def test_message_without_room_for_counts_is_not_redriven() -> None:
    """Without them it could loop forever."""
    dead = _dead(_AUDIT, {"u": "u" * (FRAME_BYTES - 60)})
    refusal = redrive_refusal(dead, _AUDIT)
    assert refusal == "its headers leave no room for the counts that a re-drive needs"
    with pytest.raises(UnsafeOperation, match="was not re-driven"):
        redrive_message(dead, _AUDIT, _JOB)


def test_separate_dead_letter_queue_selects_plan() -> None:
    plans = file_pipeline().plans
    assert plan_of(_dead(_AUDIT, {"hopback-queue": "q.validator"}), plans) == _AUDIT
    assert plan_of(replace(_dead(_AUDIT, {}), queue="q.audit"), plans) is None


def test_shared_dead_letter_queue_selects_plan_by_message() -> None:
    """The last death decides, then the mark, then an earlier death."""
    plans = freeflow().plans
    users, alarms, *_, audit = plans
    rejected: Headers = {"x-death": [_death(audit.queue)], "hopback-queue": users.queue}
    assert plan_of(_dead(users, rejected), plans) is audit
    marked: Headers = {"hopback-queue": users.queue}
    assert plan_of(_dead(users, marked), plans) is users
    waited = _death("freeflow.alarm.retry.30s", "expired")
    earlier: Headers = {"x-death": [waited, _death(alarms.queue)]}
    assert plan_of(_dead(users, earlier), plans) is alarms
    assert plan_of(_dead(users, {}), plans) is None


def test_message_without_routing_key_gets_no_stamp_for_it() -> None:
    dead = replace(_dead(_AUDIT, {}), exchange="", routing_key="")
    sent = redrive_message(dead, _AUDIT, _JOB._replace(stamped=True))
    assert "x-original-routing-key" not in sent.properties.headers
