"""Failure plans in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.text import printable
from hopback.topology.durations import format_duration
from hopback.topology.plan import Count, Leave, Return

if TYPE_CHECKING:
    from hopback.topology.plan import Plan, Tier

__all__ = ["plan_in_words", "waits"]


def waits(plan: Plan) -> tuple[tuple[Tier, int], ...]:
    """The tiers a message that always fails goes through, and how often each in a row."""
    laps = max(plan.attempts - 1, 0)
    once = [(tier, 1) for tier in plan.tiers[:-1]][:laps]
    rest = laps - len(once)
    return (*once, *((tier, rest) for tier in plan.tiers[-1:] if rest))


def plan_in_words(plan: Plan) -> tuple[str, ...]:
    """One sentence for each thing that a plan says."""
    return (
        f"The handler runs {_times(plan.attempts)}{_waiting(plan)}.",
        f"A failed message leaves {_leaving(plan.leave)} and comes back {_returning(plan.returns)}.",
        f"A hopeless one rests in {printable(plan.parking.queue)}, parked {_leaving(plan.parking.by)}.",
        f"Attempts are counted in {_counted(plan)}; a re-driven message {_redriven(plan)}.",
        f"A snoozed message waits {_snoozing(plan)}.",
    )


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"up to {count} times")


def _waiting(plan: Plan) -> str:
    steps = [
        format_duration(tier.delay_ms)
        + (f" ({_times(laps).removeprefix('up to ')})" if laps > 1 else "")
        for tier, laps in waits(plan)
    ]
    return f", waiting {', then '.join(steps)} between runs" if steps else " and never again"


def _leaving(leave: Leave) -> str:
    if leave is Leave.PUBLISH:
        return "by confirmed publish"
    return "by reject, moved by the broker"


def _returning(returns: Return) -> str:
    return "straight to its queue" if returns is Return.QUEUE else "through an exchange"


def _counted(plan: Plan) -> str:
    own = "our own header" if plan.count is Count.HEADER else "x-death and our own header"
    return f"{own} and {printable(plan.count_header)}" if plan.count_header else own


def _redriven(plan: Plan) -> str:
    return "starts anew" if plan.redrive.reset else "goes on counting"


def _snoozing(plan: Plan) -> str:
    if plan.snooze is None:
        return "in a retry queue, without counting"
    shortest, longest = format_duration(plan.snooze.min_ms), format_duration(plan.snooze.max_ms)
    return f"{shortest} to {longest} in the consumer and is requeued"
