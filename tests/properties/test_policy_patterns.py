"""Patterns of policies match like Python's `re` if both have the same meaning."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from hopback.topology.policy_pattern import pattern_flaw, pattern_matches

_ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\.", r"\d", "(?=a)", "(?!b)", "(?<=a)"])
_REPEATS = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{1,2}", "{2,}", "*?"])
_ANCHORS = st.sampled_from(["", "", "^", "$"])


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    repeated = st.builds("({}){}".format, inner, _REPEATS)
    either = st.builds("({}|{})".format, inner, inner)
    return st.lists(repeated | either | inner, min_size=1, max_size=3).map("".join)


_PARTS = st.builds("{}{}".format, _ATOMS.filter(lambda one: not one.startswith("(")), _REPEATS)
_PATTERNS = st.builds(
    "{}{}{}".format, _ANCHORS, st.recursive(_PARTS | _ATOMS, _larger, max_leaves=6), _ANCHORS
)


_FLAT = st.builds(
    "{}{}{}".format,
    _ANCHORS,
    st.lists(_PARTS | _ATOMS | st.builds("({}|{})".format, _ATOMS, _ATOMS), max_size=4).map(
        "".join
    ),
    _ANCHORS,
)


@given(_FLAT, st.text("ab.1", max_size=8))
def test_flat_patterns_match_like_re(pattern: str, name: str) -> None:
    """Repetition, alternatives and anchors without nesting are always evaluated."""
    assert pattern_flaw(pattern) is None
    assert pattern_matches(pattern, name) is (re.search(pattern, name) is not None)


@given(_PATTERNS, st.text("ab.1", max_size=8))
def test_nested_patterns_match_like_re_or_have_no_answer(pattern: str, name: str) -> None:
    flaw, answer = pattern_flaw(pattern), pattern_matches(pattern, name)
    assert answer in (None, re.search(pattern, name) is not None)
    assert answer is None or flaw is None
    assert flaw is None or not flaw.refused


@given(st.text(max_size=40), st.text(max_size=20))
def test_any_text_is_a_pattern_or_has_a_flaw(pattern: str, name: str) -> None:
    answer = pattern_matches(pattern, name)
    assert answer is None or pattern_flaw(pattern) is None


@given(st.text("()[]{}^$.*+?|\\\\,-:=!<>aAbdQEwx01i", max_size=30), st.text("ab.1", max_size=8))
def test_punctuation_of_patterns_never_raises(pattern: str, name: str) -> None:
    answer = pattern_matches(pattern, name)
    assert answer is None or pattern_flaw(pattern) is None
