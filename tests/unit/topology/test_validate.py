"""Invalid topologies, found in the model alone."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal

import pytest

from hopback.fields import FieldValue, Int8
from hopback.topology.expand import harden_queues, recommend_plan
from hopback.topology.model import Binding, Exchange, Policy, Queue, QueueType, Topology
from hopback.topology.plan import Fact, LocalWait, Parking, Plan, Redrive, Route, Stamp, Tier
from hopback.topology.validate import broker_problems, problems

_PLAN = recommend_plan("q", tiers_ms=[1000, 5000])


def found(topology: Topology) -> list[str]:
    """Its problems as text."""
    return [str(problem) for problem in problems(topology)]


def planned(plan: Plan) -> Topology:
    """A topology with the queues of the recommended plan and this plan."""
    return Topology("t", queues=harden_queues(_PLAN), plans=(plan,))


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        (Queue(""), 'queues."": expected 1 to 255 bytes, got ""'),
        (Queue("q" * 256), f'queues.{"q" * 256}: expected 1 to 255 bytes, got 256 bytes'),
        (Queue("\ud800"), 'queues."\\ud800": expected text that can be written as UTF-8, got "\\ud800"'),
        (
            Queue("amq.q"),
            'queues."amq.q": expected a name that does not begin with amq. (RabbitMQ reserves'
            ' those), got "amq.q"',
        ),
        (
            Queue("q", QueueType.QUORUM, durable=False),
            "queues.q.durable: expected true for a quorum queue, got false",
        ),
        (
            Queue("q", QueueType.STREAM, exclusive=True),
            "queues.q.exclusive: expected false for a stream queue, got true",
        ),
        (
            Queue("q", QueueType.QUORUM, auto_delete=True),
            "queues.q.auto_delete: expected false for a quorum queue, got true",
        ),
        (
            Queue("q", QueueType.QUORUM, arguments={"x-max-priority": 5}),
            'queues.q.arguments.x-max-priority: expected a queue of type "classic" for this'
            " argument, got quorum",
        ),
        (
            Queue("q", arguments={"x-delivery-limit": 5}),
            'queues.q.arguments.x-delivery-limit: expected a queue of type "quorum" for this'
            " argument, got classic",
        ),
        (
            Queue("q", QueueType.STREAM, arguments={"x-message-ttl": 5}),
            'queues.q.arguments.x-message-ttl: expected a queue of type "classic" or "quorum" for'
            " this argument, got stream",
        ),
        (
            Queue("q", arguments={"x-dead-letter-routing-key": "k"}),
            "queues.q.arguments.x-dead-letter-routing-key: expected x-dead-letter-exchange to be set"
            " as well, got none",
        ),
        (
            Queue("q", arguments={"x-message-ttl": True}),
            "queues.q.arguments.x-message-ttl: expected a whole number from 0 to 315360000000, got"
            " true",
        ),
        (
            Queue("q", arguments={"x-single-active-consumer": 1}),
            "queues.q.arguments.x-single-active-consumer: expected true or false, got 1",
        ),
        (
            Queue("q", arguments={"x-dead-letter-exchange": 5}),
            "queues.q.arguments.x-dead-letter-exchange: expected text, got 5",
        ),
        (
            Queue("q", arguments={"x-overflow": "drop"}),
            'queues.q.arguments.x-overflow: expected "drop-head", "reject-publish" or'
            ' "reject-publish-dlx", got "drop"',
        ),
    ],
)  # fmt: skip
def test_queue_refused_by_broker_is_invalid(queue: Queue, expected: str) -> None:
    assert found(Topology("t", queues=(queue,))) == [expected]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2**63, "expected a whole number from -9223372036854775808 to 9223372036854775807, got"),
        (Int8(200), "expected a whole number from -128 to 127, got 200"),
        (10**40, "expected a whole number from .* got a far larger number"),
        (Decimal("1e400"), "expected a decimal of 32 bits and 255 places at most, got 1E\\+400"),
        (Decimal("NaN"), "expected a decimal of 32 bits and 255 places at most, got NaN"),
        (Decimal(9999999999), "expected a decimal of 32 bits"),
        ("\ud800", "expected text that can be written as UTF-8"),
        ({"": 1}, r'v."": expected 1 to 255 bytes, got ""'),
        ([1, {"a": 2**64}], r"v\[1\].a: expected a whole number"),
        ({1, 2}, "expected an AMQP value, got a value of type set"),
    ],
)
def test_argument_that_amqp_cannot_carry_is_invalid(value: FieldValue, expected: str) -> None:
    topology = Topology("t", (Exchange("x", arguments={"v": value}),))
    (problem,) = found(topology)
    assert problem.startswith("exchanges.x.arguments.v")
    assert re.search(expected, problem)


def test_exchanges_bindings_and_policies_are_validated() -> None:
    topology = Topology(
        "",
        (Exchange("x", "", arguments={"alternate-exchange": 5}),),
        (),
        (Binding("", "", "k" * 256), Binding("y", "z", to_exchange=True)),
        policies=(Policy("p", "", {"max-length": "5"}, apply_to="things"),),
    )
    assert found(topology) == [
        'name: expected 1 to 255 bytes, got ""',
        'exchanges.x.type: expected 1 to 255 bytes, got ""',
        "exchanges.x.arguments.alternate-exchange: expected text, got 5",
        "bindings[0].exchange: expected a named exchange (the default exchange reaches every queue"
        ' by its name already), got ""',
        'bindings[0].queue: expected 1 to 255 bytes, got ""',
        "bindings[0].key: expected 1 to 255 bytes, got 256 bytes",
        'policies.p.apply_to: expected "all", "queues", "exchanges", "classic_queues",'
        ' "quorum_queues" or "streams", got "things"',
        "policies.p.definition.max-length: expected a whole number from 0 to 9223372036854775807,"
        ' got "5"',
        'bindings[1].exchange: expected the name of a declared exchange, got "y"',
        'bindings[1].to_exchange: expected the name of a declared exchange, got "z"',
    ]


def test_repeated_names_are_invalid() -> None:
    topology = Topology(
        "t",
        (Exchange("x"), Exchange("x", "topic")),
        (Queue("q"), Queue("q"), Queue("r", arguments={"a": 1}), Queue("r", arguments={"a": 2})),
        unconsumed=frozenset({"nobody"}),
    )
    assert found(topology) == [
        "exchanges.x: expected one declaration of this name, got two that differ",
        "queues.r: expected one declaration of this name, got two that differ",
        "queues.q: expected one declaration of this name, got two",
        "queues.nobody.consumers: expected a declared queue, got none of this name",
    ]
    assert len(broker_problems(topology)) == 2


def test_plan_with_undeclared_objects_is_invalid() -> None:
    plan = replace(
        _PLAN,
        queue="qq",
        tiers=(Tier("a", 5, (Route("x", "", "nowhere"),)),),
        parking=replace(_PLAN.parking, queue="q.dql", exchange="y"),
        redrive=Redrive("z", ""),
    )
    known = 'expected the name of a declared exchange, or "" for the default exchange'
    assert found(planned(plan)) == [
        'plans.qq: expected the name of a declared queue, got "qq" (did you mean "q"?)',
        'plans.qq.tiers[0].routes[0].queue: expected the name of a declared queue, got "nowhere"',
        f'plans.qq.tiers[0].routes[0].exchange: {known}, got "x"',
        'plans.qq.parking.queue: expected the name of a declared queue, got "q.dql" (did you mean'
        ' "q.dlq"?)',
        f'plans.qq.parking.exchange: {known}, got "y"',
        f'plans.qq.redrive.exchange: {known}, got "z"',
    ]


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (replace(_PLAN, attempts=0), "attempts: expected at least 1, got 0"),
        (replace(_PLAN, tiers=()), "tiers: expected a tier to wait in before attempt 3, got none"),
        (
            replace(_PLAN, tiers=_PLAN.tiers[::-1]),
            "tiers[1].delay: expected a delay no shorter than the tier before it (5s), got 1s",
        ),
        (
            replace(_PLAN, tiers=(replace(_PLAN.tiers[0], delay_ms=-1),)),
            "tiers[0].delay: expected 0 to 315360000000 ms (ten years), got -1 ms",
        ),
        (
            replace(_PLAN, tiers=(_PLAN.tiers[0], replace(_PLAN.tiers[1], name="1s"))),
            'tiers: expected a different name for each tier, got "1s"',
        ),
        (
            replace(_PLAN, tiers=(replace(_PLAN.tiers[0], routes=()),)),
            "tiers[0].routes: expected at least one route into a retry queue, got none",
        ),
        (
            replace(_PLAN, parking=replace(_PLAN.parking, queue="q")),
            'parking.queue: expected a queue other than its own, got "q"',
        ),
        (
            replace(_PLAN, snooze=LocalWait()),
            "snooze: expected a classic queue (other types count each requeue and eventually delete"
            " the message), got quorum",
        ),
        (
            replace(_PLAN, count_header=""),
            'count_header: expected a header name of 1 to 255 bytes, got ""',
        ),
        (
            replace(_PLAN, count_header="hopback-queue"),
            "count_header: expected a header name that neither Hopback nor RabbitMQ uses,"
            ' got "hopback-queue"',
        ),
        (
            replace(_PLAN, park_stamps=(Stamp("h" * 256, Fact.NOW),)),
            f'park_stamps[0].header: expected a header name of 1 to 255 bytes, got "{"h" * 60}…"',
        ),
    ],
)
def test_plan_with_invalid_values_is_invalid(plan: Plan, expected: str) -> None:
    assert found(planned(plan)) == [f"plans.q.{expected}"]


def test_local_wait_with_unordered_bounds_is_invalid() -> None:
    plan = replace(
        _PLAN,
        attempts=1,
        tiers=(),
        snooze=LocalWait(5, 2),
        parking=Parking("d", _PLAN.leave, "", "d"),
    )
    topology = Topology("t", queues=(Queue("q"), Queue("d")), plans=(plan, plan))
    assert found(topology)[0] == "plans.q: expected one plan for this queue, got 2"
    assert found(topology)[1] == (
        "plans.q.snooze: expected a shortest and a longest wait, in that order, got 5 to 2 ms"
    )
    fine = replace(topology, plans=(replace(plan, snooze=LocalWait()),))
    assert found(fine) == []
    assert found(replace(fine, unconsumed=frozenset({"q"}))) == [
        "queues.q.consumers: expected no failure plan for a queue without consumers, got one"
    ]
