"""Rules about dead letters, loops and retries."""

from __future__ import annotations

from dataclasses import replace

from hopback.topology.hazards.analysis import samples
from hopback.topology.hazards.rule import Severity
from hopback.topology.model import Binding, Exchange, Policy, Topology
from hopback.topology.plan import Leave, Parking, Route, Tier
from tests.unit.topology_check.building import (
    classic,
    edited,
    found,
    live,
    loop,
    quorum,
    retry_loop_plan,
    rules,
    sound,
)

QUORUM_LOOP = loop(quorum("q", dead_letter_exchange="", dead_letter_routing_key="q.retry"))


def test_default_exchange_without_queue_of_that_name_is_reported() -> None:
    broken = live(classic("q", dead_letter_exchange="", dead_letter_routing_key="dead"))
    (finding,) = found(broken, "dead-letter-unroutable")
    assert "there is no queue named `dead`" in finding.explanation


def test_kept_key_is_each_key_that_reaches_queue() -> None:
    topology = Topology(
        "t",
        (Exchange("all", "fanout"), Exchange("events", "topic"), Exchange("dlx", "direct")),
        (classic("q", dead_letter_exchange="dlx"), classic("dlq")),
        (
            Binding("all", "events", to_exchange=True),
            Binding("events", "q", "a.b"),
            Binding("dlx", "dlq", "a.b"),
        ),
    )
    assert found(topology, "dead-letter-partly-unroutable") == []
    fed_by_fanout = replace(topology, bindings=(*topology.bindings, Binding("all", "q")))
    (finding,) = found(fed_by_fanout, "dead-letter-partly-unroutable")
    assert "`<any key>`" in finding.explanation


def test_key_is_kept_through_several_queues() -> None:
    topology = Topology(
        "t",
        (Exchange("events"), Exchange("first", "fanout"), Exchange("second")),
        (
            classic("a", dead_letter_exchange="first"),
            classic("b", dead_letter_exchange="second"),
            classic("c"),
        ),
        (
            Binding("events", "a", "k"),
            Binding("first", "b"),
            Binding("first", "a"),
            Binding("second", "c", "other"),
        ),
    )
    (finding,) = found(topology, "dead-letter-unroutable")
    assert finding.place == "queue `b`"
    assert "matches the key `<any key>` and `k`" in finding.explanation


def test_queue_without_bindings_is_fed_by_name() -> None:
    topology = replace(
        live(
            classic("q", dead_letter_exchange="dlx"), classic("dlq"), exchanges=(Exchange("dlx"),)
        ),
        bindings=(Binding("dlx", "dlq", "q"),),
    )
    assert found(topology, "dead-letter-unroutable") == []


def test_pattern_is_sampled_by_matching_keys() -> None:
    assert samples("a.*") == ("a.*",)
    assert samples("a.#") == ("a", "a.#", "a.#.#")
    assert samples("") == ("",)
    assert samples("#.#.#.#") == ("#.#.#.#",)


def test_headers_exchange_is_not_reported_as_unroutable() -> None:
    topology = Topology(
        "t",
        (Exchange("dlx", "headers"),),
        (classic("q", dead_letter_exchange="dlx"), classic("dlq")),
        (Binding("dlx", "dlq", arguments={"x-match": "all", "kind": "bad"}),),
    )
    assert not rules(topology) & {"dead-letter-unroutable", "dead-letter-partly-unroutable"}


def test_plan_with_missing_exchange_adds_no_keys() -> None:
    plan = replace(sound().plans[0], parking=Parking("orders.dlq", Leave.PUBLISH, "gone", "k"))
    assert "plan-leads-nowhere" in rules(replace(sound(), plans=(plan,)))


def test_at_least_once_without_dead_letter_exchange_is_reported() -> None:
    (finding,) = found(
        live(quorum("q", dead_letter_strategy="at-least-once")), "at-least-once-falls-back"
    )
    assert "lacks a dead-letter exchange and `x-overflow: reject-publish`" in finding.explanation
    refused = live(classic("q", dead_letter_strategy="at-least-once"))
    assert "at-least-once-falls-back" not in rules(refused)
    assert "argument-refused" in rules(refused)


def test_queues_with_different_moves_are_reported_separately() -> None:
    queues = (
        classic("p", dead_letter_exchange="", dead_letter_routing_key="p.dlq"),
        classic("p.dlq"),
    )
    assert [each.place for each in found(loop(None, *queues), "at-most-once")] == [
        "queue `p`",
        "queue `q`",
    ]


def test_queue_that_expires_into_itself_is_a_cycle() -> None:
    broken = live(classic("q", message_ttl=5, dead_letter_exchange="", dead_letter_routing_key="q"))
    (finding,) = found(broken, "cycle-without-rejection")
    assert finding.place == "queue `q`"


def test_reject_publish_dlx_feeds_loop() -> None:
    full = loop(max_length=10, overflow="reject-publish-dlx")
    assert "max-length-feeds-retry" in rules(full)
    assert "max-length-feeds-retry" not in rules(loop(overflow="reject-publish-dlx"))


def test_laps_are_counted_only_for_rejecting_plans() -> None:
    plan = retry_loop_plan(attempts=50)
    assert "laps-reach-delivery-limit" in rules(replace(QUORUM_LOOP, plans=(plan,)), "4.3")
    published = replace(plan, leave=Leave.PUBLISH)
    assert "laps-reach-delivery-limit" not in rules(replace(QUORUM_LOOP, plans=(published,)), "4.3")
    assert "laps-reach-delivery-limit" not in rules(QUORUM_LOOP, "4.3")
    assert "laps-reach-delivery-limit" not in rules(replace(loop(), plans=(plan,)), "4.3")


def test_policy_can_lift_limit_that_feeds_loop() -> None:
    lifted = replace(QUORUM_LOOP, policies=(Policy("p", "^q$", {"delivery-limit": -1}),))
    assert "delivery-limit-feeds-retry" not in rules(lifted, "4.0")
    assert "first-return-deletes" not in rules(lifted, "3.10")
    assert "policy-refused" in rules(lifted, "3.10")


def test_policy_can_close_loop() -> None:
    open_ended = live(
        classic("q", dead_letter_exchange="", dead_letter_routing_key="q.retry"),
        classic("q.retry", dead_letter_exchange="", dead_letter_routing_key="q"),
    )
    policy = Policy("ttl", "retry$", {"message-ttl": 1000})
    assert "expiration-feeds-retry" not in rules(open_ended)
    assert "expiration-feeds-retry" in rules(replace(open_ended, policies=(policy,)))


def test_queue_named_retry_without_ttl_is_a_warning() -> None:
    topology = live(
        classic("q"),
        classic("q.retry", dead_letter_exchange="", dead_letter_routing_key="q"),
        classic("p.retry", dead_letter_exchange="", dead_letter_routing_key="p.dlq"),
        classic("p.dlq"),
    )
    (finding,) = found(topology, "retry-without-ttl")
    assert (finding.place, finding.severity) == ("queue `q.retry`", "warning")


def test_retry_queue_without_dead_letter_exchange_is_reported() -> None:
    broken = edited(
        sound(), "orders.retry.1s", dead_letter_exchange=None, dead_letter_routing_key=None
    )
    (finding,) = found(broken, "retry-without-return")
    assert "are deleted" in finding.explanation


def test_retry_queue_of_two_routes_is_reported_once() -> None:
    way = Route("", "orders.retry.1s", "orders.retry.1s")
    tiers = (Tier("1s", 1000, (way, way)), Tier("gone", 5, (Route("", "gone", "gone"),)))
    plan = replace(sound().plans[0], tiers=tiers)
    broken = edited(
        replace(sound(), plans=(plan,)), "orders.retry.1s", dead_letter_routing_key="orders.dlq"
    )
    assert len(found(broken, "retry-without-return")) == 1
    (missing,) = found(broken, "plan-leads-nowhere")
    assert "does not reach queue `gone`" in missing.explanation


def test_delays_out_of_bounds_are_shown_as_numbers() -> None:
    plan = replace(
        sound().plans[0],
        tiers=(Tier("?", -5, (Route("", "orders.retry.1s", "orders.retry.1s"),)),),
    )
    (finding,) = found(replace(sound(), plans=(plan,)), "retry-delay-differs")
    assert "a wait of -5 ms" in finding.explanation


def test_failed_message_in_several_retry_queues_is_reported() -> None:
    queues = [
        queue
        for name in ("a", "b")
        for queue in (
            classic(name, dead_letter_exchange="retries"),
            classic(
                f"{name}.retry",
                message_ttl=1000,
                dead_letter_exchange="",
                dead_letter_routing_key=name,
            ),
            classic(f"{name}.dlq"),
        )
    ]
    tiers = {
        name: (Tier("1s", 1000, (Route("retries", "", f"{name}.retry"),)),) for name in ("a", "b")
    }
    topology = Topology(
        "t",
        (Exchange("retries", "fanout"),),
        tuple(queues),
        (Binding("retries", "a.retry"), Binding("retries", "b.retry")),
        tuple(replace(retry_loop_plan(name), tiers=tiers[name]) for name in ("a", "b")),
    )
    said = [each.explanation for each in found(topology, "retry-reaches-others")]
    assert any("messages of `a` that leave for retry also reach `b.retry`" in text for text in said)
    assert any("messages of `b` that leave for retry also reach `a.retry`" in text for text in said)


def test_spreading_loop_without_plans_is_a_warning() -> None:
    """A delay queue that feeds several queues is info."""
    exchanges = (Exchange("events", "fanout"),)
    back = classic("w", message_ttl=5, dead_letter_exchange="events")
    looping = classic("q", dead_letter_exchange="", dead_letter_routing_key="w")
    spread = live(looping, back, classic("other"), exchanges=exchanges, q="events", other="events")
    (warning,) = found(spread, "retry-reaches-others")
    assert warning.severity is Severity.WARNING
    delay = live(
        classic("q"), back, classic("other"), exchanges=exchanges, q="events", other="events"
    )
    (info,) = found(delay, "retry-reaches-others")
    assert info.severity is Severity.INFO


def test_full_classic_retry_queue_is_reported() -> None:
    full = edited(loop(), "q.retry", max_length=5, overflow="reject-publish")
    (finding,) = found(full, "retry-queue-limited")
    assert finding.severity is Severity.ERROR
    assert "discards the dead letters" in finding.explanation
