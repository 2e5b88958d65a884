"""Routing against definitions short enough to be seen right."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopback.topology.model import Binding, Exchange, ExchangeType
from hopback.topology.routing import RoutingTable, topic_matches

WORDS = ("a", "b", "")
PATTERN_WORDS = ("a", "", "*", "#")


def defined(pattern: list[str], key: list[str]) -> bool:
    """The rule as one would say it: `#` zero or more words, `*` exactly one."""
    if not pattern:
        return not key
    first, rest = pattern[0], pattern[1:]
    if first == "#":
        return any(defined(rest, key[taken:]) for taken in range(len(key) + 1))
    return bool(key) and first in ("*", key[0]) and defined(rest, key[1:])


def words(text: str) -> list[str]:
    """An empty routing key has no words."""
    return text.split(".") if text else []


def texts(alphabet: tuple[str, ...], longest: int) -> list[str]:
    """Every key of up to `longest` words."""
    return [".".join(key) for size in range(longest + 1) for key in product(alphabet, repeat=size)]


def test_topic_matching_is_the_definition_for_every_short_key_and_pattern() -> None:
    """Exhaustively: every pattern of up to four words against every key of up to four words."""
    keys = texts(WORDS, 4)
    for pattern in texts(PATTERN_WORDS, 4):
        parts = words(pattern)
        assert [topic_matches(pattern, key) for key in keys] == [
            defined(parts, words(key)) for key in keys
        ], pattern


@given(
    st.lists(st.sampled_from(["a", "bb", "#", "*", "ü"]), max_size=8).map(".".join),
    st.lists(st.sampled_from(["a", "bb", "ü", "#", "*", "c"]), max_size=10).map(".".join),
)
def test_topic_matching_is_the_definition_for_longer_ones(pattern: str, key: str) -> None:
    """Longer patterns, and keys whose words read like wildcards, follow the definition too."""
    parts = words(pattern)
    # In a key `*` and `#` are words; the definition compares them as such.
    assert topic_matches(pattern, key) == defined(parts, words(key))


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        ("a.#", "a", True),
        ("a.#.c", "a.c", True),
        ("a.*", "a.b.c", False),
        ("*", "", False),
        ("#", "", True),
        ("", "", True),
        ("a.*", "a.", True),
    ],
)
def test_topic_matching_of_cases_that_others_got_wrong(
    pattern: str, key: str, expected: bool
) -> None:
    """The cases in which well-known fakes differ from the broker."""
    assert topic_matches(pattern, key) is expected


patterns = st.lists(st.sampled_from(["a", "b", "#", "*"]), max_size=3).map(".".join)
topics = st.tuples(st.sampled_from("XYZ"), st.sampled_from(["p", "q", "X", "Y", "Z"]), patterns)


@given(st.lists(topics, max_size=8), st.sampled_from("XYZ"), patterns)
def test_a_topic_table_reaches_what_repeated_matching_reaches(
    bound: list[tuple[str, str, str]], start: str, key: str
) -> None:
    """Through any web of exchanges, cycles too: exactly the queues on a matching path, sorted."""
    table = RoutingTable(
        [Exchange(name, ExchangeType.TOPIC) for name in "XYZ"],
        ["p", "q"],
        [Binding(source, to, pattern, to.isupper()) for source, to, pattern in bound],
    )
    reached = {start}
    for _ in bound:
        reached |= {
            to
            for source, to, pattern in bound
            if source in reached and defined(words(pattern), words(key))
        }
    expected = tuple(sorted(name for name in reached if name.islower()))
    assert table.route(start, key) == expected
    assert table.route(start, key) == expected, "and the same from memory"
    assert table.route_keys(start, [key]) == expected
