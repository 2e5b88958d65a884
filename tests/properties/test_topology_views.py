"""Diagrams, tables and diffs of every topology."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hypothesis import given

from hopback.topology.diagram import draw_flow, draw_sequence, draw_states
from hopback.topology.diff import Kind, diff
from hopback.topology.table import write_table
from tests.properties.topology_values import few_examples, topologies

if TYPE_CHECKING:
    from hopback.topology.model import Topology

_NODE = re.compile(r"^ +(?:subgraph )?([xqf]\w*)(?=[\[({])")
_EDGE = re.compile(r"^    (\w+) (?:-->|-\.->|==>)(?:\|\"[^\"|]*\"\|)? (\w+)$")
_TEXT = re.compile(r"[^\"]*")


@few_examples
@given(topologies)
def test_flow_chart_defines_every_node_once(topology: Topology) -> None:
    """Each line is a node, an edge or a class, and edges connect defined nodes."""
    lines = draw_flow(topology).splitlines()
    assert lines[0] == "flowchart LR"
    nodes = [found[1] for line in lines if (found := _NODE.match(line))]
    edges = [found.groups() for line in lines if (found := _EDGE.match(line))]
    assert len(nodes) == len(set(nodes))
    assert {end for edge in edges for end in edge} <= set(nodes)
    rest = [line for line in lines[1:] if not _NODE.match(line) and not _EDGE.match(line)]
    assert all(line.strip() == "end" or line.startswith("    classDef ") for line in rest)
    assert len(nodes) >= len(topology.queues) + len(topology.exchanges) + len(topology.plans)


@few_examples
@given(topologies)
def test_labels_of_diagrams_contain_no_special_characters(topology: Topology) -> None:
    """No quotes, brackets, backticks or line breaks."""
    drawn = [draw_flow(topology)]
    for plan in topology.plans:
        drawn += [draw_sequence(topology, plan.queue), draw_states(topology, plan.queue)]
    for text in drawn:
        labels = re.findall(r'"([^"]*)"', text)
        assert not any(re.search(r"[`\[\]{}]", label) for label in labels)
        assert text.count('"') % 2 == 0
        assert "%%" not in text
        assert all(line.isprintable() for line in text.split("\n"))


@few_examples
@given(topologies)
def test_table_contains_no_control_characters(topology: Topology) -> None:
    assert all(line.isprintable() for line in write_table(topology).split("\n"))


@few_examples
@given(topologies)
def test_topology_does_not_differ_from_itself(topology: Topology) -> None:
    found = diff(topology, topology)
    assert found.is_up_to_date
    assert (found.create, found.conflict, found.extra) == ((), (), ())
    parts = (topology.exchanges, topology.queues, topology.policies)
    assert len(found.same) >= sum(map(len, parts))


@few_examples
@given(topologies, topologies)
def test_diff_contains_every_desired_object(desired: Topology, actual: Topology) -> None:
    """As created, equal or conflicting. The reverse diff has the additional ones."""
    there = diff(desired, actual)
    back = diff(actual, desired)
    assert {str(entry) for entry in there.create} == {str(entry) for entry in back.extra}
    assert {str(entry) for entry in there.extra} == {str(entry) for entry in back.create}
    assert {item.name for item in there.conflict} == {item.name for item in back.conflict}
    assert all(item.differences for item in there.conflict)
    entries = [*there.create, *there.same]
    found = {entry.name for entry in entries if entry.kind is Kind.QUEUE}
    found |= {item.name for item in there.conflict if item.kind is Kind.QUEUE}
    assert found == {queue.name for queue in desired.queues}
