"""Decisions in the cases that the rules at the head of `decide.py` name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from hopback.designs import event_bus, file_pipeline, freeflow, raffle, ratatoskr, recommended
from hopback.fields import Timestamp
from hopback.headers import FRAME_BYTES, frame_size
from hopback.message import Properties, Received
from hopback.policy import Done, Park, Retry, Snooze, decide
from hopback.policy import decision as decided
from hopback.topology.plan import Leave, Route
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from hopback.fields import FieldValue, Headers
    from hopback.policy import Outcome
    from hopback.policy.decision import Decision
    from hopback.topology.plan import Plan

_V310, _V313, _V40, _V43 = map(BrokerVersion.parse, ("3.10.8", "3.13.7", "4.0.5", "4.3.6"))
_AUDIT = file_pipeline().plans[-1]
_BUS = event_bus().plans[0]
_USERS = freeflow().plans[0]
_RAFFLE = raffle().plans[0]
_ORDERS = recommended().plans[0]


def _death(queue: str, reason: str = "rejected", count: FieldValue = 1) -> dict[str, FieldValue]:
    return {
        "queue": queue,
        "reason": reason,
        "count": count,
        "exchange": "",
        "routing-keys": ["k"],
        "time": Timestamp(1),
    }


def _decide(
    plan: Plan,
    outcome: Outcome,
    headers: Headers | None = None,
    *,
    version: BrokerVersion = _V40,
    key: str = "k",
    chance: float = 0.0,
) -> Decision:
    delivery = Received(plan.queue, "x", key, b"", Properties(headers=headers or {}))
    return decide(delivery, outcome, plan, version=version, chance=chance)


def _attempt_headers(plan: Plan, failures: int) -> Headers:
    return {"hopback-queue": plan.queue, "hopback-attempts": failures}


def test_done_is_acked() -> None:
    assert _decide(_AUDIT, Done(), _attempt_headers(_AUDIT, 3)) == decided.Ack()


def test_failure_leaves_by_method_of_plan() -> None:
    """By reject in the file pipeline, by publish in the raffle. The first tier is first."""
    out = decided.Retry(_AUDIT.tiers[0], _AUDIT.tiers[0].routes[0], Leave.REJECT, 1, "no")
    assert _decide(_AUDIT, Retry("no")) == out
    out = decided.Retry(_RAFFLE.tiers[0], _RAFFLE.tiers[0].routes[0], Leave.PUBLISH, 1, "no")
    assert _decide(_RAFFLE, Retry("no")) == out


@pytest.mark.parametrize(("failures", "tier"), [(0, "30s"), (1, "5m"), (2, "30m")])
def test_each_failure_waits_in_next_tier(failures: int, tier: str) -> None:
    decision = _decide(_USERS, Retry("no"), _attempt_headers(_USERS, failures))
    assert isinstance(decision, decided.Retry)
    assert (decision.tier.name, decision.attempt) == (tier, failures + 1)


def test_attempts_beyond_tiers_use_last_tier() -> None:
    plan = replace(_ORDERS, attempts=10)
    decision = _decide(plan, Retry("no"), _attempt_headers(plan, 7))
    assert isinstance(decision, decided.Retry)
    assert decision.tier is plan.tiers[-1]


@pytest.mark.parametrize(
    ("after", "tier"),
    [(0, "30s"), (30, "30s"), (30.001, "5m"), (1800, "30m"), (9999, "30m"), (float("inf"), "30m"),
     (float("nan"), "30s"), (-4, "30s"), (10**400, "30m")],
)  # fmt: skip
def test_retry_after_selects_smallest_sufficient_tier(after: float, tier: str) -> None:
    """If none is long enough, it is the last one. Invalid values are ignored."""
    decision = _decide(_USERS, Retry("no", after), _attempt_headers(_USERS, 1))
    assert isinstance(decision, decided.Retry)
    assert (decision.tier.name, decision.counted) == (tier, True)


@pytest.mark.parametrize(
    ("key", "domain"), [("user.created", "user"), ("auth.login", "auth"), ("alarm.x", "user")]
)
def test_retry_route_follows_original_routing_key(key: str, domain: str) -> None:
    """FreeFlow's users queue serves two domains with separate retry queues."""
    decision = _decide(_USERS, Retry("no"), key=key)
    assert isinstance(decision, decided.Retry)
    assert decision.route.queue == f"freeflow.{domain}.retry.30s"
    back: Headers = {"hopback-origin-routing-key": key}
    again = _decide(_USERS, Retry("no"), back, key="user.retry")
    assert isinstance(again, decided.Retry)
    assert again.route == decision.route


def test_last_failure_and_park_outcome_park_by_method_of_plan() -> None:
    """Publish in the file pipeline, reject in FreeFlow and the raffle."""
    parked = decided.Park(Leave.PUBLISH, 3, "no")
    assert _decide(_AUDIT, Retry("no"), _attempt_headers(_AUDIT, 2)) == parked
    hopeless = decided.Park(Leave.REJECT, 1, "bad")
    assert _decide(_RAFFLE, Park("bad")) == hopeless
    assert _decide(_USERS, Retry("no"), _attempt_headers(_USERS, 3)) == decided.Park(
        Leave.REJECT, 4, "no"
    )


def test_reject_loop_with_own_count_publishes() -> None:
    """Its `x-death` was stripped, so a nack would let the broker count from 0 again."""
    decision = _decide(_AUDIT, Retry("no"), _attempt_headers(_AUDIT, 1))
    assert isinstance(decision, decided.Retry)
    assert (decision.by, decision.attempt) == (Leave.PUBLISH, 2)
    zero = _decide(_AUDIT, Retry("no"), _attempt_headers(_AUDIT, 0))
    assert isinstance(zero, decided.Retry)
    assert zero.by is Leave.REJECT


_HARMFUL: list[FieldValue] = [
    [_death("q.audit", "expired")],
    [_death("q.audit.retry", "expired"), _death("q.audit", "delivery_limit")],
    [_death("elsewhere", count="3")],
    "text",
    ["text"],
]


@pytest.mark.parametrize("value", _HARMFUL)
@pytest.mark.parametrize(
    ("version", "by"),
    [(_V310, Leave.PUBLISH), (_V313, Leave.PUBLISH), (_V40, Leave.REJECT), (_V43, Leave.REJECT)],
)
def test_harmful_x_death_is_published_stripped_before_4_0(
    value: FieldValue, version: BrokerVersion, by: Leave
) -> None:
    """Later brokers ignore an `x-death` written by a client."""
    decision = _decide(_AUDIT, Retry("no"), {"x-death": value}, version=version)
    assert isinstance(decision, decided.Retry)
    assert decision.by is by


@pytest.mark.parametrize(("version", "by"), [(_V310, Leave.PUBLISH), (_V40, Leave.REJECT)])
def test_harmful_x_death_is_parked_by_publish_before_4_0(version: BrokerVersion, by: Leave) -> None:
    """Rejecting a malformed `x-death` crashes the queue."""
    headers: Headers = {"x-death": ["text"]}
    assert _decide(_RAFFLE, Park("bad"), headers, version=version) == decided.Park(by, 1, "bad")


def test_ordinary_reject_loop_is_kept_on_every_broker() -> None:
    lap: Headers = {"x-death": [_death("q.audit.retry", "expired"), _death("q.audit")]}
    decision = _decide(_AUDIT, Retry("no"), lap, version=_V310)
    assert isinstance(decision, decided.Retry)
    assert (decision.by, decision.attempt) == (Leave.REJECT, 2)


def test_tier_not_reached_by_reject_is_published_to() -> None:
    """A queue has one dead-letter exchange. Only the first tier is behind it."""
    plan = replace(_USERS, leave=Leave.REJECT)
    first = _decide(plan, Retry("no"))
    later = _decide(plan, Retry("no", after=300))
    assert isinstance(first, decided.Retry)
    assert isinstance(later, decided.Retry)
    assert (first.by, later.by) == (Leave.REJECT, Leave.PUBLISH)


@pytest.mark.parametrize(
    ("delay", "chance", "wait"),
    [(60, 0.0, 0.5), (60, 1.0, 2.0), (60, 0.5, 1.25), (0.7, 1.0, 0.7), (0.2, 1.0, 0.5), (0, 0.5, 0.5),
     (-1, 0.5, 0.5), (60, 7.0, 2.0), (60, -7.0, 0.5), (60, float("nan"), 2.0), (float("inf"), 0.0, 0.5)],
)  # fmt: skip
def test_first_local_wait_is_the_time_due_between_minimum_and_random_maximum(
    delay: float, chance: float, wait: float
) -> None:
    decision = _decide(_BUS, Snooze(delay), chance=chance)
    assert isinstance(decision, decided.Requeue)
    assert decision.delay == pytest.approx(wait)


@pytest.mark.parametrize(
    ("delay", "chance", "wait"),
    [(60, 0.0, 2.5), (60, 1.0, 2.5), (0.7, 1.0, 0.7), (0.2, 1.0, 0.5), (0, 0.5, 0.5)],
)  # fmt: skip
def test_later_local_waits_last_longer_than_the_plans_maximum_unless_due_sooner(
    delay: float, chance: float, wait: float
) -> None:
    delivery = Received(_BUS.queue, "x", "k", b"", Properties(), redelivered=True)
    decision = decide(delivery, Snooze(delay), _BUS, version=_V40, chance=chance)
    assert isinstance(decision, decided.Requeue)
    assert decision.delay == pytest.approx(wait)


def test_snooze_on_quorum_queue_waits_in_retry_queue_uncounted() -> None:
    """This holds for the hardened event bus and every other plan."""
    (plan, _) = event_bus(hardened=True).plans
    decision = _decide(plan, Snooze(1))
    assert decision == decided.Retry(
        plan.tiers[0], plan.tiers[0].routes[0], Leave.PUBLISH, 1, "not due yet", counted=False
    )
    faithful = _decide(ratatoskr().plans[0], Snooze(1))
    assert isinstance(faithful, decided.Retry)
    assert (faithful.by, faithful.counted) == (Leave.PUBLISH, False)


def test_snooze_selects_smallest_sufficient_tier() -> None:
    decision = _decide(_ORDERS, Snooze(200), _attempt_headers(_ORDERS, 3))
    assert isinstance(decision, decided.Retry)
    assert (decision.tier.name, decision.attempt) == ("5m", 4)


def test_snooze_without_attempts_left_parks_only_on_event_bus() -> None:
    """Its document sends 425 after ten retries to the dead-letter queue."""
    died: Headers = {"x-death": [_death(_BUS.queue, count=10)]}
    decision = _decide(_BUS, Snooze(1), died)
    assert decision == decided.Park(Leave.PUBLISH, 11, "not due yet, and no attempt is left")
    assert isinstance(_decide(_BUS, Snooze(1), _attempt_headers(_BUS, 9)), decided.Requeue)
    assert isinstance(_decide(_RAFFLE, Snooze(1), _attempt_headers(_RAFFLE, 4)), decided.Retry)


def test_snooze_without_tiers_parks() -> None:
    """A requeue would count as a delivery."""
    plan = replace(_ORDERS, tiers=())
    assert isinstance(_decide(plan, Retry("no")), decided.Park)
    parked = _decide(plan, Snooze(1))
    assert isinstance(parked, decided.Park)
    assert "no retry queue to wait in" in parked.reason


def test_tier_without_matching_route_parks() -> None:
    only = replace(_ORDERS.tiers[0], routes=(Route("x", "k", "q", "user.*"),))
    plan = replace(_ORDERS, tiers=(only,))
    decision = _decide(plan, Retry("no"), key="order.created")
    assert decision == decided.Park(
        Leave.PUBLISH, 1, "no (no way into a retry queue fits its routing key)"
    )


def _properties_of_size(size: int, headers: Headers | None = None) -> Properties:
    """Properties whose frame carries exactly `size` bytes."""
    empty = Properties(delivery_mode=2, headers={"u": "", **(headers or {})})
    filling = "u" * (size - frame_size(empty))
    return replace(empty, headers={**empty.headers, "u": filling})


def _full(
    plan: Plan, outcome: Outcome, properties: Properties, *, dead_letters_park: bool = False
) -> Decision:
    delivery = Received(plan.queue, "x", "k", b"", properties)
    return decide(delivery, outcome, plan, version=_V40, dead_letters_park=dead_letters_park)


@pytest.mark.parametrize("outcome", [Retry("no"), Snooze(1)])
def test_message_without_room_for_attempt_count_is_parked(
    outcome: Outcome,
) -> None:
    """Without a count it would be retried forever."""
    decision = _full(_ORDERS, outcome, _properties_of_size(FRAME_BYTES - 10))
    assert isinstance(decision, decided.Park)
    assert decision.by is Leave.PUBLISH
    assert decision.reason.endswith("(its headers leave no room for the count of attempts)")


def test_reject_loop_needs_no_room_for_count() -> None:
    """The broker counts."""
    decision = _full(_AUDIT, Retry("no"), _properties_of_size(FRAME_BYTES))
    assert isinstance(decision, decided.Retry)
    assert decision.by is Leave.REJECT


_TOO_LARGE = "bad (its headers do not fit a frame, so the largest are left out)"


def test_headers_beyond_frame_are_rejected_only_into_dead_letter_queue() -> None:
    """If a reject would feed the retry loop or delete the message, it is published without them."""
    too_large = _properties_of_size(FRAME_BYTES + 1)
    published = _full(_ORDERS, Park("bad"), too_large)
    assert published == decided.Park(Leave.PUBLISH, 1, _TOO_LARGE)
    rejected = _full(_ORDERS, Park("bad"), too_large, dead_letters_park=True)
    assert rejected == decided.Park(Leave.REJECT, 1, "bad")
    assert _full(_RAFFLE, Park("bad"), too_large) == decided.Park(Leave.REJECT, 1, "bad")


def test_headers_beyond_frame_with_harmful_x_death_are_published() -> None:
    properties = _properties_of_size(FRAME_BYTES + 100, {"x-death": "text"})
    grown = replace(properties, headers={**properties.headers, "v": "v" * 100})
    delivery = Received(_RAFFLE.queue, "x", "k", b"", grown)
    for parks in (False, True):
        decision = decide(delivery, Park("bad"), _RAFFLE, version=_V310, dead_letters_park=parks)
        assert decision == decided.Park(Leave.PUBLISH, 1, _TOO_LARGE)


_DELAYS_MS = 30 * 86_400_000  # thirty days


@pytest.mark.parametrize(
    ("seconds", "waits_ms"), [(7200, 7_200_000), (7200.0004, 7_200_001), (1e9, _DELAYS_MS)]
)
def test_wait_beyond_all_tiers_uses_delay_queues(seconds: float, waits_ms: int) -> None:
    """The maximum is their longest delay. A snooze counts no attempt, a retry counts one."""
    delivery = Received(_ORDERS.queue, "", "k")
    for outcome, counted in ((Snooze(seconds), False), (Retry("no", after=seconds), True)):
        decision = decide(delivery, outcome, _ORDERS, version=_V40, longest_delay_ms=_DELAYS_MS)
        assert isinstance(decision, decided.Retry)
        assert (decision.tier.delay_ms, decision.delayed) == (waits_ms, True)
        assert (decision.by, decision.counted) == (Leave.PUBLISH, counted)


def test_delay_without_room_for_count_parks() -> None:
    """Otherwise it would return forever."""
    delivery = Received(_ORDERS.queue, "", "k", b"", _properties_of_size(FRAME_BYTES - 10))
    decision = decide(delivery, Snooze(7200), _ORDERS, version=_V40, longest_delay_ms=_DELAYS_MS)
    assert isinstance(decision, decided.Park)
    assert decision.reason.endswith("(its headers leave no room for the count of attempts)")


def test_invalid_wait_is_ignored() -> None:
    """The runtime refuses it before."""
    decision = _decide(_ORDERS, Snooze("soon"))
    assert isinstance(decision, decided.Retry)
    assert decision.tier == _ORDERS.tiers[0]
