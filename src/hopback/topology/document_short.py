"""Writing a topology document as people would: short forms, and bindings under what they feed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.topology.document_writer import (
    write_binding,
    write_exchange,
    write_explicit,
    write_plan,
    write_queue,
)
from hopback.topology.expand import hardened_queues
from hopback.topology.recommended_form import write_recommended

if TYPE_CHECKING:
    from hopback.topology.model import Binding, Topology

__all__ = ["write_short"]

_Tables = dict[str, dict[str, object]]


def write_short(topology: Topology, *, nested: bool) -> dict[str, object]:
    """The document in short form, its bindings `nested` or in a list of their own.

    It need not mean the same: order can be lost, so whoever writes it reads it back first.
    """
    short = _recommended(topology)
    exchanges = {item.name: write_exchange(item, terse=True) for item in topology.exchanges}
    queues = _queues(topology, short)
    for item in topology.bindings if nested else ():
        _nest(item, exchanges if item.to_exchange else queues)
    whole = write_explicit(topology, terse=True) | {
        "exchanges": exchanges,
        "queues": queues,
        "plans": {
            plan.queue: write_plan(plan, terse=True)
            for plan in topology.plans
            if plan.queue not in short
        },
    }
    return {
        key: value for key, value in whole.items() if value and not (nested and key == "bindings")
    }


def _recommended(topology: Topology) -> _Tables:
    """The queues that have a short form."""
    forms = ((plan.queue, write_recommended(plan, topology)) for plan in topology.plans)
    return {queue: form for queue, form in forms if form is not None}


def _queues(topology: Topology, short: _Tables) -> _Tables:
    """All queues but those that a short form stands for."""
    implied = {
        queue.name
        for plan in topology.plans
        if plan.queue in short
        for queue in hardened_queues(plan)
    }
    return {
        queue.name: short.get(queue.name) or write_queue(queue, topology, terse=True)
        for queue in topology.queues
        if queue.name in short or queue.name not in implied
    }


def _nest(binding: Binding, tables: _Tables) -> None:
    """Put a binding under what it feeds; one that feeds something implied has no place there."""
    written = write_binding(binding, terse=True)
    home = tables.get(binding.destination)
    if home is not None:
        here = {key: value for key, value in written.items() if key not in ("queue", "to_exchange")}
        already = home.get("bindings")
        home["bindings"] = [*(already if isinstance(already, list) else []), here]
