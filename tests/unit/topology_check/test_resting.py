"""Rules about dead-letter queues, plans and losses."""

from __future__ import annotations

from dataclasses import replace

from hopback import App
from hopback.topology.hazards.rule import Severity
from hopback.topology.model import Exchange, Queue, QueueType
from hopback.topology.plan import Leave, Parking
from tests.unit.topology_check.building import (
    classic,
    edited,
    found,
    live,
    loop,
    retry_loop_plan,
    rules,
    sound,
    with_queue,
)

REJECTING = replace(loop(), plans=(retry_loop_plan(),))


def test_full_dead_letter_queue_finding_depends_on_type() -> None:
    refusing = edited(sound(), "orders.dlq", max_length=5, overflow="reject-publish")
    (quorum_finding,) = found(refusing, "dead-letter-queue-limited")
    assert quorum_finding.severity is Severity.WARNING
    assert "refuses" in quorum_finding.explanation
    full = edited(loop(), "q.dlq", max_length=5, overflow="reject-publish")
    (classic_finding,) = found(full, "dead-letter-queue-limited")
    assert classic_finding.severity is Severity.ERROR
    assert "new dead letters are discarded" in classic_finding.explanation


def test_bounded_stream_is_accepted() -> None:
    stream = Queue("s.dlq", QueueType.STREAM, arguments={"x-max-length-bytes": 10**9})
    assert "dead-letter-queue-limited" not in rules(live(stream))


def test_dead_letter_queue_that_leads_back_is_an_error() -> None:
    back = edited(
        sound(),
        "orders.dlq",
        message_ttl=60_000,
        dead_letter_exchange="",
        dead_letter_routing_key="orders",
    )
    (finding,) = found(back, "dead-letters-move-on")
    assert finding.severity is Severity.ERROR
    assert "leads back to `orders`" in finding.explanation


def test_shared_dead_letter_queue_is_accepted_for_published_parking() -> None:
    """A published dead letter names its queue."""
    plans = [retry_loop_plan(name, parking=Leave.REJECT) for name in ("a", "b")]
    shared = [replace(plan, parking=Parking("dlq", Leave.REJECT, "", "dlq")) for plan in plans]
    queues = [classic(name) for name in ("a", "b", "a.retry", "b.retry", "dlq")]
    rejecting = replace(live(*queues), plans=tuple(shared))
    assert "dead-letter-queue-shared" in rules(rejecting)
    published = tuple(
        replace(plan, parking=Parking("dlq", Leave.PUBLISH, "", "dlq")) for plan in plans
    )
    assert "dead-letter-queue-shared" not in rules(replace(rejecting, plans=published))


def test_topology_without_plans_is_reported_once() -> None:
    (finding,) = found(live(classic("a"), classic("b")), "queue-without-plan")
    assert (finding.place, finding.severity) == ("topology", "info")
    assert found(live(), "queue-without-plan") == []


def test_stream_needs_no_plan() -> None:
    assert found(with_queue(sound(), Queue("s", QueueType.STREAM)), "queue-without-plan") == []


def test_plan_of_undeclared_queue_is_reported_first() -> None:
    lone = replace(sound(), queues=())
    (finding,) = found(lone, "plan-leads-nowhere")
    assert "The queue `orders` is not declared" in finding.explanation


def test_rejected_messages_must_reach_target_of_plan() -> None:
    astray = edited(REJECTING, "q", dead_letter_routing_key="q.dlq")
    (finding,) = found(astray, "plan-leads-nowhere")
    assert "meant to reach a retry queue but do not" in finding.explanation
    plan = replace(retry_loop_plan(parking=Leave.REJECT), leave=Leave.PUBLISH)
    (finding,) = found(replace(loop(), plans=(plan,)), "plan-leads-nowhere")
    assert "meant to reach the dead-letter queue but do not" in finding.explanation


def test_queues_reached_only_by_name_are_info() -> None:
    topology = replace(sound(), exchanges=(Exchange("x"),))
    (finding,) = found(topology, "unreachable-queue")
    assert (finding.place, finding.severity) == ("queue `orders`", "info")
    assert found(live(classic("q")), "unreachable-queue") == []


def test_expiry_of_consumed_queue_is_a_warning() -> None:
    (finding,) = found(live(classic("q", expires=5)), "queue-expires")
    assert finding.severity is Severity.WARNING
    stream = Queue("s", QueueType.STREAM, arguments={"x-expires": 5})
    assert found(live(stream), "queue-expires") == []


def test_temporary_exchange_for_failed_messages_is_reported() -> None:
    queues = (classic("q", dead_letter_exchange="dlx"), classic("dlq"))
    passing = live(
        *queues,
        exchanges=(Exchange("dlx", "fanout", durable=False), Exchange("other", auto_delete=True)),
        dlq="dlx",
    )
    assert [each.place for each in found(passing, "short-lived")] == ["exchange `dlx`"]


def test_classic_dead_letter_queues_are_listed_and_counted() -> None:
    one = with_queue(sound(), classic("orders.dlq"))
    (finding,) = found(one, "classic-queue")
    assert finding.place == "queue `orders.dlq`"
    assert finding.explanation.startswith("1 classic queue is affected")
    many = live(
        *(
            classic(f"q{number:02}", dead_letter_exchange="", dead_letter_routing_key="dlq")
            for number in range(20)
        ),
        classic("dlq"),
    )
    (finding,) = found(many, "classic-queue")
    assert finding.place.endswith("`q10`, `q11` and 8 more")


def test_exchanges_of_delays_do_not_make_queues_unreachable() -> None:
    """An application without other exchanges publishes by queue name."""
    app = App("shop")
    app.queue("orders")
    app.delays(longest="1h")
    assert found(app.topology, "unreachable-queue") == []
    app.queue("mails", bind={"shop.events": "mail.*"})
    (finding,) = found(app.topology, "unreachable-queue")
    assert "orders" in str(finding.place)
