"""Which messages are suspected of killing the process, and when they are parked for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hopback.designs import DESIGNS
from hopback.message import Properties, Received
from hopback.policy.outcome import Park
from hopback.policy.quarantine import (
    can_suspect,
    deadly,
    is_suspected,
    ordinary_returns,
    suspect_token,
)
from hopback.policy.reading import Reading
from hopback.topology.expand import recommend_plan

if TYPE_CHECKING:
    from hopback.fields import FieldValue, Headers

_NONE: Headers = {}


def _delivery(
    returns: FieldValue = None, headers: Headers = _NONE, *, redelivered: bool = True
) -> Received:
    counted: Headers = {} if returns is None else {"x-delivery-count": returns}
    properties = Properties(message_id="m", headers={**counted, **headers})
    return Received("orders", "", "orders", b"1", properties, redelivered)


@pytest.mark.parametrize(
    ("delivery", "suspected"),
    [
        (_delivery(0, redelivered=False), False),
        (_delivery(3), False),
        (_delivery(4), True),
        (_delivery(199), True),
        (_delivery(5, redelivered=False), False),
        (_delivery(None), False),
        (_delivery("many"), False),
    ],
)
def test_a_message_that_came_back_four_times_is_suspected(
    delivery: Received, suspected: bool
) -> None:
    """By the broker's flag and count together: a count alone may be anybody's, or stale."""
    assert is_suspected(delivery) is suspected


@pytest.mark.parametrize(
    ("limit", "ordinary"),
    [(None, 3), (-1, 3), ("20", 3), (200, 3), (10, 3), (9, 3), (8, 2), (6, 2), (5, 1), (1, 1)],
)
def test_a_low_delivery_limit_allows_fewer_ordinary_returns(limit: object, ordinary: int) -> None:
    assert ordinary_returns(limit) == ordinary


def test_nothing_is_suspected_where_messages_come_back_by_design() -> None:
    """Reject loops take messages round, and local snoozes give them back."""
    for name in ("file-pipeline", "event-bus", "freeflow", "raffle", "ratatoskr"):
        for plan in DESIGNS[name].build().plans:
            if plan.snooze is not None or plan.leave == "reject":
                assert not can_suspect(plan)
    assert can_suspect(recommend_plan("orders", tiers_ms=[1000]))


def test_three_deaths_convict_and_the_reason_says_so() -> None:
    """Fewer may be chance."""
    assert [deadly(deaths) for deaths in range(3)] == [None] * 3
    said = "the process died 3 times while this message alone was being handled"
    assert deadly(3) == Park(said)


def test_a_token_stays_while_the_message_comes_back_and_changes_with_its_attempt() -> None:
    """What the broker counts has no part in it."""
    plan = recommend_plan("orders", tiers_ms=[1000])
    first = suspect_token(Reading(_delivery(2), plan))
    assert suspect_token(Reading(_delivery(3), plan)) == first
    retried = _delivery(2, {"hopback-queue": "orders", "hopback-attempts": 1})
    assert suspect_token(Reading(retried, plan)) != first
    assert suspect_token(Reading(_delivery(2, {"hopback-redrives": 1}), plan)) != first
