"""What rules tell apart: versions, kinds of queue, and topologies without plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopback.patterns import DESIGNS
from hopback.topology.check import Severity, check
from hopback.topology.hazards.arrivals import samples
from hopback.topology.hazards.rule import Verdict, spelled
from hopback.topology.model import Binding, Exchange, Policy, Queue, QueueType, Topology
from hopback.topology.plan import Leave, Parking, Route, Tier
from hopback.version import BrokerVersion
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
    with_queue,
)

DEFAULT_LIMIT = edited(sound(), "orders.dlq", delivery_limit=None)
QUORUM_LOOP = loop(quorum("q", dead_letter_exchange="", dead_letter_routing_key="q.retry"))
REJECTING = replace(loop(), plans=(retry_loop_plan(),))


# Versions


@pytest.mark.parametrize(
    ("topology", "rule", "severities"),
    [
        (DEFAULT_LIMIT, "looking-deletes", (None, None, "error", "error", "warning", "error")),
        (
            edited(sound(), "orders.dlq", delivery_limit=5),
            "looking-deletes",
            ("error", "error", "error", "error", "warning", "error"),
        ),
        (
            QUORUM_LOOP,
            "delivery-limit-feeds-retry",
            (None, None, "error", "error", "error", "error"),
        ),
        (
            loop(
                quorum(
                    "q",
                    dead_letter_exchange="",
                    dead_letter_routing_key="q.retry",
                    delivery_limit=9,
                )
            ),
            "delivery-limit-feeds-retry",
            ("error",) * 6,
        ),
        (live(quorum("q")), "delivery-limit-deletes", (None, None, *["warning"] * 4)),
        (live(quorum("q", delivery_limit=9)), "delivery-limit-deletes", ("warning",) * 6),
        (
            live(quorum("q", delivery_limit=-1)),
            "first-return-deletes",
            ("error", "error", None, None, None, "error"),
        ),
        (live(quorum("q", delivery_limit=0)), "first-return-deletes", ("error",) * 6),
        (
            live(quorum("q", delayed_retry_min=5)),
            "argument-ignored",
            (*["warning"] * 4, None, "warning"),
        ),
        (
            live(classic("q", queue_version=1)),
            "argument-refused",
            (None, None, None, None, "error", "error"),
        ),
        (
            live(classic("q", consumer_timeout=1)),
            "argument-refused",
            (None, None, None, None, "error", "error"),
        ),
        (
            live(classic("q", queue_leader_locator="balanced")),
            "argument-refused",
            ("error", None, None, None, None, "error"),
        ),
        (
            live(Queue("q", durable=False)),
            "argument-refused",
            (None, None, None, None, "warning", "warning"),
        ),
    ],
)
def test_severity_by_version(
    topology: Topology, rule: str, severities: tuple[str | None, ...]
) -> None:
    """On 3.10, 3.13, 4.0, 4.2 and 4.3; and the gravest of them where no version is meant."""
    versions = ("3.10", "3.13.7", "4.0", "4.2", "4.3", None)
    seen = [[str(each.severity) for each in found(topology, rule, version)] for version in versions]
    assert seen == [[severity] if severity else [] for severity in severities]


def test_without_a_version_a_finding_says_for_which_it_holds() -> None:
    """And does not where one is meant, or where it holds for all."""
    (for_all,) = found(DEFAULT_LIMIT, "looking-deletes")
    assert for_all.explanation.endswith(
        "(RabbitMQ: error from 4.0 and before 4.3, warning from 4.3.)"
    )
    (for_one,) = found(DEFAULT_LIMIT, "looking-deletes", "4.0")
    assert "RabbitMQ" not in for_one.explanation
    (everywhere,) = found(loop(message_ttl=5), "cycle-without-rejection")
    assert "RabbitMQ" not in everywhere.explanation


def test_verdicts_are_spelled_out() -> None:
    """Open at either end, at both, or at none."""
    ends = (("", ""), ("4.0", ""), ("", "3.13"), ("3.13", "3.13.3"))
    verdicts = [Verdict.of(Severity.INFO, *each) for each in ends]
    assert spelled(verdicts) == (
        "info, info from 4.0, info before 3.13, info from 3.13 and before 3.13.3"
    )
    assert [each.everywhere for each in verdicts] == [True, False, False, False]
    assert [each.holds(BrokerVersion(3, 13, 2)) for each in verdicts] == [True, False, False, True]


# Dead letters on their way


def test_the_default_exchange_takes_no_key_without_a_queue_of_that_name() -> None:
    """Said in terms of queues, since it has no bindings."""
    broken = live(classic("q", dead_letter_exchange="", dead_letter_routing_key="dead"))
    (finding,) = found(broken, "dead-letter-unroutable")
    assert "there is no queue named `dead`" in finding.explanation


def test_a_kept_key_is_each_key_that_can_reach_the_queue() -> None:
    """Through exchanges behind exchanges, fanouts, and other queues' dead letters."""
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


def test_a_key_is_kept_through_several_queues() -> None:
    """`a` passes its dead letters to `b` with the key they came with, and `b` loses them."""
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
    assert "takes the key `<any key>` and `k`" in finding.explanation


def test_a_queue_that_nothing_feeds_is_fed_by_name() -> None:
    """Then the key that is kept is the queue's own name."""
    topology = replace(
        live(
            classic("q", dead_letter_exchange="dlx"), classic("dlq"), exchanges=(Exchange("dlx"),)
        ),
        bindings=(Binding("dlx", "dlq", "q"),),
    )
    assert found(topology, "dead-letter-unroutable") == []


def test_a_pattern_stands_for_all_keys_it_matches() -> None:
    """Each `#` as no word, one and two; too many of them as they are."""
    assert samples("a.*") == ("a.*",)
    assert samples("a.#") == ("a", "a.#", "a.#.#")
    assert samples("") == ("",)
    assert samples("#.#.#.#") == ("#.#.#.#",)


def test_a_headers_exchange_may_route_anything() -> None:
    """What it decides by is not in the topology, so no loss is claimed."""
    topology = Topology(
        "t",
        (Exchange("dlx", "headers"),),
        (classic("q", dead_letter_exchange="dlx"), classic("dlq")),
        (Binding("dlx", "dlq", arguments={"x-match": "all", "kind": "bad"}),),
    )
    assert not rules(topology) & {"dead-letter-unroutable", "dead-letter-partly-unroutable"}


def test_a_plan_that_publishes_to_a_missing_exchange_is_no_source_of_keys() -> None:
    """It is reported for itself."""
    plan = replace(sound().plans[0], parking=Parking("orders.dlq", Leave.PUBLISH, "gone", "k"))
    assert "plan-leads-nowhere" in rules(replace(sound(), plans=(plan,)))


def test_at_least_once_needs_a_dead_letter_exchange_too() -> None:
    """Both conditions are named; a classic queue has no strategy at all."""
    (finding,) = found(
        live(quorum("q", dead_letter_strategy="at-least-once")), "at-least-once-falls-back"
    )
    assert "lacks a dead-letter exchange and `x-overflow: reject-publish`" in finding.explanation
    refused = live(classic("q", dead_letter_strategy="at-least-once"))
    assert "at-least-once-falls-back" not in rules(refused)
    assert "argument-refused" in rules(refused)


def test_queues_moved_in_different_ways_are_reported_apart() -> None:
    """One finding for each set of ways."""
    queues = (
        classic("p", dead_letter_exchange="", dead_letter_routing_key="p.dlq"),
        classic("p.dlq"),
    )
    assert [each.place for each in found(loop(None, *queues), "at-most-once")] == [
        "queue `p`",
        "queue `q`",
    ]


# Loops


def test_a_queue_that_expires_into_itself_is_a_ring_of_one() -> None:
    """The smallest cycle without a rejection."""
    broken = live(classic("q", message_ttl=5, dead_letter_exchange="", dead_letter_routing_key="q"))
    (finding,) = found(broken, "cycle-without-rejection")
    assert finding.place == "queue `q`"


def test_a_refused_publish_that_is_dead_lettered_feeds_the_loop_as_well() -> None:
    """`reject-publish-dlx` of a classic queue."""
    full = loop(max_length=10, overflow="reject-publish-dlx")
    assert "max-length-feeds-retry" in rules(full)
    assert "max-length-feeds-retry" not in rules(loop(overflow="reject-publish-dlx"))


def test_laps_are_counted_only_where_the_plan_rejects() -> None:
    """Without a plan nobody knows how many there are; a published retry starts at nothing."""
    plan = retry_loop_plan(attempts=50)
    assert "laps-reach-delivery-limit" in rules(replace(QUORUM_LOOP, plans=(plan,)), "4.3")
    published = replace(plan, leave=Leave.PUBLISH)
    assert "laps-reach-delivery-limit" not in rules(replace(QUORUM_LOOP, plans=(published,)), "4.3")
    assert "laps-reach-delivery-limit" not in rules(QUORUM_LOOP, "4.3")
    assert "laps-reach-delivery-limit" not in rules(replace(loop(), plans=(plan,)), "4.3")


def test_a_policy_can_lift_the_limit_that_feeds_the_loop() -> None:
    """As it can for a dead-letter queue that is looked at."""
    lifted = replace(QUORUM_LOOP, policies=(Policy("p", "^q$", {"delivery-limit": -1}),))
    assert "delivery-limit-feeds-retry" not in rules(lifted, "4.0")
    assert "first-return-deletes" not in rules(lifted, "3.10")
    assert "policy-refused" in rules(lifted, "3.10")


def test_a_policy_can_close_a_loop() -> None:
    """Arguments by policy count like those of the queue."""
    open_ended = live(
        classic("q", dead_letter_exchange="", dead_letter_routing_key="q.retry"),
        classic("q.retry", dead_letter_exchange="", dead_letter_routing_key="q"),
    )
    policy = Policy("ttl", "retry$", {"message-ttl": 1000})
    assert "expiration-feeds-retry" not in rules(open_ended)
    assert "expiration-feeds-retry" in rules(replace(open_ended, policies=(policy,)))


# Retry queues


def test_a_queue_called_retry_without_a_ttl_is_worth_a_warning() -> None:
    """Without plans only its name says so; where it leads to a dead-letter queue it does not."""
    topology = live(
        classic("q"),
        classic("q.retry", dead_letter_exchange="", dead_letter_routing_key="q"),
        classic("p.retry", dead_letter_exchange="", dead_letter_routing_key="p.dlq"),
        classic("p.dlq"),
    )
    (finding,) = found(topology, "retry-without-ttl")
    assert (finding.place, finding.severity) == ("queue `q.retry`", "warning")


def test_a_retry_queue_without_a_dead_letter_exchange_deletes() -> None:
    """What waits there ends there."""
    broken = edited(
        sound(), "orders.retry.1s", dead_letter_exchange=None, dead_letter_routing_key=None
    )
    (finding,) = found(broken, "retry-without-return")
    assert "are deleted" in finding.explanation


def test_a_retry_queue_used_by_two_routes_is_reported_once() -> None:
    """And one that is not declared is a matter of the plan."""
    way = Route("", "orders.retry.1s", "orders.retry.1s")
    tiers = (Tier("1s", 1000, (way, way)), Tier("gone", 5, (Route("", "gone", "gone"),)))
    plan = replace(sound().plans[0], tiers=tiers)
    broken = edited(
        replace(sound(), plans=(plan,)), "orders.retry.1s", dead_letter_routing_key="orders.dlq"
    )
    assert len(found(broken, "retry-without-return")) == 1
    (missing,) = found(broken, "plan-leads-nowhere")
    assert "does not reach queue `gone`" in missing.explanation


def test_delays_beyond_all_bounds_are_shown_as_numbers() -> None:
    """Nothing has checked a plan before."""
    plan = replace(
        sound().plans[0],
        tiers=(Tier("?", -5, (Route("", "orders.retry.1s", "orders.retry.1s"),)),),
    )
    (finding,) = found(replace(sound(), plans=(plan,)), "retry-delay-differs")
    assert "a wait of -5 ms" in finding.explanation


def test_a_failed_message_may_reach_too_many_retry_queues() -> None:
    """A fanout into the retry queues makes a copy in each, by rejection and by publish."""
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


def test_without_plans_a_loop_that_spreads_is_a_warning_and_a_delay_only_worth_knowing() -> None:
    """A delay queue that feeds several queues may be meant so."""
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


def test_a_full_classic_retry_queue_discards_what_the_broker_moves() -> None:
    """`reject-publish` tells publishers only; a quorum queue takes dead letters all the same."""
    full = edited(loop(), "q.retry", max_length=5, overflow="reject-publish")
    (finding,) = found(full, "retry-queue-limited")
    assert finding.severity is Severity.ERROR
    assert "discards the dead letters" in finding.explanation


# Dead-letter queues


def test_a_full_dead_letter_queue_loses_or_refuses_according_to_its_type() -> None:
    """A classic one discards dead letters; a quorum one refuses what is published."""
    refusing = edited(sound(), "orders.dlq", max_length=5, overflow="reject-publish")
    (quorum_finding,) = found(refusing, "dead-letter-queue-limited")
    assert quorum_finding.severity is Severity.WARNING
    assert "refused" in quorum_finding.explanation
    full = edited(loop(), "q.dlq", max_length=5, overflow="reject-publish")
    (classic_finding,) = found(full, "dead-letter-queue-limited")
    assert classic_finding.severity is Severity.ERROR
    assert "new dead letters are discarded" in classic_finding.explanation


def test_a_stream_may_be_bounded() -> None:
    """As a dead-letter queue it is read, not emptied, and its bound is its own affair."""
    stream = Queue("s.dlq", QueueType.STREAM, arguments={"x-max-length-bytes": 10**9})
    assert "dead-letter-queue-limited" not in rules(live(stream))


def test_a_dead_letter_queue_that_leads_back_is_an_error() -> None:
    """The broker-side re-drive loses whatever did not die by a rejection."""
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


def test_a_shared_dead_letter_queue_is_fine_where_messages_say_whence_they_come() -> None:
    """What we publish there carries the name of the queue that failed; a rejection cannot."""
    plans = [retry_loop_plan(name, parking=Leave.REJECT) for name in ("a", "b")]
    shared = [replace(plan, parking=Parking("dlq", Leave.REJECT, "", "dlq")) for plan in plans]
    queues = [classic(name) for name in ("a", "b", "a.retry", "b.retry", "dlq")]
    rejecting = replace(live(*queues), plans=tuple(shared))
    assert "dead-letter-queue-shared" in rules(rejecting)
    published = tuple(
        replace(plan, parking=Parking("dlq", Leave.PUBLISH, "", "dlq")) for plan in plans
    )
    assert "dead-letter-queue-shared" not in rules(replace(rejecting, plans=published))


# Plans


def test_a_topology_without_plans_is_told_so_once() -> None:
    """As read from a live broker; with nothing to consume there is nothing to say."""
    (finding,) = found(live(classic("a"), classic("b")), "queue-without-plan")
    assert (finding.place, finding.severity) == ("topology", "info")
    assert found(live(), "queue-without-plan") == []


def test_a_stream_needs_no_plan() -> None:
    """Nothing leaves it by being handled."""
    assert found(with_queue(sound(), Queue("s", QueueType.STREAM)), "queue-without-plan") == []


def test_a_plan_of_an_undeclared_queue_is_said_before_all_else() -> None:
    """Its ways mean nothing then."""
    lone = replace(sound(), queues=())
    (finding,) = found(lone, "plan-leads-nowhere")
    assert "The queue `orders` is not declared" in finding.explanation


def test_rejected_messages_must_go_where_the_plan_says() -> None:
    """To a retry queue, or to the dead-letter queue, as it says."""
    astray = edited(REJECTING, "q", dead_letter_routing_key="q.dlq")
    (finding,) = found(astray, "plan-leads-nowhere")
    assert "meant to reach a retry queue and do not" in finding.explanation
    plan = replace(retry_loop_plan(parking=Leave.REJECT), leave=Leave.PUBLISH)
    (finding,) = found(replace(loop(), plans=(plan,)), "plan-leads-nowhere")
    assert "meant to reach the dead-letter queue and do not" in finding.explanation


def test_queues_reached_by_name_only_are_worth_knowing() -> None:
    """Where others have exchanges; without any exchange everything is reached so."""
    topology = replace(sound(), exchanges=(Exchange("x"),))
    (finding,) = found(topology, "unreachable-queue")
    assert (finding.place, finding.severity) == ("queue `orders`", "info")
    assert found(live(classic("q")), "unreachable-queue") == []


# Losses


def test_a_lease_on_a_consumed_queue_is_a_warning() -> None:
    """It has consumers most of the time; a stream has no lease."""
    (finding,) = found(live(classic("q", expires=5)), "queue-expires")
    assert finding.severity is Severity.WARNING
    stream = Queue("s", QueueType.STREAM, arguments={"x-expires": 5})
    assert found(live(stream), "queue-expires") == []


def test_an_exchange_that_does_not_last_drops_what_goes_through_it() -> None:
    """Only where failed messages go through it."""
    queues = (classic("q", dead_letter_exchange="dlx"), classic("dlq"))
    passing = live(
        *queues,
        exchanges=(Exchange("dlx", "fanout", durable=False), Exchange("other", auto_delete=True)),
        dlq="dlx",
    )
    assert [each.place for each in found(passing, "short-lived")] == ["exchange `dlx`"]


def test_classic_dead_letter_queues_are_named_where_only_they_are_classic() -> None:
    """A long list is cut short and counted."""
    one = with_queue(sound(), classic("orders.dlq"))
    (finding,) = found(one, "classic-queue")
    assert finding.place == "queue `orders.dlq`"
    assert finding.explanation.startswith("1 classic queue,")
    many = live(
        *(
            classic(f"q{number:02}", dead_letter_exchange="", dead_letter_routing_key="dlq")
            for number in range(20)
        ),
        classic("dlq"),
    )
    (finding,) = found(many, "classic-queue")
    assert finding.place.endswith("`q10`, `q11` and 8 more")


# Names


def test_names_used_twice_are_told_apart_by_kind() -> None:
    """Exchanges and plans too; a queue may be called like an exchange."""
    topology = replace(sound(), exchanges=(Exchange("x"), Exchange("x")), plans=sound().plans * 2)
    assert [each.place for each in found(topology, "name-clash")] == [
        "exchange `x`",
        "plan of queue `orders`",
    ]
    same = live(classic("x"), exchanges=(Exchange("x"),))
    assert found(same, "name-clash") == []


def test_a_retry_queue_must_be_nothing_else() -> None:
    """Neither consumed nor a dead-letter queue."""
    plan = sound().plans[0]
    resting = replace(
        plan, parking=Parking("orders.retry.1s", Leave.PUBLISH, "", "orders.retry.1s")
    )
    (finding,) = found(replace(sound(), plans=(resting,)), "name-clash")
    assert "also a dead-letter queue" in finding.explanation
    itself = replace(plan, tiers=(Tier("1s", 1000, (Route("", "orders", "orders"),)),))
    (finding,) = found(replace(sound(), plans=(itself,)), "name-clash")
    assert "also a consumed queue" in finding.explanation


@pytest.mark.parametrize(
    ("topology", "places"),
    [
        (live(classic("")), ["queue ``"]),
        (live(classic("ü" * 128)), [f"queue `{'ü' * 128}`"]),
        (live(classic("x" * 255), classic("amq.gen-JzTY20BRgKO")), []),
        (
            live(exchanges=(Exchange("amq.topic", "topic"), Exchange("amq.own"))),
            ["exchange `amq.own`"],
        ),
    ],
)
def test_names_that_a_broker_refuses(topology: Topology, places: list[str]) -> None:
    """Empty, too long in bytes, or reserved; what the broker itself has made is fine."""
    assert [each.place for each in found(topology, "name-refused")] == places


def test_names_that_could_disturb_a_terminal_are_escaped() -> None:
    """Wherever they are shown."""
    for finding in check(live(classic("q\x1b[2J", dead_letter_exchange="gone\x07"))):
        assert finding.place.isprintable()
        assert finding.explanation.isprintable()


# Declarations


@pytest.mark.parametrize(
    ("queue", "says"),
    [
        (classic("q", message_ttl="5000"), '`x-message-ttl` is "5000", expected a whole number'),
        (classic("q", overflow="drop"), '`x-overflow` is "drop", expected "drop-head"'),
        (classic("q", dead_letter_routing_key="k"), "stands without `x-dead-letter-exchange`"),
        (quorum("q", max_priority=5), "A quorum queue has no argument `x-max-priority`"),
        (Queue("q", QueueType.QUORUM, durable=False), "A quorum queue cannot be not durable"),
        (Queue("q", QueueType.STREAM, exclusive=True), "A stream queue cannot be exclusive"),
        (Queue("q", QueueType.QUORUM, auto_delete=True), "A quorum queue cannot be auto-delete"),
    ],
)
def test_what_every_broker_refuses(queue: Queue, says: str) -> None:
    """The value and what was expected, or what the type does not have."""
    assert [says in each.explanation for each in found(live(queue), "argument-refused", "4.0")] == [
        True
    ]


def test_an_exchange_argument_that_looks_like_a_slip_is_named() -> None:
    """Those of plugins are not ours to judge."""
    slip = Exchange("x", arguments={"alternate-exchnge": "y"})
    plugin = Exchange("y", "x-consistent-hash", arguments={"hash-header": "id"})
    (finding,) = found(live(exchanges=(slip, plugin)), "argument-ignored")
    assert 'did you mean "alternate-exchange"?' in finding.explanation


def test_an_argument_without_effect_on_this_type_is_refused_and_not_ignored() -> None:
    """A classic queue has no delayed retry on any broker, so only one rule speaks."""
    topology = live(classic("q", delayed_retry_min=5, queue_master_locator="min-masters"))
    assert "argument-ignored" not in rules(topology)
    assert "argument-refused" in rules(topology)


# Policies


@pytest.mark.parametrize(
    ("policy", "version", "says"),
    [
        (Policy("p", "(", {}), None, "is no regular expression"),
        (Policy("p", "", {}, apply_to="queue"), None, 'did you mean "queues"?'),
        (Policy("p", "", {}, apply_to="quorum_queues"), "3.10", "policies for `quorum_queues`"),
        (Policy("p", "", {"message-ttl": "5"}), None, '`message-ttl` is "5", expected a whole'),
        (Policy("p", "", {"delivery-limit": -1}), "3.13", "which brokers before 4.0 do not take"),
        (Policy("p", "", {"ha-mode": "all"}), "4.0", "does not know the key `ha-mode`"),
        (Policy("p", "", {"delayed-retry-min": 5}), "4.3", "does not know the key `delayed-retry"),
    ],
)
def test_policies_that_a_broker_refuses(policy: Policy, version: str | None, says: str) -> None:
    """One problem, named."""
    topology = replace(live(classic("q"), quorum("p")), policies=(policy,))
    assert [says in each.explanation for each in found(topology, "policy-refused", version)] == [
        True
    ]


@pytest.mark.parametrize(
    ("policy", "version"),
    [
        (Policy("p", "", {}, apply_to="quorum_queues"), "3.12"),
        (Policy("p", "", {"delivery-limit": -1}), "4.0"),
        (Policy("p", "", {"ha-mode": "all"}), "3.13"),
        (Policy("p", "", {"delayed-retry-min": 5}), "4.3.1"),
        (Policy("p", "", {"federation-upstream-set": "all"}), "3.10"),
    ],
)
def test_policies_that_this_broker_takes(policy: Policy, version: str) -> None:
    """The same on a broker that knows them."""
    topology = replace(live(quorum("q")), policies=(policy,))
    assert found(topology, "policy-refused", version) == []


def test_policies_that_say_the_same_do_not_shadow_each_other() -> None:
    """Only what is lost is worth a word; an unmatched queue has nothing to lose."""
    policies = (
        Policy("a", "^a", {"expires": 9}, priority=1),
        Policy("b", "^a", {"expires": 5}),
    )
    assert (
        found(replace(live(classic("a"), classic("z")), policies=policies), "policy-shadowed") == []
    )


def test_what_a_broker_refuses_is_not_also_called_unmatched() -> None:
    """One word for one mistake."""
    policies = (Policy("p", "(", {}), Policy("r", "x", {}, apply_to="odd"))
    assert found(replace(live(classic("q")), policies=policies), "policy-unmatched") == []


# Live brokers


@pytest.mark.parametrize("name", sorted(DESIGNS))
def test_a_design_is_recognised_without_its_plans(name: str) -> None:
    """The structure alone shows the same hazards, though it cannot be sure of all."""
    design = DESIGNS[name]
    faithful = design.build()
    told = {"queue-without-plan"}
    assert rules(replace(faithful, plans=())) == rules(faithful) | told
    hardened = check(replace(design.build(hardened=True), plans=()))
    assert {each.severity for each in hardened} == {Severity.INFO}
