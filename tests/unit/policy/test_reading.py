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


def test_a_fresh_message_is_at_its_first_attempt() -> None:
    """Nothing failed yet, in any design."""
    assert attempt_of(_delivery("q.audit", {}), _AUDIT) == 1


def test_the_broker_counts_where_only_the_broker_moves() -> None:
    """In a reject loop its record is the count; in others it is not."""
    headers: Headers = {
        "x-death": [_death("q.audit.retry", "expired"), _death("q.audit", "rejected", 2)]
    }
    assert failures_so_far(headers, _AUDIT) == 2
    raffled: Headers = {"x-death": [_death("raffle_queue", "rejected", 2)]}
    assert failures_so_far(raffled, _RAFFLE) == 0


def test_our_count_and_the_brokers_are_not_added() -> None:
    """The same failure may stand in both; the larger one holds."""
    both: Headers = {
        "hopback-queue": "q.audit",
        "hopback-attempts": 1,
        "x-death": [_death("q.audit", "rejected", 2)],
    }
    assert failures_so_far(both, _AUDIT) == 2
    assert failures_so_far({**both, "hopback-attempts": 2}, _AUDIT) == 2


def test_a_count_beyond_what_the_plan_can_cause_is_cut() -> None:
    """A hostile count parks at the next failure; it neither overflows nor goes negative."""
    huge: Headers = {"hopback-queue": "q.audit", "hopback-attempts": 2**40}
    assert failures_so_far(huge, _AUDIT) == 3
    assert failures_so_far({**huge, "hopback-attempts": -5}, _AUDIT) == 0


def test_a_count_without_its_queue_or_for_another_is_not_ours() -> None:
    """`hopback-queue` stands beside every count."""
    assert failures_so_far({"hopback-attempts": 2}, _AUDIT) == 0
    assert failures_so_far({"hopback-attempts": 2, "hopback-queue": "q.x"}, _AUDIT) == 0


def test_the_designs_own_counter_counts_beside_our_mark() -> None:
    """FreeFlow's and the raffle's, read from the header their document names."""
    assert failures_so_far({"x-retries": 2, "hopback-queue": "raffle_queue"}, _RAFFLE) == 2
    marked: Headers = {"x-retry-count": 1, "hopback-queue": "freeflow.users.queue"}
    assert failures_so_far(marked, _USERS) == 1


def test_a_consumer_of_another_make_is_believed_when_our_retry_queue_sent_it_back() -> None:
    """Without our mark, the last death must be one of the plan's own retry queues."""
    back = [_death("raffle_retry_10s", "expired")]
    assert failures_so_far({"x-retries": 2, "x-death": back}, _RAFFLE) == 2
    assert failures_so_far({"x-retries": 2}, _RAFFLE) == 0
    assert failures_so_far({"x-retries": 2, "x-death": [_death("q", "expired")]}, _RAFFLE) == 0


def test_a_copy_of_another_queues_retry_is_not_counted_by_audit() -> None:
    """FreeFlow's audit queue sees `x-retry-count` 1, 2, 3 of others, marked or not."""
    audit = _plan(freeflow(), "freeflow.audit.queue")
    died: list[FieldValue] = [_death("freeflow.user.retry.30s", "expired")]
    copy: Headers = {"x-retry-count": 3, "x-death": died}
    assert failures_so_far(copy, audit) == 0
    assert failures_so_far({**copy, "hopback-queue": "freeflow.users.queue"}, audit) == 0
    assert failures_so_far(copy, _USERS) == 3


def test_the_origin_is_what_our_headers_say() -> None:
    """Once written it outranks everything else, also an empty routing key."""
    headers: Headers = {
        "hopback-origin-exchange": "freeflow.events",
        "hopback-origin-routing-key": "",
        "x-original-routing-key": "user.created",
    }
    assert origin_of(_delivery("freeflow.users.queue", headers), _USERS) == ("freeflow.events", "")
    keyed: Headers = {"hopback-origin-routing-key": "k"}
    assert origin_of(_delivery("q", keyed)) == ("", "k")


def test_the_origin_may_stand_in_the_designs_own_headers() -> None:
    """A consumer of another make wrote them; only a plan that names them is believed."""
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


def test_the_broker_remembers_the_origin_in_a_reject_loop() -> None:
    """The first death in the queue tells by what key it came; also from the dead-letter queue."""
    headers: Headers = {
        "x-death": [
            _death("q.audit.retry", "expired", key="retry"),
            _death("q.audit", "rejected", 2, key="files.uploaded.v1"),
        ]
    }
    assert original_routing_key(_delivery("q.audit", headers, "q.audit")) == "files.uploaded.v1"
    dead = _delivery("q.audit.dlq", headers, "parking")
    assert original_routing_key(dead, _AUDIT) == "files.uploaded.v1"


def test_a_message_that_never_failed_is_where_it_came_from() -> None:
    """Nothing recorded: exchange and key of the delivery."""
    assert origin_of(_delivery("q", {}, "order.created")) == ("x", "order.created")


@pytest.mark.parametrize("count", [10, 11, 500])
def test_an_event_with_ten_retries_behind_it_is_at_its_last_attempt_or_beyond(count: int) -> None:
    """The event bus's limit, as the broker counts it."""
    plan = _plan(event_bus(), "wms.queue.wms-orders")
    headers: Headers = {"x-death": [_death(plan.queue, "rejected", count)]}
    assert attempt_of(_delivery(plan.queue, headers), plan) == min(count, 11) + 1


def test_attempts_can_be_as_many_as_a_plan_says() -> None:
    """A long plan counts far."""
    (plan,) = recommended(attempts=1000).plans
    headers: Headers = {"hopback-queue": "orders", "hopback-attempts": 998}
    assert attempt_of(_delivery("orders", headers), replace(plan, attempts=1000)) == 999
