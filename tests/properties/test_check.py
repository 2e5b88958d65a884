"""Checking is total and deterministic, whatever the topology."""

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
def test_check_never_raises_and_says_the_same_twice(
    topology: Topology, version: BrokerVersion | None
) -> None:
    """Any topology gives findings in order, each with every part of it said in plain text."""
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
def test_the_order_of_declaration_does_not_matter(
    topology: Topology, version: BrokerVersion | None
) -> None:
    """Turned around, exchanges and bindings give the same findings."""
    turned = replace(
        topology,
        bindings=topology.bindings[::-1],
        exchanges=tuple({each.name: each for each in topology.exchanges}.values())[::-1],
    )
    straight = replace(turned, bindings=topology.bindings, exchanges=turned.exchanges[::-1])
    assert check(straight, version) == check(turned, version)


@settings(max_examples=40, deadline=None)
@given(topologies, versions)
def test_without_a_version_nothing_is_left_out(
    topology: Topology, version: BrokerVersion | None
) -> None:
    """What any version reports of the declarations is reported for all versions too."""
    for_all = {each.rule for each in check(topology)}
    # One rule is a notice about a broker, and needs one.
    one = {each.rule for each in check(topology, version)} - {"sound-loop-dropped"}
    assert one <= for_all
