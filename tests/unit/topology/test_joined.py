"""Several topologies as one, and where a publish can arrive."""

from __future__ import annotations

from hopback.topology.model import Binding, Exchange, Policy, Queue, Topology, join_topologies
from hopback.topology.routing import RoutingTable

_FIRST = Topology(
    "first",
    (Exchange("x", "topic"),),
    (Queue("q", arguments={"x-expires": 1}),),
    (Binding("x", "q", "a"),),
    policies=(Policy("p", "^q$", {"expires": 1}),),
)
_SECOND = Topology(
    "second",
    (Exchange("x", "fanout"), Exchange("y", "headers")),
    (Queue("q"), Queue("r")),
    (Binding("x", "q", "a"), Binding("y", "r", arguments={"x-match": "all", "k": 1})),
)


def test_join_keeps_first_of_equal_names() -> None:
    whole = join_topologies([_FIRST, _SECOND])
    assert {one.name: one.type for one in whole.exchanges} == {"x": "topic", "y": "headers"}
    assert whole.queue("q") == _FIRST.queue("q")
    assert whole.queue("r") is not None
    assert whole.bindings == (*_FIRST.bindings, _SECOND.bindings[1])
    assert whole.policies == _FIRST.policies
    assert join_topologies([]).name == "nothing"


def test_arrival_queues_of_publish_follow_routing() -> None:
    table = RoutingTable(
        (
            Exchange("y", "headers", arguments={"alternate-exchange": "z"}),
            Exchange("z", "fanout"),
            Exchange("w", "direct"),
        ),
        ("r", "s", "t"),
        (
            Binding("y", "r", arguments={"x-match": "all", "k": 1}),
            Binding("z", "s"),
            Binding("z", "y", to_exchange=True),
            Binding("w", "t", "k"),
        ),
    )
    assert table.reachable("y", "whatever") == ("r", "s")
    assert table.reachable("w", "k") == ("t",)
    assert table.reachable("", "t") == ("t",)
    assert table.reachable("missing", "k") is None
    assert table.reachable_with(["s"]) == ("r", "s")
    assert table.reachable_with([]) == ()
