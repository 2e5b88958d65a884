"""Exceptions, return values and HTTP answers become outcomes."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from hopback.policy import (
    ConsumerStatus,
    Done,
    Outcome,
    Park,
    Retry,
    Rule,
    Snooze,
    Verdict,
    classify,
    consumer_status,
    outcome_for_status,
    outcome_of,
)
from hopback.policy import decision as decided
from hopback.policy.outcome import MENU, is_outcome
from hopback.topology.plan import Leave, Route, Tier

if TYPE_CHECKING:
    from hopback.policy.decision import Decision


class _Busy(Exception):
    def __init__(self, name: str, value: object) -> None:
        super().__init__("busy")
        setattr(self, name, value)


class _Moody(Exception):
    @property
    def after(self) -> float:
        raise RuntimeError("not today")

    def __repr__(self) -> str:
        raise RuntimeError("not today")


def test_exception_without_rule_is_retried_with_name_and_message() -> None:
    assert classify(ValueError("no stock")) == Retry("ValueError: no stock")
    assert classify(KeyError()) == Retry("KeyError")


def test_first_matching_rule_decides() -> None:
    """A subclass matches its parent's rule."""
    rules = (
        Rule(UnicodeError, Verdict.RETRY, after=60.0),
        Rule((ValueError, TypeError), Verdict.PARK),
    )
    assert classify(UnicodeError("x"), rules) == Retry("UnicodeError: x", 60.0)
    assert classify(ValueError("x"), rules) == Park("ValueError: x")
    assert classify(TypeError("x"), rules) == Park("TypeError: x")
    assert classify(OSError("x"), rules) == Retry("OSError: x")


def test_predicate_that_is_false_or_raises_skips_rule() -> None:
    def broken(error: BaseException) -> bool:
        raise RuntimeError("in the rule")

    rules = (
        Rule(OSError, Verdict.PARK, when=broken),
        Rule(OSError, Verdict.PARK, when=lambda error: "gone" in str(error)),
    )
    assert classify(OSError("gone for good"), rules) == Park("OSError: gone for good")
    assert classify(OSError("away"), rules) == Retry("OSError: away")


@pytest.mark.parametrize(
    ("name", "value", "after"),
    [
        ("after", 30, 30),
        ("retry_after", 1.5, 1.5),
        ("after", timedelta(minutes=2), 120.0),
        ("after", -1, 9.0),
        ("after", "soon", 9.0),
        ("after", True, 9.0),
        ("after", float("nan"), 9.0),
    ],
)
def test_retry_after_of_exception_overrides_rule(name: str, value: object, after: float) -> None:
    rules = (Rule(_Busy, Verdict.RETRY, after=9.0),)
    assert classify(_Busy(name, value), rules) == Retry("_Busy: busy", after)


def test_exception_whose_attribute_raises_is_retried() -> None:
    assert classify(_Moody("x")) == Retry("_Moody: x")


@pytest.mark.parametrize(
    ("returned", "outcome"),
    [
        (None, Done()),
        (Done(), Done()),
        (Retry("x"), Retry("x")),
        (Retry("x", 5), Retry("x", 5)),
        (Park("x"), Park("x")),
        (Snooze(2.5), Snooze(2.5)),
    ],
)
def test_outcome_of_accepts_outcomes_and_none(returned: object, outcome: Outcome) -> None:
    assert outcome_of(returned) == outcome


@pytest.mark.parametrize(
    "returned",
    [
        True, False, 0, "ok", Done, [Done()], Retry(5), Retry("x", "soon"), Retry("x", -1),  # type: ignore[arg-type]
        Park(None), Snooze("later"), Snooze(float("nan")), Snooze(True), _Moody(), "x" * 10_000,  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_invalid_return_value_parks_with_allowed_values(returned: object) -> None:
    outcome = outcome_of(returned)
    assert isinstance(outcome, Park)
    assert outcome.reason.startswith("the handler returned ")
    assert f"({type(returned).__name__})" in outcome.reason
    fields = "expected a reason that is a text, and a wait like 30s, 5m or 1h30m"
    assert outcome.reason.endswith(fields if is_outcome(returned) else f"expected {MENU}")
    assert len(outcome.reason) < 400


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_http_status_2xx_is_done(status: int) -> None:
    assert outcome_for_status(status) == Done()


@pytest.mark.parametrize("status", [429, 409, 500, 502, 503, 599, 400, 404, 422, 301, 100, 0])
def test_other_http_statuses_are_retried(status: int) -> None:
    assert outcome_for_status(status) == Retry(f"HTTP {status}")
    assert outcome_for_status(status, retry_after=7) == Retry(f"HTTP {status}", 7)


def test_http_status_425_snoozes() -> None:
    assert outcome_for_status(425, due_in=12.5) == Snooze(12.5)


_TIER = Tier("5s", 5000, (Route("", "r", "r"),))


@pytest.mark.parametrize(
    ("decision", "status"),
    [
        (decided.Ack(), ConsumerStatus.ACK),
        (decided.Retry(_TIER, _TIER.routes[0], Leave.REJECT, 1, "x"), ConsumerStatus.DROP),
        (decided.Requeue(1.0), ConsumerStatus.REQUEUE),
        (decided.Park(Leave.PUBLISH, 11, "x"), ConsumerStatus.ACK),
        (decided.Keep(1, "x"), None),
    ],
)
def test_consumer_status_of_decision_is_the_documented_one(
    decision: Decision, status: ConsumerStatus | None
) -> None:
    assert consumer_status(decision) is status


@pytest.mark.parametrize(
    ("returned", "outcome"),
    [
        (ConsumerStatus.ACK, Done()),
        (ConsumerStatus.DROP, Retry("the handler returned DROP")),
        (ConsumerStatus.REQUEUE, Snooze(2.0)),
    ],
)
def test_consumer_status_maps_to_outcome(returned: ConsumerStatus, outcome: Outcome) -> None:
    assert outcome_of(returned) == outcome
    assert outcome_of(str(returned)) != outcome  # a text that looks like one is a mistake


def test_is_outcome_accepts_only_outcomes() -> None:
    """A reply handler may return other values."""
    assert all(map(is_outcome, (Done(), Park("no"), Retry("no"), Snooze(1))))
    assert not any(map(is_outcome, (None, {"total": 1}, "done")))


def test_keyboard_interrupt_in_predicate_is_raised() -> None:
    def interrupt(_error: BaseException) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        classify(OSError("x"), (Rule(OSError, Verdict.PARK, when=interrupt),))
