"""Every rule: it sees its hazard in a small topology, and is silent when that is mended."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pytest

from hopback.topology.check import check
from hopback.topology.hazards import RULES
from hopback.topology.model import Binding, Exchange, Policy, Queue, QueueType, Topology
from hopback.topology.plan import Leave, Parking, Redrive, Route, Tier
from tests.unit.topology_check.building import (
    classic,
    edited,
    found,
    live,
    loop,
    quorum,
    retry_loop_plan,
    sound,
    with_queue,
)

if TYPE_CHECKING:
    from hopback.fields import FieldValue


class Case(NamedTuple):
    """A hazard, what is said of it, and the same thing mended."""

    rule: str
    broken: Topology
    mended: Topology
    severity: str
    place: str
    says: str
    version: str | None = None


def planned(topology: Topology, **changes: object) -> Topology:
    """The topology with its only plan changed."""
    return replace(topology, plans=(replace(topology.plans[0], **changes),))  # type: ignore[arg-type]


def reject_plan(topology: Topology, *, attempts: int = 3) -> Topology:
    """A loop with its plan."""
    return replace(topology, plans=(retry_loop_plan(attempts=attempts),))


def policed(*policies: Policy) -> Topology:
    """Two queues under these policies."""
    return replace(live(classic("a"), classic("b")), policies=policies)


def two_waits(*, chained: bool) -> Topology:
    """A rejected message waits in `w1`, then in `w2` if they are chained, and comes back."""
    after = "w2" if chained else "q"
    return live(
        classic("q", dead_letter_exchange="", dead_letter_routing_key="w1"),
        classic("w1", message_ttl=1, dead_letter_exchange="", dead_letter_routing_key=after),
        classic("w2", message_ttl=1, dead_letter_exchange="", dead_letter_routing_key="q"),
    )


def returning(exchange: str, *, others: bool) -> Topology:
    """Retries of `q` that come back through an exchange, to which others are bound or not."""
    plan = replace(retry_loop_plan(), leave=Leave.PUBLISH)
    back = classic(
        "q.retry",
        message_ttl=1000,
        dead_letter_exchange=exchange,
        dead_letter_routing_key="q.again",
    )
    bindings = [Binding("events", "q", "q.*"), Binding("events", "audit", "#")]
    return Topology(
        "t",
        (Exchange("events", "topic"),),
        (classic("q"), back, classic("q.dlq"), classic("audit")),
        tuple(bindings if others else bindings[:1]),
        (plan,),
        unconsumed=frozenset({"audit"}),
    )


def dead_letters(kind: str, *keys: str, **main: FieldValue) -> Topology:
    """`q`, fed by `a.*`, whose dead letters go to exchange `dlx`, bound to `dlq` by these keys."""
    return Topology(
        "t",
        (Exchange("events", "topic"), Exchange("dlx", kind)),
        (classic("q", dead_letter_exchange="dlx", **main), classic("dlq")),
        (Binding("events", "q", "a.*"), *(Binding("dlx", "dlq", key) for key in keys)),
    )


CASES = (
    Case(
        "dead-letter-exchange-missing",
        live(classic("q", dead_letter_exchange="dxl"), exchanges=(Exchange("dlx"),)),
        dead_letters("fanout", ""),
        "error",
        "queue `q`",
        "exchange `dxl`, which does not exist",
    ),
    Case(
        "dead-letter-unroutable",
        dead_letters("direct", "other", dead_letter_routing_key="dead"),
        dead_letters("direct", "dead", dead_letter_routing_key="dead"),
        "error",
        "queue `q`",
        "no binding of exchange `dlx` takes the key `dead`",
    ),
    Case(
        "dead-letter-partly-unroutable",
        replace(
            dead_letters("topic", "a.*"),
            bindings=(*dead_letters("topic", "a.*").bindings, Binding("events", "q", "b")),
        ),
        replace(
            dead_letters("topic", "a.*", "b"),
            bindings=(*dead_letters("topic", "a.*", "b").bindings, Binding("events", "q", "b")),
        ),
        "warning",
        "queue `q`",
        "takes the key `b`",
    ),
    Case(
        "at-most-once",
        edited(sound(), "orders.retry.1s", dead_letter_strategy=None),
        sound(),
        "warning",
        "queue `orders`",
        "at most once: back from the retry queue.",
    ),
    Case(
        "at-least-once-falls-back",
        edited(sound(), "orders.retry.1s", overflow=None),
        sound(),
        "error",
        "queue `orders.retry.1s`",
        "lacks `x-overflow: reject-publish`",
    ),
    Case(
        "dead-letter-into-stream",
        live(
            classic("q", dead_letter_exchange="", dead_letter_routing_key="s"),
            Queue("s", QueueType.STREAM),
        ),
        live(
            quorum(
                "q",
                dead_letter_exchange="",
                dead_letter_routing_key="s",
                dead_letter_strategy="at-least-once",
                overflow="reject-publish",
            ),
            Queue("s", QueueType.STREAM),
        ),
        "error",
        "queue `q`",
        "the stream `s`",
        "3.10",
    ),
    Case(
        "cycle-without-rejection",
        loop(message_ttl=300_000),
        loop(),
        "error",
        "queues `q` and `q.retry`",
        "expires round `q` and `q.retry`",
    ),
    Case(
        "chained-retry-queues",
        two_waits(chained=True),
        two_waits(chained=False),
        "error",
        "queue `q`",
        "(`w1` and `w2`)",
        "3.12.9",
    ),
    Case(
        "delivery-limit-feeds-retry",
        loop(quorum("q", dead_letter_exchange="", dead_letter_routing_key="q.retry")),
        loop(
            quorum(
                "q",
                dead_letter_exchange="",
                dead_letter_routing_key="q.retry",
                delivery_limit=-1,
            )
        ),
        "error",
        "queue `q`",
        "default delivery limit of 20",
        "4.0",
    ),
    Case(
        "max-length-feeds-retry",
        loop(max_length=10),
        loop(max_length=10, overflow="reject-publish"),
        "error",
        "queue `q`",
        "its overflow goes to the retry queue",
    ),
    Case(
        "expiration-feeds-retry",
        loop(),
        sound(),
        "warning",
        "queue `q`",
        "`expiration`",
    ),
    Case(
        "sound-loop-dropped",
        loop(),
        sound(),
        "warning",
        "queue `q`",
        "RabbitMQ 3.13.1",
        "3.13.1",
    ),
    Case(
        "laps-reach-delivery-limit",
        reject_plan(
            loop(quorum("q", dead_letter_exchange="", dead_letter_routing_key="q.retry")),
            attempts=21,
        ),
        reject_plan(
            loop(quorum("q", dead_letter_exchange="", dead_letter_routing_key="q.retry")),
            attempts=20,
        ),
        "warning",
        "queue `q`",
        "20 times, and the delivery limit is 20",
        "4.3",
    ),
    Case(
        "retry-without-ttl",
        edited(sound(), "orders.retry.1s", message_ttl=None),
        sound(),
        "error",
        "queue `orders.retry.1s`",
        "waits for ever",
    ),
    Case(
        "retry-without-return",
        edited(sound(), "orders.retry.1s", dead_letter_routing_key="orders.dlq"),
        sound(),
        "error",
        "queue `orders.retry.1s`",
        "never come back",
    ),
    Case(
        "retry-delay-differs",
        edited(sound(), "orders.retry.1s", message_ttl=2500),
        sound(),
        "warning",
        "queue `orders.retry.1s`",
        "a wait of 1s, but the queue lets messages go after 2500 ms",
    ),
    Case(
        "mixed-delays",
        planned(
            sound(),
            tiers=tuple(
                Tier(name, delay, (Route("", "orders.retry.1s", "orders.retry.1s"),))
                for name, delay in (("1s", 1000), ("1m", 60_000))
            ),
        ),
        sound(),
        "warning",
        "queue `orders.retry.1s`",
        "several delays (1s, 1m)",
    ),
    Case(
        "retry-reaches-others",
        returning("events", others=True),
        returning("events", others=False),
        "warning",
        "exchange `events`",
        "Retries of `q` come back through this exchange and also reach `audit`",
    ),
    Case(
        "retry-queue-limited",
        edited(sound(), "orders.retry.1s", max_length=5, overflow="drop-head"),
        edited(sound(), "orders.retry.1s", max_length=5),
        "warning",
        "queue `orders.retry.1s`",
        "before their wait is over",
    ),
    Case(
        "dead-letters-expire",
        edited(sound(), "orders.dlq", message_ttl=86_400_000),
        sound(),
        "error",
        "queue `orders.dlq`",
        "after 86400000 ms",
    ),
    Case(
        "dead-letter-queue-limited",
        edited(sound(), "orders.dlq", max_length=100),
        sound(),
        "error",
        "queue `orders.dlq`",
        "its oldest messages go",
    ),
    Case(
        "dead-letters-move-on",
        with_queue(
            edited(sound(), "orders.dlq", dead_letter_exchange="", dead_letter_routing_key="tomb"),
            quorum("tomb"),
        ),
        with_queue(sound(), quorum("tomb")),
        "warning",
        "queue `orders.dlq`",
        "has a dead-letter exchange itself",
    ),
    Case(
        "looking-deletes",
        edited(sound(), "orders.dlq", delivery_limit=None),
        sound(),
        "error",
        "queue `orders.dlq`",
        "after 21 looks",
        "4.1",
    ),
    Case(
        "dead-letter-queue-shared",
        live(
            classic("a", dead_letter_exchange="", dead_letter_routing_key="dlq"),
            classic("b", dead_letter_exchange="", dead_letter_routing_key="dlq"),
            classic("dlq"),
        ),
        live(
            classic("a", dead_letter_exchange="", dead_letter_routing_key="a.dlq"),
            classic("b", dead_letter_exchange="", dead_letter_routing_key="b.dlq"),
            classic("a.dlq"),
            classic("b.dlq"),
        ),
        "info",
        "queue `dlq`",
        "shared by `a` and `b`",
    ),
    Case(
        "queue-without-plan",
        with_queue(sound(), quorum("invoices")),
        replace(with_queue(sound(), quorum("invoices")), unconsumed=frozenset({"invoices"})),
        "error",
        "queue `invoices`",
        "no failure plan",
    ),
    Case(
        "plan-leads-nowhere",
        planned(sound(), parking=Parking("orders.dlq", Leave.PUBLISH, "", "orders.dead")),
        sound(),
        "error",
        "plan of queue `orders`",
        "The way for parking, exchange `` with key `orders.dead`, does not reach",
    ),
    Case(
        "reject-deletes",
        replace(
            live(classic("q"), classic("q.retry"), classic("q.dlq")), plans=(retry_loop_plan(),)
        ),
        reject_plan(loop()),
        "error",
        "queue `q`",
        "deletes every message that is rejected",
    ),
    Case(
        "unreachable-queue",
        replace(with_queue(sound(), quorum("lone")), unconsumed=frozenset({"lone"})),
        replace(
            with_queue(sound(), quorum("lone")),
            exchanges=(Exchange("x"),),
            bindings=(Binding("x", "lone", "k"), Binding("x", "orders", "k")),
            unconsumed=frozenset({"lone"}),
        ),
        "warning",
        "queue `lone`",
        "Nothing routes here",
    ),
    Case(
        "dangling-binding",
        replace(live(classic("q")), bindings=(Binding("gone", "q"), Binding("gone", "nobody"))),
        live(classic("q"), exchanges=(Exchange("gone"),), q="gone"),
        "error",
        "binding `gone` → `nobody` (``)",
        "source `gone` and destination `nobody`",
    ),
    Case(
        "overflow-deletes",
        live(classic("q", max_length_bytes=1000)),
        live(classic("q", max_length_bytes=1000, overflow="reject-publish")),
        "warning",
        "queue `q`",
        "deletes its oldest messages",
    ),
    Case(
        "expiry-deletes",
        live(classic("q", message_ttl=1)),
        live(
            classic("q", message_ttl=1, dead_letter_exchange="", dead_letter_routing_key="q.dlq"),
            classic("q.dlq"),
        ),
        "warning",
        "queue `q`",
        "are deleted",
    ),
    Case(
        "delivery-limit-deletes",
        live(quorum("q")),
        live(
            quorum("q", dead_letter_exchange="", dead_letter_routing_key="q.dlq"), quorum("q.dlq")
        ),
        "warning",
        "queue `q`",
        "default delivery limit of 20",
        "4.2",
    ),
    Case(
        "first-return-deletes",
        edited(sound(), "orders.dlq", delivery_limit=-1),
        sound(),
        "error",
        "queue `orders.dlq`",
        "limit of -1",
        "3.13.7",
    ),
    Case(
        "queue-expires",
        edited(sound(), "orders.retry.1s", expires=60_000),
        sound(),
        "error",
        "queue `orders.retry.1s`",
        "after 60000 ms without a consumer, and such a queue never has one",
    ),
    Case(
        "short-lived",
        with_queue(loop(), Queue("q.dlq", durable=False)),
        loop(),
        "warning",
        "queue `q.dlq`",
        "Not durable",
    ),
    Case(
        "classic-queue",
        loop(),
        sound(),
        "warning",
        "queue `q`",
        "3 classic queues",
    ),
    Case(
        "name-clash",
        replace(sound(), queues=(*sound().queues, sound().queues[0])),
        sound(),
        "error",
        "queue `orders`",
        "more than once",
    ),
    Case(
        "name-refused",
        live(classic("amq.mine")),
        live(classic("mine")),
        "error",
        "queue `amq.mine`",
        "`amq.`",
    ),
    Case(
        "names-alike",
        live(classic("Orders"), classic("orders ")),
        live(classic("orders"), classic("invoices")),
        "info",
        "queues `Orders` and `orders `",
        "different queues",
    ),
    Case(
        "argument-ignored",
        live(classic("q", dead_leter_exchange="dlx")),
        dead_letters("fanout", ""),
        "warning",
        "queue `q`",
        'did you mean "x-dead-letter-exchange"?',
    ),
    Case(
        "argument-refused",
        live(classic("q", delivery_limit=5)),
        live(quorum("q", delivery_limit=5)),
        "error",
        "queue `q`",
        "A classic queue has no argument `x-delivery-limit`",
    ),
    Case(
        "overflow-unsupported",
        live(quorum("q", overflow="reject-publish-dlx")),
        live(classic("q", overflow="reject-publish-dlx")),
        "warning",
        "queue `q`",
        "does not support it",
    ),
    Case(
        "alternate-exchange-missing",
        live(
            exchanges=(Exchange("x", arguments={"alternate-exchange": "spar"}), Exchange("spare"))
        ),
        live(
            exchanges=(Exchange("x", arguments={"alternate-exchange": "spare"}), Exchange("spare"))
        ),
        "warning",
        "exchange `x`",
        "`spar` does not exist",
    ),
    Case(
        "policy-shadowed",
        policed(
            Policy("ttl", "^a", {"message-ttl": 5}, priority=1), Policy("all", ".*", {"expires": 9})
        ),
        policed(
            Policy("both", "^a", {"message-ttl": 5, "expires": 9}, priority=1),
            Policy("all", ".*", {"expires": 9}),
        ),
        "warning",
        "policy `all`",
        "Both this policy and `ttl` match queue `a`",
    ),
    Case(
        "policy-unmatched",
        policed(Policy("p", "^c", {"message-ttl": 5})),
        policed(Policy("p", "^a", {"message-ttl": 5})),
        "info",
        "policy `p`",
        "`^c` matches no queue",
    ),
    Case(
        "policy-refused",
        policed(Policy("p", "^a", {"mesage-ttl": 5})),
        policed(Policy("p", "^a", {"message-ttl": 5})),
        "error",
        "policy `p`",
        '`mesage-ttl` is unknown (did you mean "message-ttl"?)',
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_the_rule_sees_its_hazard(case: Case) -> None:
    """It says where, how grave, and what happens."""
    seen = {each.place: each for each in found(case.broken, case.rule, case.version)}
    assert case.place in seen
    assert seen[case.place].severity == case.severity
    assert case.says in seen[case.place].explanation + seen[case.place].fix


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_the_rule_is_silent_when_it_is_mended(case: Case) -> None:
    """On the version in question, and for all versions unless the rule knows better."""
    assert found(case.mended, case.rule, case.version) == []


def test_every_rule_has_its_case() -> None:
    """And every name is used once."""
    assert [case.rule for case in CASES] == [rule.name for rule in RULES]
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_the_sound_topology_is_sound() -> None:
    """What most cases are mended to has nothing wrong with it at all."""
    assert check(sound()) == ()


def test_redrive_may_go_through_a_retry_queue() -> None:
    """It comes back from there; elsewhere it would be lost."""
    through = planned(sound(), redrive=Redrive("", "orders.retry.1s"))
    assert found(through, "plan-leads-nowhere") == []
    astray = planned(sound(), redrive=Redrive("", "orders.dlq"))
    (problem,) = found(astray, "plan-leads-nowhere")
    assert "The way for re-drive" in problem.explanation
