"""Routing matches short reference definitions."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopback.topology.model import Binding, Exchange, ExchangeType
from hopback.topology.routing import RoutingTable, topic_matches

WORDS = ("a", "b", "")
PATTERN_WORDS = ("a", "", "*", "#")


def is_match(pattern: list[str], key: list[str]) -> bool:
    """The definition: `#` matches zero or more words, `*` exactly one."""
    if not pattern:
        return not key
    first, rest = pattern[0], pattern[1:]
    if first == "#":
        return any(is_match(rest, key[taken:]) for taken in range(len(key) + 1))
    return bool(key) and first in ("*", key[0]) and is_match(rest, key[1:])


def words(text: str) -> list[str]:
    """Split a routing key. An empty key has no words."""
    return text.split(".") if text else []


def keys_up_to(alphabet: tuple[str, ...], longest: int) -> list[str]:
    """Return every key of up to `longest` words."""
    return [".".join(key) for size in range(longest + 1) for key in product(alphabet, repeat=size)]


def test_topic_matching_follows_definition_for_every_short_key_and_pattern() -> None:
    """All patterns of up to four words with all keys of up to four words."""
    keys = keys_up_to(WORDS, 4)
    for pattern in keys_up_to(PATTERN_WORDS, 4):
        parts = words(pattern)
        assert [topic_matches(pattern, key) for key in keys] == [
            is_match(parts, words(key)) for key in keys
        ], pattern


@given(
    st.lists(st.sampled_from(["a", "bb", "#", "*", "ü"]), max_size=8).map(".".join),
    st.lists(st.sampled_from(["a", "bb", "ü", "#", "*", "c"]), max_size=10).map(".".join),
)
def test_topic_matching_follows_definition_for_long_patterns(pattern: str, key: str) -> None:
    """Also for keys with wildcard characters as words."""
    parts = words(pattern)
    assert topic_matches(pattern, key) == is_match(parts, words(key))


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
def test_topic_matching_of_known_edge_cases(pattern: str, key: str, expected: bool) -> None:
    """Other broker substitutes differ from RabbitMQ in these cases."""
    assert topic_matches(pattern, key) is expected


patterns = st.lists(st.sampled_from(["a", "b", "#", "*"]), max_size=3).map(".".join)
topics = st.tuples(st.sampled_from("XYZ"), st.sampled_from(["p", "q", "X", "Y", "Z"]), patterns)


@given(st.lists(topics, max_size=8), st.sampled_from("XYZ"), patterns)
def test_topic_table_routes_through_any_graph_of_exchanges(
    bound: list[tuple[str, str, str]], start: str, key: str
) -> None:
    """Including cycles. The result is sorted."""
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
            if source in reached and is_match(words(pattern), words(key))
        }
    expected = tuple(sorted(name for name in reached if name.islower()))
    assert table.route(start, key) == expected
    assert table.route(start, key) == expected, "cached routes differ"
    assert table.route_keys(start, [key]) == expected
