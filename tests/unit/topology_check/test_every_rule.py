"""Every rule: it sees its hazard in a small topology, and is silent when that is mended."""

from __future__ import annotations

import pytest

from hopback.topology.check import check
from hopback.topology.hazards import RULES
from hopback.topology.plan import Redrive
from tests.unit.topology_check.building import (
    found,
    sound,
)
from tests.unit.topology_check.casebook import Case, planned
from tests.unit.topology_check.cases_declaring import DECLARING
from tests.unit.topology_check.cases_links import LINKS
from tests.unit.topology_check.cases_moving import MOVING

CASES = (*MOVING, *DECLARING, *LINKS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_the_rule_sees_its_hazard(case: Case) -> None:
    """It says where, how grave, and what happens."""
    seen = {each.place: each for each in found(case.broken, case.rule, case.version)}
    assert case.place in seen
    assert seen[case.place].severity == case.severity
    assert case.says in seen[case.place].explanation + seen[case.place].fix


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_the_rule_is_silent_when_it_is_mended(case: Case) -> None:
    """On the version in question, and for all versions unless the rule knows better."""
    assert found(case.mended, case.rule, case.version) == []


def test_every_rule_has_its_case() -> None:
    """And every name is used once."""
    assert [case.rule for case in CASES] == [rule.name for rule in RULES]
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_the_sound_topology_is_sound() -> None:
    """What most cases are mended to has nothing wrong with it at all."""
    assert check(sound()) == ()


def test_redrive_may_go_through_a_retry_queue() -> None:
    """It comes back from there; elsewhere it would be lost."""
    through = planned(sound(), redrive=Redrive("", "orders.retry.1s"))
    assert found(through, "plan-leads-nowhere") == []
    astray = planned(sound(), redrive=Redrive("", "orders.dlq"))
    (problem,) = found(astray, "plan-leads-nowhere")
    assert "The way for re-drive" in problem.explanation
