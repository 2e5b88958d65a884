"""Counting attempts: the largest of the counts that were written for this queue, never a sum."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from hopback.designs import event_bus, file_pipeline, freeflow, raffle, recommended
from hopback.fields import Timestamp
from hopback.message import Properties, Received
from hopback.policy import attempt_of, failures_so_far, origin_of, original_routing_key

if TYPE_CHECKING:
    from hopback.fields import FieldValue, Headers
    from hopback.topology.model import Topology
    from hopback.topology.plan import Plan


def _plan(topology: Topology, queue: str) -> Plan:
    plan = topology.plan(queue)
    assert plan is not None
    return plan


_AUDIT = _plan(file_pipeline(), "q.audit")
_USERS = _plan(freeflow(), "freeflow.users.queue")
_RAFFLE = _plan(raffle(), "raffle_queue")


def _death(queue: str, reason: str, count: int = 1, key: str = "k") -> dict[str, FieldValue]:
    return {
        "queue": queue,
        "reason": reason,
        "count": count,
        "exchange": "domain.events",
        "routing-keys": [key],
        "time": Timestamp(1),
    }


def _delivery(queue: str, headers: Headers, key: str = "here") -> Received:
    return Received(queue, "x", key, properties=Properties(headers=headers))


def test_new_message_is_at_first_attempt() -> None:
    assert attempt_of(_delivery("q.audit", {}), _AUDIT) == 1


def test_x_death_counts_only_in_reject_loops() -> None:
    headers: Headers = {
        "x-death": [_death("q.audit.retry", "expired"), _death("q.audit", "rejected", 2)]
    }
    assert failures_so_far(headers, _AUDIT) == 2
    raffled: Headers = {"x-death": [_death("raffle_queue", "rejected", 2)]}
    assert failures_so_far(raffled, _RAFFLE) == 0


def test_larger_of_own_count_and_x_death_holds() -> None:
    """The same failure may be in both."""
    both: Headers = {
        "hopback-queue": "q.audit",
        "hopback-attempts": 1,
        "x-death": [_death("q.audit", "rejected", 2)],
    }
    assert failures_so_far(both, _AUDIT) == 2
    assert failures_so_far({**both, "hopback-attempts": 2}, _AUDIT) == 2


def test_excessive_count_is_limited_by_plan() -> None:
    """A forged count parks at the next failure."""
    huge: Headers = {"hopback-queue": "q.audit", "hopback-attempts": 2**40}
    assert failures_so_far(huge, _AUDIT) == 3
    assert failures_so_far({**huge, "hopback-attempts": -5}, _AUDIT) == 0


def test_count_of_another_queue_is_ignored() -> None:
    assert failures_so_far({"hopback-attempts": 2}, _AUDIT) == 0
    assert failures_so_far({"hopback-attempts": 2, "hopback-queue": "q.x"}, _AUDIT) == 0


def test_counter_header_of_design_is_read() -> None:
    assert failures_so_far({"x-retries": 2, "hopback-queue": "raffle_queue"}, _RAFFLE) == 2
    marked: Headers = {"x-retry-count": 1, "hopback-queue": "freeflow.users.queue"}
    assert failures_so_far(marked, _USERS) == 1


def test_counter_of_other_consumer_is_trusted_after_own_retry_queue() -> None:
    """The last death must be in a retry queue of the plan."""
    back = [_death("raffle_retry_10s", "expired")]
    assert failures_so_far({"x-retries": 2, "x-death": back}, _RAFFLE) == 2
    assert failures_so_far({"x-retries": 2}, _RAFFLE) == 0
    assert failures_so_far({"x-retries": 2, "x-death": [_death("q", "expired")]}, _RAFFLE) == 0


def test_audit_copy_of_retry_is_not_counted() -> None:
    audit = _plan(freeflow(), "freeflow.audit.queue")
    died: list[FieldValue] = [_death("freeflow.user.retry.30s", "expired")]
    copy: Headers = {"x-retry-count": 3, "x-death": died}
    assert failures_so_far(copy, audit) == 0
    assert failures_so_far({**copy, "hopback-queue": "freeflow.users.queue"}, audit) == 0
    assert failures_so_far(copy, _USERS) == 3


def test_origin_is_read_from_own_headers_first() -> None:
    headers: Headers = {
        "hopback-origin-exchange": "freeflow.events",
        "hopback-origin-routing-key": "",
        "x-original-routing-key": "user.created",
    }
    assert origin_of(_delivery("freeflow.users.queue", headers), _USERS) == ("freeflow.events", "")
    keyed: Headers = {"hopback-origin-routing-key": "k"}
    assert origin_of(_delivery("q", keyed)) == ("", "k")


def test_origin_is_read_from_headers_of_design() -> None:
    """Only if the plan names them."""
    headers: Headers = {
        "x-original-routing-key": "user.created",
        "x-original-exchange": "freeflow.events",
    }
    delivery = _delivery("freeflow.users.queue", headers, "user.retry")
    assert origin_of(delivery, _USERS) == ("freeflow.events", "user.created")
    assert origin_of(delivery) == ("x", "user.retry")
    assert original_routing_key(delivery, _USERS) == "user.created"
    no_exchange = _delivery("freeflow.users.queue", {"x-original-routing-key": "user.created"})
    assert origin_of(no_exchange, _USERS) == ("", "user.created")


def test_origin_in_reject_loop_is_read_from_first_death() -> None:
    headers: Headers = {
        "x-death": [
            _death("q.audit.retry", "expired", key="retry"),
            _death("q.audit", "rejected", 2, key="files.uploaded.v1"),
        ]
    }
    assert original_routing_key(_delivery("q.audit", headers, "q.audit")) == "files.uploaded.v1"
    dead = _delivery("q.audit.dlq", headers, "parking")
    assert original_routing_key(dead, _AUDIT) == "files.uploaded.v1"


def test_origin_of_new_message_is_its_exchange_and_key() -> None:
    assert origin_of(_delivery("q", {}, "order.created")) == ("x", "order.created")


@pytest.mark.parametrize("count", [10, 11, 500])
def test_event_with_ten_retries_is_at_last_attempt(count: int) -> None:
    plan = _plan(event_bus(), "wms.queue.wms-orders")
    headers: Headers = {"x-death": [_death(plan.queue, "rejected", count)]}
    assert attempt_of(_delivery(plan.queue, headers), plan) == min(count, 11) + 1


def test_attempts_of_long_plan_are_counted() -> None:
    (plan,) = recommended(attempts=1000).plans
    headers: Headers = {"hopback-queue": "orders", "hopback-attempts": 998}
    assert attempt_of(_delivery("orders", headers), replace(plan, attempts=1000)) == 999
