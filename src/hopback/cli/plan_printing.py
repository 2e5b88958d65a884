"""A plan for people and for programs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from hopback.cli.printing import safe, safe_lines, table

if TYPE_CHECKING:
    from hopback.broker.apply import ApplyPlan
    from hopback.topology.diff import Conflict, Difference

__all__ = ["plan_data", "print_plan"]


def print_plan(planned: ApplyPlan) -> None:
    """What would be created, what is in the way and what it would cost."""
    if planned.steps:
        rows = [(f"+ {step.kind}", step.name, step.why) for step in planned.steps]
        table(("create", "name", "why"), rows)
    for conflict in planned.conflicts:
        click.echo(safe_lines(f"! {conflict}"))
    for risk in planned.at_risk:
        click.echo(safe(f"! {risk}"))
    for offer in planned.offers:
        click.echo(safe(f"? policy {offer.policy.name}: {offer.why} (--lift-main-limits)"))
    for note in planned.notes:
        click.echo(safe(f"  {note}"))
    click.echo(_summary(planned))


def _summary(planned: ApplyPlan) -> str:
    found = planned.diff
    others = Counter(str(entry.kind) for entry in found.extra)
    left = ", ".join(f"{count} {kind}" for kind, count in others.items())
    tail = f" {left} besides, left alone." if left else ""
    if planned.settled:
        return f"Nothing to do: {len(found.same)} objects are as desired.{tail}"
    return (
        f"{len(planned.steps)} to create, {len(found.same)} as desired, "
        f"{len(found.conflict)} in conflict.{tail}"
    )


def plan_data(planned: ApplyPlan) -> dict[str, object]:
    """The plan as JSON."""
    found = planned.diff
    return {
        "broker_version": str(planned.version),
        "settled": planned.settled,
        "create": [
            {"kind": str(step.kind), "name": step.name, "why": step.why} for step in planned.steps
        ],
        "same": [{"kind": str(entry.kind), "name": entry.name} for entry in found.same],
        "extra": [{"kind": str(entry.kind), "name": entry.name} for entry in found.extra],
        "conflicts": [_conflict_data(conflict) for conflict in found.conflict],
        "at_risk": [
            {
                "queue": risk.queue,
                "messages": risk.messages,
                "ready": risk.ready,
                "unacked": risk.unacked,
                "held_back": risk.held_back,
                "consumers": risk.consumers,
                "lag_s": risk.lag_s,
            }
            for risk in planned.at_risk
        ],
        "offers": [
            {"queue": offer.queue, "policy": offer.policy.name, "why": offer.why}
            for offer in planned.offers
        ],
        "notes": list(planned.notes),
    }


def _conflict_data(conflict: Conflict) -> dict[str, object]:
    return {
        "kind": str(conflict.kind),
        "name": conflict.name,
        "differences": [_difference_data(one) for one in conflict.differences],
    }


def _difference_data(difference: Difference) -> dict[str, object]:
    return {
        "field": difference.field,
        "desired": difference.desired,
        "actual": difference.actual,
        "advice": difference.advice,
    }
