"""Rules about failure plans and unreachable queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.topology.delays import is_from_level, queue_of_schedule
from hopback.topology.hazards.rule import (
    THE_TOPOLOGY,
    HazardRule,
    Hit,
    errors,
    exchange_place,
    infos,
    plan_place,
    queue_place,
    quote_name,
    warnings,
)
from hopback.topology.model import QueueType
from hopback.topology.plan import Leave, Plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.topology.hazards.analysis import Analysis


def _no_plan(analysis: Analysis) -> Iterator[Hit]:
    known = analysis.plans.keys() | analysis.topology.unconsumed
    bare = [
        queue.name
        for queue in analysis.mains.values()
        if queue.name not in known and queue.type is not QueueType.STREAM
    ]
    # Only report this once if there are no plans at all, for example for a definitions file.
    if bare and not analysis.plans:
        yield Hit(
            THE_TOPOLOGY,
            "No failure plans are known. The findings about retry and dead-letter queues are based"
            " on the queues' dead-letter arguments and names.",
            "Give consumed queues a plan in a topology file, and check that file.",
            infos(),
        )
        return
    for name in bare:
        yield Hit(
            queue_place(name),
            "The queue has no failure plan. Retries and the dead-letter queue of failed messages are"
            " undefined.",
            "Give it a plan (tiers, attempts, a dead-letter queue), or declare that it is not"
            " consumed here (`consumers = false`).",
        )


def _broken_ways(analysis: Analysis) -> Iterator[Hit]:
    for plan in analysis.topology.plans:
        for problem in _problems(analysis, plan):
            yield Hit(
                plan_place(plan.queue),
                f"{problem}. A failed message cannot take this route. It stays in its queue, or"
                " is lost if the broker moves it.",
                "Declare the missing objects, or correct the names in the plan.",
            )


def _problems(analysis: Analysis, plan: Plan) -> Iterator[str]:
    if plan.queue not in analysis.queues:
        yield f"The queue {quote_name(plan.queue)} is not declared"
        return
    routes = [route for tier in plan.tiers for route in tier.routes]
    waiting = {route.queue for route in routes}
    parking, redrive = plan.parking, plan.redrive
    for purpose, exchange, key, meant in (
        *(("retry", route.exchange, route.routing_key, {route.queue}) for route in routes),
        ("parking", parking.exchange, parking.routing_key, {parking.queue}),
        # A re-drive may go through a retry queue.
        ("re-drive", redrive.exchange, redrive.routing_key, {plan.queue, *waiting}),
    ):
        if not meant.intersection(analysis.route(exchange, key)):
            yield (
                f"The route for {purpose}, {exchange_place(exchange)} with key {quote_name(key)}, does"
                f" not reach {queue_place(*meant)}"
            )
    # Check where rejected messages are routed to. Without a destination they are deleted.
    leg = analysis.legs.get(plan.queue)
    if leg is None or not leg.targets:
        return
    if plan.leave is Leave.REJECT and not waiting.intersection(leg.targets):
        yield "Rejected messages are meant to reach a retry queue but do not"
    if plan.parking.by is Leave.REJECT and plan.parking.queue not in leg.targets:
        yield "Rejected messages are meant to reach the dead-letter queue but do not"


def _reject_deletes(analysis: Analysis) -> Iterator[Hit]:
    for plan in analysis.plans.values():
        rejects = Leave.REJECT in (plan.leave, plan.parking.by)
        if rejects and plan.queue in analysis.queues and plan.queue not in analysis.legs:
            yield Hit(
                queue_place(plan.queue),
                "The plan rejects messages, but the queue has no dead-letter exchange. The broker"
                " deletes every rejected message.",
                "Set `x-dead-letter-exchange`, or let the plan move messages by publish.",
            )


def _unreachable(analysis: Analysis) -> Iterator[Hit]:
    bound = {
        binding.destination
        for binding in analysis.topology.bindings
        if not binding.to_exchange and analysis.exists(binding.source)
    }
    # Find queues that receive dead letters of other queues, excluding their own retries.
    own = {(main, name) for name, mains in analysis.users.items() for main in mains}
    own |= {(loop.main, name) for loop in analysis.loops for name in loop.through}
    reached = bound | {
        target
        for name in analysis.legs
        for target in analysis.targets(name)
        if (target, name) not in own
    }
    alone = [name for name in analysis.mains if name not in reached]
    # The application publishes to schedule queues through the default exchange.
    alone = [name for name in alone if queue_of_schedule(name) not in analysis.plans]
    unplanned = [name for name in alone if name not in analysis.plans] if analysis.plans else []
    # Ignore the exchanges for delayed messages.
    has_exchanges = any(not is_from_level(one.name) for one in analysis.topology.exchanges)
    by_name = [name for name in alone if name not in unplanned] if has_exchanges else []
    if unplanned:
        yield Hit(
            queue_place(*unplanned),
            "No binding, plan or dead-letter exchange leads to this queue. Messages arrive only by"
            " the default exchange with the queue's name as routing key.",
            "Bind it, or remove it.",
        )
    if by_name:
        yield Hit(
            queue_place(*by_name),
            "No exchange leads to this queue. Messages arrive only through the default exchange, with"
            " the queue's name as routing key.",
            "Bind it to an exchange if other applications should publish to it.",
            infos(),
        )


def _unknown_ends(analysis: Analysis) -> Iterator[Hit]:
    for binding in analysis.topology.bindings:
        ends = analysis.exchanges if binding.to_exchange else analysis.queues
        missing = (
            [f"source {quote_name(binding.source)}"] if not analysis.exists(binding.source) else []
        )
        if binding.destination not in ends:
            missing.append(f"destination {quote_name(binding.destination)}")
        if missing:
            yield Hit(
                f"binding {quote_name(binding.source)} → {quote_name(binding.destination)}"
                f" ({quote_name(binding.routing_key)})",
                f"Not declared: {' and '.join(missing)}. A broker refuses this binding or ignores"
                " it, and messages meant for it are lost.",
                "Declare the missing objects, or remove the binding.",
            )


def _order(analysis: Analysis) -> Iterator[Hit]:
    """Check for queues with a single active consumer whose retries change the order of messages."""
    retried = {plan.queue for plan in analysis.plans.values() if plan.tiers}
    retried |= {loop.main for loop in analysis.loops}
    for name in sorted(retried & analysis.queues.keys()):
        if analysis.queues[name].arguments.get("x-single-active-consumer") is True:
            yield Hit(
                queue_place(name),
                "One consumer at a time (`x-single-active-consumer`) keeps the order of messages,"
                " but a failed message waits in a retry queue and returns behind its successors.",
                "If the order matters, block the queue on a failure or park the following messages."
                " Otherwise the argument is not needed.",
            )


RULES = (
    HazardRule("queue-without-plan", errors(), _no_plan),
    HazardRule("plan-leads-nowhere", errors(), _broken_ways),
    HazardRule("reject-deletes", errors(), _reject_deletes),
    HazardRule("unreachable-queue", warnings(), _unreachable),
    HazardRule("dangling-binding", errors(), _unknown_ends),
    HazardRule("order-lost-by-retry", infos(), _order),
)
"""Rules about plans and unreachable queues."""
