"""Rules about failure plans, and about queues that nothing reaches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.topology.hazards.phrases import (
    THE_TOPOLOGY,
    exchange_place,
    named,
    plan_place,
    queue_place,
)
from hopback.topology.hazards.rule import Rule, Sighting, errors, infos, warnings
from hopback.topology.model import QueueType
from hopback.topology.plan import Leave

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.topology.hazards.scene import Scene
    from hopback.topology.plan import Plan

__all__ = ["RULES"]


def _missing(scene: Scene) -> Iterator[Sighting]:
    bare = [
        queue.name
        for queue in scene.mains.values()
        if queue.name not in scene.plans and queue.type is not QueueType.STREAM
    ]
    if not scene.plans:
        yield from _unknown_plans([name for name in bare if name not in scene.topology.unconsumed])
        return
    for name in bare:
        if name not in scene.topology.unconsumed:
            yield Sighting(
                queue_place(name),
                "The queue has no failure plan: nothing says what happens to a message whose"
                " handler fails.",
                "Give it a plan (tiers, attempts, a dead-letter queue), or say that it is not"
                " consumed here (`consumers = false`).",
            )


def _unknown_plans(bare: list[str]) -> Iterator[Sighting]:
    """A live broker, a definitions file or a file of `pattern = "none"` has no plans: say so once."""
    if bare:
        yield Sighting(
            THE_TOPOLOGY,
            "No failure plans are known here, so what is said of retries and dead-letter queues"
            " comes from how the queues dead-letter, and from their names.",
            "Give consumed queues a plan in a topology file, and check that file.",
            infos(),
        )


def _broken_ways(scene: Scene) -> Iterator[Sighting]:
    for plan in scene.topology.plans:
        for problem in _problems(scene, plan):
            yield Sighting(
                plan_place(plan.queue),
                f"{problem}. A message that fails cannot take this way: it stays where it is, or"
                " is lost if the broker moves it.",
                "Declare what is missing, or correct the names in the plan.",
            )


def _problems(scene: Scene, plan: Plan) -> Iterator[str]:
    if plan.queue not in scene.queues:
        yield f"The queue {named(plan.queue)} is not declared"
        return
    routes = [route for tier in plan.tiers for route in tier.routes]
    waiting = {route.queue for route in routes}
    parking, redrive = plan.parking, plan.redrive
    for purpose, exchange, key, meant in (
        *(("retry", route.exchange, route.routing_key, {route.queue}) for route in routes),
        ("parking", parking.exchange, parking.routing_key, {parking.queue}),
        # A re-drive may also go through a retry queue, and come back from there.
        ("re-drive", redrive.exchange, redrive.routing_key, {plan.queue, *waiting}),
    ):
        if not meant.intersection(scene.route(exchange, key)):
            yield (
                f"The way for {purpose}, {exchange_place(exchange)} with key {named(key)}, does"
                f" not reach {queue_place(*meant)}"
            )
    yield from _misled(scene, plan, waiting)


def _misled(scene: Scene, plan: Plan, waiting: set[str]) -> Iterator[str]:
    """Rejected messages that end elsewhere than the plan says; without a leg they are deleted."""
    leg = scene.legs.get(plan.queue)
    if leg is None or not leg.targets:
        return
    if plan.leave is Leave.REJECT and not waiting.intersection(leg.targets):
        yield "Rejected messages are meant to reach a retry queue and do not"
    if plan.parking.by is Leave.REJECT and plan.parking.queue not in leg.targets:
        yield "Rejected messages are meant to reach the dead-letter queue and do not"


def _reject_deletes(scene: Scene) -> Iterator[Sighting]:
    for plan in scene.plans.values():
        rejects = Leave.REJECT in (plan.leave, plan.parking.by)
        if rejects and plan.queue in scene.queues and plan.queue not in scene.legs:
            yield Sighting(
                queue_place(plan.queue),
                "The plan rejects messages, but the queue has no dead-letter exchange: the broker"
                " deletes every message that is rejected.",
                "Set `x-dead-letter-exchange`, or let the plan move messages by publish.",
            )


def _unreachable(scene: Scene) -> Iterator[Sighting]:
    bound = {
        binding.destination
        for binding in scene.topology.bindings
        if not binding.to_exchange and scene.exists(binding.source)
    }
    reached = bound | _fed(scene)
    alone = [name for name in scene.mains if name not in reached]
    unplanned = [name for name in alone if name not in scene.plans] if scene.plans else []
    by_name = [name for name in alone if name not in unplanned] if scene.topology.exchanges else []
    if unplanned:
        yield Sighting(
            queue_place(*unplanned),
            "Nothing routes here: no binding, no plan and no dead letters. Messages arrive only if"
            " somebody publishes to the default exchange with the queue's name.",
            "Bind it, or remove it.",
        )
    if by_name:
        yield Sighting(
            queue_place(*by_name),
            "No exchange routes here: messages arrive only through the default exchange, by name.",
            "Bind it to an exchange if others than you should be able to publish to it.",
            infos(),
        )


def _fed(scene: Scene) -> set[str]:
    """The queues that receive other queues' dead letters, their own retries left out."""
    own = {(main, name) for name, mains in scene.users.items() for main in mains}
    own |= {(loop.main, name) for loop in scene.loops for name in loop.through}
    return {
        target for name in scene.legs for target in scene.targets(name) if (target, name) not in own
    }


def _dangling(scene: Scene) -> Iterator[Sighting]:
    for binding in scene.topology.bindings:
        ends = scene.exchanges if binding.to_exchange else scene.queues
        missing = [f"source {named(binding.source)}"] if not scene.exists(binding.source) else []
        if binding.destination not in ends:
            missing.append(f"destination {named(binding.destination)}")
        if missing:
            yield Sighting(
                f"binding {named(binding.source)} → {named(binding.destination)}"
                f" ({named(binding.routing_key)})",
                f"Not declared: {' and '.join(missing)}. A broker refuses this binding or ignores"
                " it, and messages meant for it are lost.",
                "Declare what is missing, or remove the binding.",
            )


def _order(scene: Scene) -> Iterator[Sighting]:
    """Queues that let one consumer work at a time, and retries that come back later."""
    retried = {plan.queue for plan in scene.plans.values() if plan.tiers}
    retried |= {loop.main for loop in scene.loops}
    for name in sorted(retried & scene.queues.keys()):
        if scene.queues[name].arguments.get("x-single-active-consumer") is True:
            yield Sighting(
                queue_place(name),
                "One consumer at a time (`x-single-active-consumer`) keeps the order of messages,"
                " but one that fails waits in a retry queue and comes back behind those that"
                " followed it.",
                "If the order matters, let a failure hold the queue up or park what follows it;"
                " else the argument is not needed.",
            )


RULES = (
    Rule("queue-without-plan", errors(), _missing),
    Rule("plan-leads-nowhere", errors(), _broken_ways),
    Rule("reject-deletes", errors(), _reject_deletes),
    Rule("unreachable-queue", warnings(), _unreachable),
    Rule("dangling-binding", errors(), _dangling),
    Rule("order-lost-by-retry", infos(), _order),
)
"""What can be wrong with plans and with what connects queues."""
