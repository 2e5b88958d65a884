"""Every rule: it sees its hazard in a small topology, and is silent when that is repaired."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopback.topology.check import check
from hopback.topology.delays import delay_topology
from hopback.topology.hazards import RULES
from hopback.topology.plan import Redrive
from tests.unit.topology_check.building import (
    edited,
    found,
    sound,
)
from tests.unit.topology_check.casebook import Case, planned
from tests.unit.topology_check.cases_declaring import DECLARING
from tests.unit.topology_check.cases_links import LINKS
from tests.unit.topology_check.cases_moving import MOVING

_DELAYS = delay_topology("10s")
CASES = (
    *MOVING,
    Case(
        "delay-cut-short",
        replace(
            _DELAYS,
            queues=tuple(each for each in _DELAYS.queues if each.name != "hopback.delay.level-01"),
            bindings=tuple(
                each for each in _DELAYS.bindings if each.source != "hopback.delay.level-01"
            ),
        ),
        _DELAYS,
        "error",
        "queue `hopback.delay.level-01`",
        "for 2000 ms of their delay, but the queue does not exist",
    ),
    *DECLARING,
    *LINKS,
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_rule_reports_its_hazard(case: Case) -> None:
    seen = {each.place: each for each in found(case.broken, case.rule, case.version)}
    assert case.place in seen
    assert seen[case.place].severity == case.severity
    assert case.says in seen[case.place].explanation + seen[case.place].fix


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_rule_is_silent_after_repair(case: Case) -> None:
    assert found(case.repaired, case.rule, case.version) == []


def test_every_rule_has_a_case() -> None:
    assert [case.rule for case in CASES] == [rule.name for rule in RULES]
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_sound_topology_has_no_findings() -> None:
    assert check(sound()) == ()


def test_redrive_through_retry_queue_is_accepted() -> None:
    through = planned(sound(), redrive=Redrive("", "orders.retry.1s"))
    assert found(through, "plan-leads-nowhere") == []
    astray = planned(sound(), redrive=Redrive("", "orders.dlq"))
    (problem,) = found(astray, "plan-leads-nowhere")
    assert "The route for re-drive" in problem.explanation


def test_queue_of_due_messages_is_not_taken_for_a_retry_queue() -> None:
    """A live topology has no plans: only the name of the queue could suggest it."""
    live = replace(_DELAYS, plans=(), unconsumed=frozenset())
    assert found(live, "retry-without-ttl") == []


def test_shortened_delay_is_reported_in_all_forms() -> None:
    level = "hopback.delay.level-00"
    unbound = tuple(each for each in _DELAYS.bindings if each.source != level)
    (finding,) = found(replace(_DELAYS, bindings=unbound), "delay-cut-short")
    assert "not bound to its exchange" in finding.explanation
    (finding,) = found(edited(_DELAYS, level, message_ttl=500), "delay-cut-short")
    assert "holds them for 500 ms" in finding.explanation
    whole = delay_topology("3650d")
    assert check(whole) == ()
