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
    turn_of,
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
def test_message_redelivered_four_times_is_suspected(delivery: Received, suspected: bool) -> None:
    """Flag and count must agree, because a count alone may be forged or stale."""
    assert is_suspected(delivery) is suspected


@pytest.mark.parametrize(
    ("limit", "ordinary"),
    [(None, 3), (-1, 3), ("20", 3), (200, 3), (10, 3), (9, 3), (8, 2), (6, 2), (5, 1), (1, 1)],
)
def test_low_delivery_limit_allows_fewer_returns(limit: object, ordinary: int) -> None:
    assert ordinary_returns(limit) == ordinary


def test_least_redelivered_message_is_first_unless_another_is_near_its_limit() -> None:
    turns = {returns: turn_of(_delivery(returns), 10) for returns in range(4, 12)}
    assert sorted(turns, key=turns.__getitem__) == [11, 10, 9, 8, 4, 5, 6, 7]


@pytest.mark.parametrize("limit", [None, -1, "10", 200])
def test_message_far_from_any_limit_waits_for_its_turn(limit: object) -> None:
    assert turn_of(_delivery(4), limit) < turn_of(_delivery(11), limit)


def test_plans_that_requeue_by_design_suspect_no_message() -> None:
    """Examples are reject loops and local snoozes."""
    for name in ("file-pipeline", "event-bus", "freeflow", "raffle", "ratatoskr"):
        for plan in DESIGNS[name].build().plans:
            if plan.snooze is not None or plan.leave == "reject":
                assert not can_suspect(plan)
    assert can_suspect(recommend_plan("orders", tiers_ms=[1000]))


def test_three_deaths_park_with_reason() -> None:
    assert [deadly(deaths) for deaths in range(3)] == [None] * 3
    said = "the process died 3 times while this message alone was being handled"
    assert deadly(3) == Park(said)


def test_suspect_token_is_stable_until_attempt_changes() -> None:
    plan = recommend_plan("orders", tiers_ms=[1000])
    first = suspect_token(Reading(_delivery(2), plan))
    assert suspect_token(Reading(_delivery(3), plan)) == first
    retried = _delivery(2, {"hopback-queue": "orders", "hopback-attempts": 1})
    assert suspect_token(Reading(retried, plan)) != first
    assert suspect_token(Reading(_delivery(2, {"hopback-redrives": 1}), plan)) != first
