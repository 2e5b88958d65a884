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


def test_an_unknown_exception_is_retried_with_its_name_and_message() -> None:
    """Whatever nobody made a rule for may work later."""
    assert classify(ValueError("no stock")) == Retry("ValueError: no stock")
    assert classify(KeyError()) == Retry("KeyError")


def test_the_first_rule_that_fits_holds() -> None:
    """Rules are asked in order; a subclass fits its parent's rule."""
    rules = (
        Rule(UnicodeError, Verdict.RETRY, after=60.0),
        Rule((ValueError, TypeError), Verdict.PARK),
    )
    assert classify(UnicodeError("x"), rules) == Retry("UnicodeError: x", 60.0)
    assert classify(ValueError("x"), rules) == Park("ValueError: x")
    assert classify(TypeError("x"), rules) == Park("TypeError: x")
    assert classify(OSError("x"), rules) == Retry("OSError: x")


def test_a_predicate_narrows_a_rule_and_may_not_break_it() -> None:
    """One that says no, or raises, leaves the exception to the next rule."""

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
def test_an_exception_may_ask_for_its_own_wait(name: str, value: object, after: float) -> None:
    """Its attribute outranks the rule's wait if it is one."""
    rules = (Rule(_Busy, Verdict.RETRY, after=9.0),)
    assert classify(_Busy(name, value), rules) == Retry("_Busy: busy", after)


def test_an_exception_whose_attribute_raises_is_retried_all_the_same() -> None:
    """Someone else's property cannot stop a retry."""
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
def test_the_menu_is_taken_as_it_is(returned: object, outcome: Outcome) -> None:
    """Nothing means done."""
    assert outcome_of(returned) == outcome


@pytest.mark.parametrize(
    "returned",
    [
        True, False, 0, "ok", Done, [Done()], Retry(5), Retry("x", "soon"), Retry("x", -1),  # type: ignore[arg-type]
        Park(None), Snooze("later"), Snooze(float("nan")), Snooze(True), _Moody(), "x" * 10_000,  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_anything_else_parks_and_prints_the_menu(returned: object) -> None:
    """A wrong return is never taken for success; the reason stays short."""
    outcome = outcome_of(returned)
    assert isinstance(outcome, Park)
    assert outcome.reason.startswith("the handler returned ")
    assert f"({type(returned).__name__})" in outcome.reason
    fields = "expected a reason that is a text, and a wait like 30s, 5m or 1h30m"
    assert outcome.reason.endswith(fields if is_outcome(returned) else f"expected {MENU}")
    assert len(outcome.reason) < 400


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_success_is_done(status: int) -> None:
    """2xx."""
    assert outcome_for_status(status) == Done()


@pytest.mark.parametrize("status", [429, 409, 500, 502, 503, 599, 400, 404, 422, 301, 100, 0])
def test_everything_else_is_retried(status: int) -> None:
    """Rate limits, conflicts, server errors, other client errors, and what should not occur."""
    assert outcome_for_status(status) == Retry(f"HTTP {status}")
    assert outcome_for_status(status, retry_after=7) == Retry(f"HTTP {status}", 7)


def test_too_early_is_not_due_yet() -> None:
    """425 with the time that is still due."""
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
def test_decisions_have_the_documents_names(
    decision: Decision, status: ConsumerStatus | None
) -> None:
    """A message moved to the dead-letter queue is acknowledged, as the document's table says."""
    assert consumer_status(decision) is status


@pytest.mark.parametrize(
    ("returned", "outcome"),
    [
        (ConsumerStatus.ACK, Done()),
        (ConsumerStatus.DROP, Retry("the handler returned DROP")),
        (ConsumerStatus.REQUEUE, Snooze(2.0)),
    ],
)
def test_a_consumer_status_is_an_outcome(returned: ConsumerStatus, outcome: Outcome) -> None:
    """The event bus's names: done, dead-letter retry, and back into the queue without counting."""
    assert outcome_of(returned) == outcome
    assert outcome_of(str(returned)) != outcome  # a text that looks like one is a mistake


def test_the_menu_knows_what_is_on_it() -> None:
    """Where a handler may return a reply, nothing else is taken for an outcome."""
    assert all(map(is_outcome, (Done(), Park("no"), Retry("no"), Snooze(1))))
    assert not any(map(is_outcome, (None, {"total": 1}, "done")))


def test_a_predicate_that_is_interrupted_by_the_user_is_not_swallowed() -> None:
    def interrupted(_error: BaseException) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        classify(OSError("x"), (Rule(OSError, Verdict.PARK, when=interrupted),))
