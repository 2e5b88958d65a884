"""Rules about the queues in which messages wait that are to come later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.topology.delays import delay_level_names, delay_topology, is_delay_level
from hopback.topology.hazards.analysis import number
from hopback.topology.hazards.phrases import queue_place
from hopback.topology.hazards.rule import HazardRule, Hit, errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.topology.hazards.analysis import Analysis

__all__ = ["RULES"]


def _cut_short(analysis: Analysis) -> Iterator[Hit]:
    """What a level lets pass, or does not hold for its time, comes too early."""
    levels = [each.name for each in analysis.topology.exchanges if is_delay_level(each.name)]
    if not levels:
        return
    bound = {
        (each.source, each.destination, each.routing_key) for each in analysis.topology.bindings
    }
    # Levels that stand on the broker are contiguous from the shortest on: the highest tells of all.
    names = delay_level_names(max(levels))
    whole = delay_topology((1 << len(names)) - 1)
    ways = {each.source: each for each in whole.bindings}
    for name in names:
        queue, wanted = analysis.queues.get(name), whole.queue(name)
        way = ways[name]
        waits = None if queue is None else number(queue, "x-message-ttl")
        expected = None if wanted is None else number(wanted, "x-message-ttl")
        if waits == expected and (way.source, way.destination, way.routing_key) in bound:
            continue
        found = "is not there" if queue is None else f"holds them for {waits} ms"
        if waits == expected:
            found = "is not bound to its exchange"
        yield Hit(
            queue_place(name),
            f"Delayed messages are to wait here for {expected} ms of their time, and the queue"
            f" {found}: they come too early, or too late.",
            "Let an application with `app.delays()` declare it, or take all queues of delays away.",
        )


RULES = (HazardRule("delay-cut-short", errors(), _cut_short),)
