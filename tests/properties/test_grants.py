"""The queues that a grant covers, for every pattern and name."""

from __future__ import annotations

import fnmatch

from hypothesis import given
from hypothesis import strategies as st

from hopback.ops.contract.roles import Grant, Role
from tests.properties.hostile import no_deadline


@no_deadline
@given(st.text("ab*", max_size=8), st.text("ab\n", max_size=10))
def test_star_of_a_grant_matches_like_fnmatch(pattern: str, queue: str) -> None:
    """The complete name must match."""
    grant = Grant(Role.VIEWER, (pattern,))
    assert grant.covers(queue) is fnmatch.fnmatchcase(queue, pattern)


def test_only_star_is_special_in_a_grant() -> None:
    grant = Grant(Role.VIEWER, ("eu.[a]?*.dlq",))
    assert grant.covers("eu.[a]?orders.dlq")
    assert not grant.covers("eu-a1orders.dlq")
