"""Patterns of policies: what matches at the broker matches here, and none takes long."""

from __future__ import annotations

import pytest

from hopback.broker.embedded.profile import PROFILES
from hopback.broker.embedded.settings import Policies
from hopback.topology.check import check
from hopback.topology.effective import applied_policy
from hopback.topology.model import Policy, Queue, Topology
from hopback.topology.policy_pattern import pattern_flaw, pattern_matches

HOSTILE = "a" * 42 + "!"

# What Erlang's `re:run(Name, Pattern, [{capture, none}])` answers.
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
    ("^(a|b|ab)*c$", "ababbac", True),
    ("^(a|b|ab)*c$", "ababbad", False),
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
    ("(?s)^a.b$", "a\nb", True),
    ("(?m)^b$", "a\nb", True),
    ("^a$", "a\n", True),
    (r"^a\z", "a\n", False),
    (r"^\Qa.b\E$", "a.b", True),
    (r"^\Qa.b\E$", "axb", False),
    (r"^a.*?b$", "aXXb", True),
    (r"^\x61\x{62}$", "ab", True),
    (r"^\Q\Ea$", "a", True),
    (r"^\E\Qab\E+$", "abb", True),
    ("^(?P<x>a)(?<y>b)(?'z'c)$", "abc", True),
    (r"^a\nb$", "a\nb", True),
    (r"^[\b]$", "\b", True),
    ("^[[:alpha:x]+$", "x", True),
    ("^[[:x]$", ":", True),
    (r"^(?i)[\xff\xdf]$", "a", False),
    ("^b{2}$", "ab", False),
    ("(?m)a$", "a\nb", True),
    ("^(?=a)((a*)*)*$", "a" * 30, True),
    ("^(?!b)((a*)*)*$", "a" * 30, True),
    ("^(?=b)((a*)*)*$", "a" * 30, False),
    ("^b{2}((a*)*)*$", "bxa", False),
    ("a?b?c$", "xc", True),
    ("^(orders|mails)$", "mails", True),
    ("^(orders|mails)?.dlq$", "mails.dlq", True),
    ("^x(orders|mails){2}$", "xordersmails", True),
    ("^a{2,3}b$", "aaab", True),
    (r"^((a*)*)*\z", "a" * 255 + "!", False),
    ("^((a|b)(?<=b))+$", "b" * 30 + "a", False),
    ("^(a+)+$", HOSTILE, False),
    ("^(a|aa)+$", HOSTILE, False),
    ("^(a|a?)+$", HOSTILE, False),
    ("(x+x+)+y", "x" * 255, False),
    ("^((a*)*)*b", "a" * 255, False),
]


@pytest.mark.parametrize(("pattern", "name", "matches"), ERLANG)
def test_it_answers_as_the_broker_does(pattern: str, name: str, *, matches: bool) -> None:
    """Also where one way after another would take longer than anybody waits."""
    assert pattern_matches(pattern, name) is matches


@pytest.mark.parametrize(
    "pattern",
    [
        "(a", "a)", "*a", "a**", "[z-a]", "[a", "a{2,1}", "a{65536}", "\\", "^*", "[[:x:]]",
        "{2}a", r"\x{100}", r"[a-\d]", "(?<x",
    ],
)  # fmt: skip
def test_what_the_broker_refuses_is_refused(pattern: str) -> None:
    """It matches nothing, and the flaw says that no broker has such a policy."""
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
        "(" * 50 + "a" + ")" * 50,
        "a" * 5000,
    ],
)
def test_what_is_not_evaluated_is_neither_true_nor_false(pattern: str) -> None:
    """The broker may take it; we do not say."""
    flaw = pattern_flaw(pattern)
    assert flaw is not None
    assert not flaw.refused
    assert pattern_matches(pattern, "a") is None


def test_too_many_steps_are_not_taken() -> None:
    """Counted repetition within counted repetition is given up, and reported."""
    endless = "^(((a?){200}){200}){200}$"
    assert pattern_flaw(endless) is None
    assert pattern_matches(endless, "a" * 255 + "!") is None
    topology = Topology(
        "t", queues=(Queue("a" * 255),), policies=(Policy("p", endless, {"message-ttl": 1}),)
    )
    assert "policy-pattern-not-evaluated" in {each.rule for each in check(topology)}


def test_a_hostile_pattern_does_not_hold_up_the_effective_topology() -> None:
    """The queue has no policy, as at the broker."""
    assert applied_policy(Queue(HOSTILE), (Policy("p", "^(a+)+$", {"expires": 1}),)) is None


def test_the_embedded_broker_applies_it_too() -> None:
    """Setting it and asking for a queue's settings answers at once."""
    policies = Policies(PROFILES[-1], lambda: None)
    policies.put(Policy("p", "^(a+)+$", {"max-length": 7}))
    assert policies.settings(HOSTILE, {}).max_length is None
    assert policies.settings("aaa", {}).max_length == 7
    with pytest.raises(ValueError, match="possessive"):
        policies.put(Policy("q", "a++", {"max-length": 7}))
