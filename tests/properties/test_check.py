"""Checking is total and deterministic for every topology."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given, settings

from hopback.topology.check import check
from hopback.topology.hazards import RULES
from tests.properties.topologies import topologies, versions

if TYPE_CHECKING:
    from hopback.topology.model import Topology
    from hopback.version import BrokerVersion


@settings(max_examples=40, deadline=None)
@given(topologies, versions)
def test_check_never_raises_and_is_deterministic(
    topology: Topology, version: BrokerVersion | None
) -> None:
    """Findings are sorted, and their texts are printable sentences."""
    found = check(topology, version)
    assert found == check(topology, version)
    assert [each.severity.rank for each in found] == sorted(each.severity.rank for each in found)
    for each in found:
        assert each.rule in {rule.name for rule in RULES}
        assert each.place
        assert (each.place + each.explanation + each.fix).isprintable()
        assert each.explanation.endswith((".", ".)"))
        assert each.fix.endswith(".")


@settings(max_examples=40, deadline=None)
@given(topologies, versions)
def test_order_of_declaration_does_not_change_findings(
    topology: Topology, version: BrokerVersion | None
) -> None:
    """Of bindings and of exchanges."""
    changed = replace(
        topology,
        bindings=topology.bindings[::-1],
        exchanges=tuple({each.name: each for each in topology.exchanges}.values())[::-1],
    )
    other = replace(changed, bindings=topology.bindings, exchanges=changed.exchanges[::-1])
    assert check(other, version) == check(changed, version)


@settings(max_examples=40, deadline=None)
@given(topologies, versions)
def test_findings_of_each_version_are_reported_without_a_version(
    topology: Topology, version: BrokerVersion | None
) -> None:
    for_all = {each.rule for each in check(topology)}
    # This rule is a notice about a broker of one version.
    one = {each.rule for each in check(topology, version)} - {"sound-loop-dropped"}
    assert one <= for_all
