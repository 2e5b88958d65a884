"""Dead letters and filters handle every input."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from hopback.errors import BadFilter
from hopback.ops.messages.dead_letter import last_failure, read_dead_letter
from hopback.ops.messages.filters import parse_filter
from hopback.ops.messages.story import describe_failure, timeline
from hopback.text import text_matches
from tests.properties.hostile import PLANS, deliveries, no_deadline

if TYPE_CHECKING:
    from hopback.message import Received

_NOW = 1_700_000_000.0
_HOSTILE = st.sampled_from(PLANS).flatmap(deliveries)
_TERMS = st.sampled_from(
    ("reason:*", "origin:q*", "age>1s", "size<1MB", "header.CC:*", "payload.a.0:1", "group:abcd")
)


@no_deadline
@given(_HOSTILE, st.integers(1, 10**6))
def test_every_delivery_is_a_dead_letter(delivery: Received, place: int) -> None:
    """Its ID is stable, and the failure is described in a sentence."""
    dead_letter = read_dead_letter(delivery, place)
    assert dead_letter == read_dead_letter(delivery, place)
    assert dead_letter.id == f"{place}-{dead_letter.digest[:16]}"
    assert dead_letter.fingerprint
    # The fingerprint is also read separately and must be the same.
    assert last_failure(delivery) == (dead_letter.fingerprint, dead_letter.last_failed)
    assert describe_failure(dead_letter).endswith(".")
    assert all(event.what for event in timeline(delivery, dead_letter))


@no_deadline
@given(_HOSTILE, st.lists(_TERMS, max_size=4))
def test_filter_matches_exactly_if_all_terms_match(delivery: Received, terms: list[str]) -> None:
    dead_letter = read_dead_letter(delivery, 1)
    each = [parse_filter(term).matches(dead_letter, delivery, _NOW) for term in terms]
    assert parse_filter(" ".join(terms)).matches(dead_letter, delivery, _NOW) is all(each)


@no_deadline
@given(st.text(max_size=60), _HOSTILE)
def test_any_text_is_a_filter_or_bad_filter(text: str, delivery: Received) -> None:
    """BadFilter names a part of the text."""
    bad: BadFilter | None = None
    try:
        found = parse_filter(text)
    except BadFilter as error:
        bad = error
    else:
        assert found.matches(read_dead_letter(delivery, 1), delivery, _NOW) in (True, False)
    assert bad is None or (bad.term in text and bad.expected)


@no_deadline
@given(st.text("ab*", max_size=8), st.text("ab", max_size=10))
def test_star_matches_like_fnmatch(pattern: str, text: str) -> None:
    assert text_matches(pattern, text) is fnmatch.fnmatchcase(text, pattern)
