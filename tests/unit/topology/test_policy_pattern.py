"""Patterns of policies match the names that they match at the broker, and take bounded time."""

from __future__ import annotations

import time

import pytest

from hopback.broker.embedded.profile import PROFILES
from hopback.broker.embedded.settings import Policies
from hopback.topology.check import check
from hopback.topology.effective import effective_policy
from hopback.topology.model import Policy, Queue, Topology
from hopback.topology.policy_pattern import pattern_flaw, pattern_matches

HOSTILE = "a" * 42 + "!"

# The answers of Erlang's `re:run(Name, Pattern, [{capture, none}])`.
ERLANG = [
    ("", "anything", True),
    (".*", "", True),
    ("^orders", "orders.retry", True),
    ("^orders", "my.orders", False),
    ("orders", "my.orders", True),
    (r"^orders\.", "ordersX", False),
    (r"^(?!amq\.).*", "amq.gen-1", False),
    (r"^(?!amq\.).*", "orders", True),
    (r"(?<!\.dlq)$", "orders.dlq", False),
    (r"(?<=\.)dlq$", "orders.dlq", True),
    ("^[a-c]{2,3}$", "abca", False),
    ("^[a-c]{2,3}$", "abc", True),
    ("^a{2}$", "aa", True),
    ("^a{,2}$", "a{,2}", True),
    ("^[^]a]+$", "bcd", True),
    ("^[]a]+$", "]a]", True),
    (r"^[\d-b]$", "-", True),
    ("^[[:upper:][:digit:]]+$", "A1", True),
    ("^[[:^alpha:]]+$", "1a", False),
    (r"\bdlq\b", "orders-dlq", True),
    (r"\bdlq\b", "orders_dlq", False),
    (r"^\w+$", "größe", False),  # in bytes, of which one is no Latin-1 letter
    ("^.{6}$", "größe", False),
    ("^.{7}$", "größe", True),
    ("(?i)^ORDERS", "Orders", True),
    ("^(?i:o)RDERS", "Orders", False),
    ("^(?i)a(?-i:b)$", "Ab", True),
    ("^(?i)a(?-i:b)$", "AB", False),
    ("^a.b$", "a\nb", False),
    ("^a$", "a\n", True),
    (r"^a\z", "a\n", False),
    (r"^\Qa.b\E$", "a.b", True),
    (r"^\Qa.b\E$", "axb", False),
    (r"^a.*?b$", "aXXb", True),
    (r"^\Q\Ea$", "a", True),
    (r"^\E\Qab\E+$", "abb", True),
    ("^(?P<x>a)(?<y>b)(?'z'c)$", "abc", True),
    (r"^a\nb$", "a\nb", True),
    (r"^[\b]$", "\b", True),
    ("^[[:alpha:x]+$", "x", True),
    ("^[[:x]$", ":", True),
    ("^b{2}$", "ab", False),
    ("a?b?c$", "xc", True),
    (r"\Bdlq", "orders_dlq", True),
    (r"\Bdlq", "orders-dlq", False),
    (r"(?i)^[\W_]$", "a", False),
    ("(?i)^\u07c0$", "\u07c0", True),  # its first byte is ß in Latin-1, without another case
    (r"^[^\s\S]$", "a", False),
    ("^(?=a)(aa)*$", "a" * 30, True),
    ("^(?!b)(aa)*$", "a" * 31, False),
    (r"^orders\..*\.retry\..*$", "orders.eu.retry.5m", True),
    (r"orders.*retry.*\d", "my.orders.retry.5m", True),
    ("^a{2,200}$", "a" * 199, True),
    ("^(a|b){2,3}(.*)$", "abXX", True),
    ("^(.*-){2}x$", "a-b-x", True),
    ("^(orders|mails)$", "mails", True),
    ("^(orders|mails)?.dlq$", "mails.dlq", True),
    ("^x(orders|mails){2}$", "xordersmails", True),
    ("^a{2,3}b$", "aaab", True),
]


@pytest.mark.parametrize(("pattern", "name", "matches"), ERLANG)
def test_policy_pattern_matches_like_broker(pattern: str, name: str, *, matches: bool) -> None:
    assert pattern_matches(pattern, name) is matches


@pytest.mark.parametrize(
    "pattern",
    [
        "(a", "a)", "*a", "a**", "[z-a]", "[a", "a{2,1}", "a{65536}", "\\", "^*", "[[:x:]]",
        "{2}a", r"[a-\d]", "(?<x",
    ],
)  # fmt: skip
def test_policy_pattern_refused_by_broker_is_refused(pattern: str) -> None:
    flaw = pattern_flaw(pattern)
    assert flaw is not None
    assert flaw.refused
    assert pattern_matches(pattern, "a") is None


@pytest.mark.parametrize(
    "pattern",
    [
        "a++",
        r"(a)\1",
        "(?>a)",
        "a(*FAIL)",
        r"[\Qa\E]",
        "(?R)",
        "(?x)a",
        "(?m)a",
        "(?s)a",
        r"\x61",
        "(?<=a+)b",
        "(?<=a{300})b",
        "^(a+)+$",
        "^(a|aa)+$",
        "^(a|a?)+$",
        "(x+x+)+y",
        "^((a*)*)*b",
        "^(a|b|ab)*c$",
        "^(a|b){13}$",
        "^((){200}){200}$",
        "^(){65535}$",
        "^a*b*c*d*e*f$",
        "(" * 50 + "a" + ")" * 50,
        "a" * 5000,
    ],
)
def test_unevaluated_pattern_is_neither_true_nor_false(pattern: str) -> None:
    flaw = pattern_flaw(pattern)
    assert flaw is not None
    assert not flaw.refused
    assert pattern_matches(pattern, "a") is None


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("^(a|a){12}b", "a" * 255),
        ("^.*.*a{100}b", "a" * 255),
        ("a*?a+b", "a" * 255),
        ("(a|a){8}b", "a" * 255),
        ("^(a|b|c|d){4}.*(?=.*x)y", "a" * 255),
        ("^(){200}a*(?:a?){16}b", "a" * 12),
    ],
)
def test_evaluated_pattern_answers_within_a_second(pattern: str, name: str) -> None:
    before = time.process_time()
    assert pattern_matches(pattern, name) is not True
    assert time.process_time() - before < 1


def test_pattern_with_too_many_ways_for_a_name_is_reported() -> None:
    pattern = "^.*a.*a.*a.*!$"
    assert pattern_flaw(pattern) is None
    assert pattern_matches(pattern, "aaa!") is True
    assert pattern_matches(pattern, "a" * 255) is None
    topology = Topology(
        "t", queues=(Queue("a" * 255),), policies=(Policy("p", pattern, {"message-ttl": 1}),)
    )
    assert "policy-pattern-not-evaluated" in {each.rule for each in check(topology)}


def test_hostile_pattern_applies_to_no_queue_and_is_reported() -> None:
    policy = Policy("p", "^(a+)+$", {"expires": 1})
    assert effective_policy(Queue(HOSTILE), (policy,)) is None
    found = check(Topology("t", queues=(Queue("aaa"),), policies=(policy,)))
    assert "policy-pattern-not-evaluated" in {each.rule for each in found}


@pytest.mark.parametrize("pattern", ["^(a+)+$", "a++"])
def test_embedded_broker_accepts_a_pattern_that_is_not_evaluated(pattern: str) -> None:
    policies = Policies(PROFILES[-1], lambda: None)
    policies.put(Policy("q", pattern, {"max-length": 7}))
    assert [policy.name for policy in policies.all()] == ["q"]


def test_embedded_broker_refuses_a_pattern_that_rabbitmq_refuses() -> None:
    policies = Policies(PROFILES[-1], lambda: None)
    with pytest.raises(ValueError, match="expected a regular expression"):
        policies.put(Policy("q", "(a", {"max-length": 7}))
