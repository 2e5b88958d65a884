"""Advice: its proposals meet the goals in a rehearsal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopback.designs.recommended import recommended
from hopback.rehearse import Outage, rehearse
from hopback.rehearse.advise import (
    Goal,
    GoalKind,
    advise,
    decorator_line,
    jitter_note,
    parse_goal,
    toml_lines,
)
from tests.unit.rehearse.worlds import scenario

_ORDERS = recommended("orders")


def test_goals_are_parsed() -> None:
    assert parse_goal("no dead letters up to 1h outage") == Goal(
        GoalKind.DEAD_LETTERS, "no dead letters up to 1h outage", 0.0, 3600.0
    )
    assert parse_goal("recovered within 15m").limit == 900.0
    assert parse_goal("at most 50 retries/s at the dependency").limit == 50.0
    with pytest.raises(ValueError, match="recovered within 15m"):
        parse_goal("be good")


def test_best_proposal_survives_outage_of_goal() -> None:
    played = scenario(concurrency=20)
    today, best, *_ = advise(
        _ORDERS, played, "orders", [parse_goal("no dead letters up to 1h outage")]
    )
    assert not today.met
    assert today.dead_letters > 1000
    assert best.met
    assert best.changes == ("breaker",)
    waits = next(
        one
        for one in advise(
            _ORDERS, played, "orders", [parse_goal("no dead letters up to 1h outage")]
        )
        if one.changes == ("waits",)
    )
    delays = [round(wait.delay_s * 1000) for wait in waits.station.waits]
    better = recommended("orders", tiers_ms=delays, attempts=len(waits.station.wait_after) + 1)
    hour = replace(played, outages=(Outage(300.0, 3600.0),), duration_s=36_000.0)
    assert rehearse(better, hour).dead_letters < 1
    assert decorator_line(waits).startswith('@app.handler("orders", retry=("30s", "5m", "30m"')
    assert "attempts = " in toml_lines(waits)


def test_several_goals_hold_at_once() -> None:
    played = scenario(outage=(300.0, 1800.0), rate=20.0)
    goals = [parse_goal("recovered within 15m"), parse_goal("at most 5 retries/s")]
    found = advise(_ORDERS, played, "orders", goals)
    assert not found[0].met
    for proposal in found[1:]:
        assert proposal.recovery_s is not None
        assert proposal.recovery_s <= 900
        assert proposal.asked_peak <= 5
    assert len(found) > 1


def test_sufficient_plan_is_kept() -> None:
    found = advise(
        _ORDERS, scenario(concurrency=20), "orders", [parse_goal("no dead letters up to 20m")]
    )
    assert [one.changes for one in found] == [()]


@pytest.mark.parametrize(
    ("goal", "said"),
    [
        ("no dead letters up to 40m outage", "shorter than the outage of 40m: as many would"),
        ("no dead letters up to 3m outage", "longer than the outage of 3m: 10% as many would"),
        ("recovered within 1s", "for all its messages."),
    ],
)
def test_advice_explains_missing_jitter(goal: str, said: str) -> None:
    goals, played = [parse_goal(goal)], scenario(concurrency=20)
    today, *_ = advise(_ORDERS, played, "orders", goals)
    note = jitter_note(played, goals, today)
    assert note.startswith("Jitter is not offered: a retry queue has one time to live")
    assert said in note
