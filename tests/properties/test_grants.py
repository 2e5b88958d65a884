"""The queues that a grant covers, for every pattern and name."""

from __future__ import annotations

import fnmatch

from hypothesis import given
from hypothesis import strategies as st

from hopback.ops.contract.roles import Grant, Role
from tests.properties.hostile import moderately


@moderately
@given(st.text("ab*", max_size=8), st.text("ab\n", max_size=10))
def test_stars_of_a_grant_mean_what_shells_mean(pattern: str, queue: str) -> None:
    """Only the star is special, and the whole name has to match."""
    grant = Grant(Role.VIEWER, (pattern,))
    assert grant.covers(queue) is fnmatch.fnmatchcase(queue, pattern)


def test_only_the_star_is_special() -> None:
    """Dots, brackets and question marks in a pattern are themselves."""
    grant = Grant(Role.VIEWER, ("eu.[a]?*.dlq",))
    assert grant.covers("eu.[a]?orders.dlq")
    assert not grant.covers("eu-a1orders.dlq")
