"""The states of a message under a failure plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.topology.diagram.labels import label
from hopback.topology.diagram.subject import subject
from hopback.topology.durations import format_duration
from hopback.topology.wording import waits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.topology.model import Topology
    from hopback.topology.plan import Plan

__all__ = ["draw_states"]


def draw_states(topology: Topology, queue: str | None = None) -> str:
    """The states of a message of this queue, by default the first with a plan."""
    return "\n".join(_lines(subject(topology, queue))) + "\n"


def _lines(plan: Plan) -> Iterator[str]:
    yield "stateDiagram-v2"
    yield "    direction LR"
    yield f'    state "ready in {label(plan.queue)}" as ready'
    yield '    state "in the hands of the handler" as handled'
    for at, (tier, _) in enumerate(waits(plan), start=1):
        wait = format_duration(tier.delay_ms)
        yield f'    state "waits {wait} in {label(tier.routes[0].queue)}" as waiting_{at}'
    yield f'    state "parked in {label(plan.parking.queue)}" as parked'
    yield "    [*] --> ready: published"
    yield "    ready --> handled: delivered"
    yield "    handled --> [*]: done"
    yield from _failures(plan)
    yield f"    handled --> parked: failure {plan.attempts}, or hopeless"
    yield from _snooze(plan)
    yield "    parked --> ready: re-driven"
    yield "    parked --> [*]: discarded"


def _failures(plan: Plan) -> Iterator[str]:
    failure = 1
    for at, (tier, laps) in enumerate(waits(plan), start=1):
        last = failure + laps - 1
        which = f"failure {failure}" if laps == 1 else f"failures {failure} to {last}"
        yield f"    handled --> waiting_{at}: {which}"
        yield f"    waiting_{at} --> ready: after {format_duration(tier.delay_ms)}"
        failure = last + 1


def _snooze(plan: Plan) -> Iterator[str]:
    if plan.snooze is not None:
        yield "    handled --> ready: snoozed, after a short wait in the consumer"
