"""Topology files: short form, explicit form and errors."""

# Error messages are in one line here, as they are printed.
# ruff: noqa: E501

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from hopback.errors import InvalidTopology
from hopback.fields import Float32, Int32, LongStr, Timestamp
from hopback.topology.document import read_toml, write_toml
from hopback.topology.expand import harden_queues, recommend_plan
from hopback.topology.model import Binding, Exchange, Policy, Queue, QueueType, Topology
from hopback.topology.plan import (
    Count,
    Fact,
    Leave,
    LocalWait,
    Parking,
    Redrive,
    Return,
    Route,
    Stamp,
    Tier,
)

_PAGE = Path(__file__).parents[3] / "docs" / "reference" / "topology-file.md"


def problems_of(text: str) -> list[str]:
    """The problems of a file, as text."""
    with pytest.raises(InvalidTopology) as caught:
        read_toml(text, where="shop.toml")
    assert str(caught.value).startswith("shop.toml has ")
    return [str(problem) for problem in caught.value.problems]


def examples() -> list[str]:
    """The TOML blocks of the reference page."""
    return re.findall(r"```toml\n(.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_example_of_reference_page_is_read() -> None:
    shop = read_toml(examples()[0])
    plan = recommend_plan("orders", tiers_ms=[30_000, 300_000, 1_800_000])
    assert shop.name == "shop"
    assert shop.exchanges == (Exchange("shop.events", "topic"),)
    assert shop.plan("orders") == plan
    assert shop.queues[:5] == harden_queues(plan)
    assert [queue.name for queue in shop.queues[5:]] == [
        "mails",
        "mails.retry.1m",
        "mails.dlq",
        "archive",
    ]
    mails = shop.plan("mails")
    assert mails is not None
    assert mails.attempts == 10
    assert shop.bindings[1] == Binding("shop.events", "orders", "basket.#")
    assert shop.unconsumed == {"archive"}
    assert shop.queue("archive") == Queue(
        "archive", QueueType.STREAM, arguments={"x-max-age": "30D"}
    )
    assert shop.policies == (
        Policy("limits", "^archive$", {"max-length-bytes": 1_000_000_000}, apply_to="queues"),
    )
    assert read_toml(write_toml(shop)) == shop


def test_plan_of_reference_page_is_read() -> None:
    payments = read_toml(examples()[1])
    plan = payments.plan("payments")
    assert plan is not None
    assert plan.attempts == 4
    assert plan.tiers == (Tier("1m", 60_000, (Route("", "payments.retry", "payments.retry"),)),)
    assert (plan.leave, plan.returns, plan.count) == (Leave.PUBLISH, Return.QUEUE, Count.HEADER)
    assert plan.parking == Parking("payments.dlq", Leave.PUBLISH, "", "payments.dlq")
    assert plan.redrive == Redrive("", "payments")
    assert plan.park_stamps == (Stamp("x-parked-at", Fact.NOW),)
    assert plan.count_header == "x-retry-count"
    assert payments.name == "topology"


def test_errors_of_reference_page_are_exact() -> None:
    text = examples()[0].replace('"30m"', '"10s"').replace("attempts = 10", "atempts = 10")
    shown = re.search(r"```text\n(.*?)\n```", _PAGE.read_text(encoding="utf-8"), re.DOTALL)
    with pytest.raises(InvalidTopology) as caught:
        read_toml(text, where="shop.toml")
    assert shown is not None
    assert str(caught.value) == shown[1]


def test_value_spellings_of_reference_page_are_read() -> None:
    page = _PAGE.read_text(encoding="utf-8")
    written = re.findall(r"`(\{ \"\$(\w+)\" = .*? \})`", page)
    kinds = {
        mark: type(value)
        for text, mark in written
        if (
            queue := read_toml(
                f"[queues.q]\nconsumers = false\narguments = {{ v = {text} }}"
            ).queue("q")
        )
        for value in queue.arguments.values()
    }
    assert {"int32", "timestamp", "float32", "decimal", "bytes", "none", "table"} <= kinds.keys()
    assert kinds["int32"] is Int32
    assert kinds["timestamp"] is Timestamp
    assert kinds["float32"] is Float32
    assert kinds["longstr"] is LongStr
    assert kinds["none"] is type(None)


def test_all_problems_are_reported_with_paths() -> None:
    found = problems_of(
        """
        nme = "shop"
        [exchanges."shop.events"]
        type = 5
        [queues.orders]
        retry = [{ delay = "30s" }, { delay = "5m" }, { delay = "10s" }]
        bindings = [{ exchange = "shop.event" }, { key = "x" }]
        [queues."a b"]
        [queues.c]
        retry = [{ delay = 5.5, dely = 1 }, { }, 7, { delay = "0s" }]
        attempts = 0
        type = "classic"
        durable = false
        """
    )
    assert found == [
        'exchanges."shop.events".type: expected text, got 5',
        "queues.orders.retry[2].delay: expected a delay no shorter than the tier before it (5m), got 10s",
        "queues.orders.bindings[1].exchange: expected the name of an exchange, got nothing",
        'queues."a b": expected a failure plan such as `retry = ["30s", "5m"]`,'
        " or `consumers = false` for a queue without consumers, got neither",
        "queues.c.retry[0].delay: expected a duration like 250ms, 30s, 5m, 1h30m or 7d (at most 3650d), or whole"
        " milliseconds, got 5.5",
        'queues.c.retry[0].dely: expected one of delay, got "dely" (did you mean "delay"?)',
        "queues.c.retry[1].delay: expected a duration like 30s, got nothing",
        'queues.c.retry[2]: expected a duration such as "30s", got 7',
        "queues.c.retry[3].delay: expected a delay longer than 0s, got 0s",
        "queues.c.attempts: expected a positive whole number, got 0",
        'queues.c.type: expected "quorum", the type of the recommended pattern (or'
        ' `pattern = "none"`), got "classic"',
        "queues.c.durable: expected true, as in every recommended queue, got false",
        'nme: expected one of bindings, exchanges, foreign, name, plans, policies, queues, got "nme"'
        ' (did you mean "name"?)',
        "queues.orders.bindings[0].exchange: expected the name of a declared exchange, got"
        ' "shop.event" (did you mean "shop.events"?)',
    ]


def test_retry_is_a_list_of_durations_as_in_python() -> None:
    short = read_toml('[queues.orders]\nretry = ["30s", "5m"]')
    assert short == read_toml('[queues.orders]\nretry = [{ delay = "30s" }, { delay = "5m" }]')
    assert [tier.delay_ms for tier in short.plans[0].tiers] == [30_000, 300_000]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = [", "end of document: expected valid TOML, got a syntax error: Invalid value"),
        ("x = 1\ny", "end of document: expected valid TOML"),
        (
            'x = "30s\ny = 1',
            "line 1, column 9: expected valid TOML, got a string without its closing",
        ),
        (
            "x = '30s",
            "end of document: expected valid TOML, got a string without its closing quote",
        ),
        (
            'x = """30s',
            "end of document: expected valid TOML, got a string without its closing quote",
        ),
        ("x = 1\ny ? 2\n", "line 2, column 3: expected valid TOML, got a syntax error: Expected"),
        ("x = " + "9" * 5000, "file: expected valid TOML"),
        ("x = " + "[" * 5000, "line 1: expected valid TOML, got values nested too deeply"),
    ],
)
def test_toml_syntax_error_names_line(text: str, expected: str) -> None:
    (found,) = problems_of(text)
    assert found.startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('pattern = "non"', '.pattern: expected "recommended" or "none", got "non" (did you mean "none"?)'),
        ("pattern = []", '.pattern: expected "recommended" or "none", got an empty array'),
        (
            'pattern = "other"\nretry = [{ delay = "1s" }]',
            '.pattern: expected "recommended" or "none", got "other"',
        ),
        (
            'pattern = "none"\nretry = [{ delay = "1s" }]',
            '.retry: expected `pattern = "recommended"` in the same queue, got an array',
        ),
        (
            'retry = [{ delay = "1s" }]\narguments = { x-overflow = "drop-head" }',
            '.arguments.x-overflow: expected no argument that the pattern sets, got "drop-head"',
        ),
        (
            'retry = [{ delay = "1s" }]\narguments = { x-delivery-limit = 5 }',
            ".arguments.x-delivery-limit: expected no argument that the pattern sets (use"
            " `delivery_limit`), got 5",
        ),
        ("retry = 5", '.retry: expected an array such as `["30s", "5m"]`, got 5'),
        ('retry = "30s"', '.retry: expected an array such as `["30s", "5m"]`, got "30s"'),
        (
            'retry = ["30s", "5 minutes"]',
            ".retry[1]: expected a duration like 250ms, 30s, 5m, 1h30m or 7d (at most 3650d),"
            ' got "5 minutes"',
        ),
        ('retry = ["5m", { delay = "30s" }]', ".retry[1].delay: expected a delay no shorter than the tier before it (5m), got 30s"),
        ('retry = ["5m", "30s"]', ".retry[1]: expected a delay no shorter than the tier before it (5m), got 30s"),
        ('retry = ["0s"]', ".retry[0]: expected a delay longer than 0s, got 0s"),
        ("consumers = 1", ".consumers: expected true or false, got 1"),
        ('consumers = false\ntype = "quroum"', '.type: expected "classic", "quorum" or "stream", got "quroum" (did you mean "quorum"?)'),
        ("consumers = false\narguments = 5", ".arguments: expected a table, got 5"),
        ("consumers = false\narguments = [5]", ".arguments: expected a table, as in [queues.q.arguments.NAME], got an array"),
        (
            "consumers = false\narguments = { x-queue-type = 'quorum' }",
            '.arguments.x-queue-type: expected no such argument, because `type` sets the queue type, got "quorum"',
        ),
        (
            "consumers = false\narguments = { t = 2020-01-01 }",
            ".arguments.t: expected an AMQP value: true, false, a number, text, an array or a"
            " table, got a date or time",
        ),
        (
            "consumers = false\nretry = [{ delay = '1s' }]\npattern = 'recommended'",
            ".consumers: expected no failure plan for a queue without consumers, got one",
        ),
    ],
)  # fmt: skip
def test_queue_problem_is_reported_once(text: str, expected: str) -> None:
    assert problems_of(f"[queues.q]\n{text}") == [f"queues.q{expected}"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[[bindings]]\nexchange = "amq.topic"', "bindings[0].queue: expected the name of a queue, or `to_exchange`, got nothing"),
        (
            '[exchanges.x]\n[[bindings]]\nexchange = "x"\nto_exchange = "x"\nqueue = "q"\n[queues.q]\nconsumers = false',
            "bindings[0].to_exchange: expected either `queue` or `to_exchange`, got both",
        ),
        ('[policies.p]\npattern = "x"\ndefinition = {}', "policies.p.definition: expected at least one key, got none"),
        ("[policies.p]\ndefinition = { a = 1 }", "policies.p.pattern: expected a regular expression, got nothing"),
        ('[policies.p]\npattern = "x"\ndefinition = { expires = 0 }', "policies.p.definition.expires: expected a whole number from 1 to 315360000000, got 0"),
        ('[policies.p]\npattern = "x"\npriority = "1"\ndefinition = { a = 1 }', 'policies.p.priority: expected a whole number, got "1"'),
        ('[policies.p]\npattern = "x"\napply_to = "queue"\ndefinition = { a = 1 }', 'policies.p.apply_to: expected "all", "queues", "exchanges", "classic_queues", "quorum_queues" or "streams", got "queue" (did you mean "queues"?)'),
        ("foreign = 5", "foreign: expected a table, got 5"),
        ("[[queues]]\nname = \"q\"", "queues: expected a table, as in [queues.NAME], got an array"),
        ('exchanges = []', "exchanges: expected a table, got an empty array"),
        ('bindings = 1.5', "bindings: expected an array, got 1.5"),
        ('name = ""', 'name: expected 1 to 255 bytes, got ""'),
    ],
)  # fmt: skip
def test_other_problems_are_reported_once(text: str, expected: str) -> None:
    assert problems_of(text) == [expected]


def test_bindings_may_be_under_exchange() -> None:
    found = read_toml(
        """
        [exchanges.inner]
        bindings = [{ exchange = "outer", key = "a" }, { exchange = "amq.topic" }]
        [exchanges.outer]
        [[bindings]]
        exchange = "outer"
        to_exchange = "inner"
        key = "b"
        """
    )
    assert found.bindings == (
        Binding("outer", "inner", "a", to_exchange=True),
        Binding("amq.topic", "inner", to_exchange=True),
        Binding("outer", "inner", "b", to_exchange=True),
    )


def test_plan_is_read_in_every_detail() -> None:
    plan = read_toml(
        """
        exchanges.x = {}
        queues.main = {}
        queues.wait.pattern = "none"
        queues.rest.pattern = "none"
        [plans.main]
        attempts = 3
        leave = "reject"
        returns = "exchange"
        count = "x-death"
        snooze = { max = "3s" }
        snooze_exhausts = true
        retry_stamps = [{ header = "h", fact = "attempt", once = true }]
        parking = { queue = "rest", by = "reject", exchange = "x", key = "k" }
        redrive = { exchange = "x", key = "r", reset = false, keep_deaths = true }
        tiers = [{ delay = 500, name = "short", routes = [
            { queue = "wait", exchange = "x", key = "w", pattern = "a.#" }] }]
        """
    ).plan("main")
    assert plan is not None
    assert (plan.leave, plan.returns, plan.count) == (Leave.REJECT, Return.EXCHANGE, Count.X_DEATH)
    assert plan.snooze == LocalWait(500, 3000)
    assert plan.snooze_exhausts
    assert plan.retry_stamps == (Stamp("h", Fact.ATTEMPT, once=True),)
    assert plan.parking == Parking("rest", Leave.REJECT, "x", "k")
    assert plan.redrive == Redrive("x", "r", reset=False, keep_deaths=True)
    assert plan.tiers == (Tier("short", 500, (Route("x", "w", "wait", "a.#"),)),)


def test_invalid_plan_reports_all_problems() -> None:
    assert problems_of(
        """
        [queues.main]
        [plans.main]
        leave = "rejekt"
        tiers = [{ name = "x" }, { delay = "1s", routes = [{ key = "k" }] }]
        park_stamps = [{ fact = "noww" }]
        """
    ) == [
        "plans.main.parking: expected a table, got nothing",
        "plans.main.attempts: expected how often the handler may run, got nothing",
        "plans.main.tiers[0].delay: expected a duration like 30s, got nothing",
        "plans.main.tiers[1].routes[0].queue: expected the name of the retry queue, got nothing",
        'plans.main.leave: expected "reject" or "publish", got "rejekt" (did you mean "reject"?)',
        "plans.main.park_stamps[0].header: expected the name of a header, got nothing",
        'plans.main.park_stamps[0].fact: expected "now", "queue", "attempt", "retries", "reason",'
        ' "error", "status", "origin-exchange" or "origin-routing-key", got "noww" (did you mean'
        ' "now"?)',
        "plans.main.tiers[0].routes: expected at least one route into a retry queue, got none",
    ]


def test_invalid_topology_is_not_written() -> None:
    twice = Topology("t", queues=(Queue("q"), Queue("q")))
    with pytest.raises(InvalidTopology, match=r"queues\.q: expected one declaration of this name"):
        write_toml(twice)


def test_recommended_pattern_is_written_in_short_form() -> None:
    text = examples()[0]
    written = write_toml(read_toml(text))
    assert "[queues.orders]\nretry = [" in written
    assert "orders.retry.30s" not in written
    assert "plans" not in written
    assert not written.startswith('name = "shop"\nbindings')
    assert "attempts = 10" in written
    assert 'consumers = false\ntype = "stream"' in written


@pytest.mark.parametrize(
    "text",
    [
        'retry = [{ delay = "1s" }]\ndelivery_limit = 7\narguments = { x-max-length = 5 }',
        'retry = [{ delay = "1s" }]\nattempts = 9',
    ],
)
def test_options_of_short_form_are_written(text: str) -> None:
    topology = read_toml(f"[queues.q]\n{text}")
    written = write_toml(topology)
    assert "plans" not in written
    assert read_toml(written) == topology


def test_ungrouped_bindings_are_written_as_list() -> None:
    topology = read_toml(examples()[0])
    feeding = Binding("shop.events", "orders.dlq", "lost")
    for changed in (
        replace(topology, bindings=topology.bindings[::-1]),
        replace(topology, bindings=(*topology.bindings, feeding)),
    ):
        written = write_toml(changed)
        assert written.startswith('name = "shop"\nbindings = [\n')
        assert "plans" not in written
        assert read_toml(written) == changed
    backwards = replace(topology, queues=topology.queues[::-1])
    assert "plans" in write_toml(backwards)
    assert read_toml(write_toml(backwards)) == backwards


@pytest.mark.parametrize(
    "changes",
    [
        {"x-delivery-limit": None},
        {"x-delivery-limit": 0},
        {"x-overflow": "drop-head"},
    ],
)
def test_deviation_from_pattern_is_written_in_full(changes: dict[str, str | int]) -> None:
    plan = recommend_plan("q", tiers_ms=[1000])
    main, *others = harden_queues(plan)
    arguments = {**main.arguments, **changes}
    arguments = {key: value for key, value in arguments.items() if value is not None}
    topology = Topology("t", queues=(replace(main, arguments=arguments), *others), plans=(plan,))
    assert "[plans.q]" in write_toml(topology)
    assert read_toml(write_toml(topology)) == topology


def test_other_queues_and_plans_are_written_in_full() -> None:
    plan = recommend_plan("q", tiers_ms=[1000])
    main, retry, parked = harden_queues(plan)
    longer = replace(retry, arguments={**retry.arguments, "x-max-length": 5})
    for queues, own in (
        ((main, longer, parked), plan),
        ((main, retry, parked), replace(plan, attempts=1, tiers=())),
        ((main, retry, parked), replace(plan, park_stamps=(Stamp("h", Fact.NOW, once=True),))),
    ):
        topology = Topology("t", queues=queues, plans=(own,))
        assert "[plans.q]" in write_toml(topology)
        assert read_toml(write_toml(topology)) == topology


def test_wait_of_zero_is_written_in_full() -> None:
    plan = recommend_plan("q", tiers_ms=[])
    tier = Tier("now", 0, (Route("", "q.now", "q.now"),))
    odd = replace(plan, tiers=(tier,), attempts=2)
    own = (*harden_queues(plan), Queue("q.now", arguments={"x-message-ttl": 0}))
    assert read_toml(write_toml(Topology("t", queues=own, plans=(odd,)))).plan("q") == odd
