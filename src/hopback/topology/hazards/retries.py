"""Rules about retry queues: does a message wait as long as meant, and come back to its own queue."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, TypeAlias

from hopback.topology.durations import LONGEST_MS, format_duration
from hopback.topology.hazards.phrases import HARDENED, exchange_place, listed, named, queue_place
from hopback.topology.hazards.rule import Rule, Sighting, errors, infos, warnings
from hopback.topology.hazards.scene import drops_head, limited, number, seems_waiting
from hopback.topology.model import QueueType
from hopback.topology.plan import Leave

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.topology.hazards.scene import Scene
    from hopback.topology.model import Queue
    from hopback.topology.plan import Plan

__all__ = ["RULES"]

# By exchange and the queues reached beside the right one: the queues whose retries do that.
_Strays: TypeAlias = "defaultdict[tuple[str, frozenset[str]], set[str]]"


def _without_ttl(scene: Scene) -> Iterator[Sighting]:
    for queue in scene.queues.values():
        if number(queue, "x-message-ttl") is not None:
            continue
        if queue.name in scene.users:
            yield _never_expires(queue, "It is a retry queue without a time to live")
        elif queue.name in scene.mains and queue.name not in scene.plans and _to_main(scene, queue):
            seeming = _never_expires(queue, "By its name this is a retry queue, without one TTL")
            yield Sighting(seeming.place, seeming.explanation, seeming.fix, warnings())


def _to_main(scene: Scene, queue: Queue) -> bool:
    """Whether it is called a retry queue and sends its dead letters to a consumed one."""
    onward = set(scene.targets(queue.name)) - scene.resting - scene.waiting
    return seems_waiting(queue.name) and bool(onward)


def _never_expires(queue: Queue, beginning: str) -> Sighting:
    return Sighting(
        queue_place(queue.name),
        f"{beginning} (`x-message-ttl`): a message that enters waits for ever, unless its"
        " publisher set an `expiration`, and then it waits for all that stand before it.",
        "Set `x-message-ttl` to the delay that is meant, one queue for each delay.",
    )


def _without_return(scene: Scene) -> Iterator[Sighting]:
    seen = set()
    for plan, _, route in scene.routes:
        if route.queue not in scene.queues or (plan.queue, route.queue) in seen:
            continue
        seen.add((plan.queue, route.queue))
        if plan.queue not in scene.targets(route.queue):
            ends = "are deleted" if route.queue not in scene.legs else "go elsewhere or nowhere"
            yield Sighting(
                queue_place(route.queue),
                f"Messages of {named(plan.queue)} wait here and then {ends}: they never come back"
                " to be tried again.",
                'Set `x-dead-letter-exchange: ""` and `x-dead-letter-routing-key` to'
                f" {named(plan.queue)} on the retry queue.",
            )


def _delays(scene: Scene) -> dict[str, set[int]]:
    """The delays for which plans use each retry queue."""
    delays: defaultdict[str, set[int]] = defaultdict(set)
    for _, delay_ms, route in scene.routes:
        if route.queue in scene.queues:
            delays[route.queue].add(delay_ms)
    return delays


def _other_delay(scene: Scene) -> Iterator[Sighting]:
    for name, delays in _delays(scene).items():
        ttl_ms = number(scene.queues[name], "x-message-ttl")
        if ttl_ms is not None and len(delays) == 1 and ttl_ms not in delays:
            yield Sighting(
                queue_place(name),
                f"The plan says a wait of {_spelled(*delays)}, but the queue lets messages go after"
                f" {ttl_ms} ms.",
                "Make both the same. The time to live of a queue that exists cannot be changed in"
                " place: use a new name, or a policy.",
            )


def _mixed(scene: Scene) -> Iterator[Sighting]:
    for name, delays in _delays(scene).items():
        if len(delays) > 1:
            yield Sighting(
                queue_place(name),
                f"One queue serves several delays ({_spelled(*sorted(delays))}). A queue lets"
                " messages go at its head only, so a short wait lasts as long as the longest one"
                " before it.",
                "Use one retry queue for each delay, each with its own `x-message-ttl`.",
            )


def _spelled(*delays_ms: int) -> str:
    """The delays; nothing has checked them before."""
    return ", ".join(
        format_duration(delay) if 0 <= delay <= LONGEST_MS else f"{delay} ms" for delay in delays_ms
    )


def _reaches_others(scene: Scene) -> Iterator[Sighting]:
    for (exchange, others), mains in _returning(scene).items():
        yield Sighting(
            exchange_place(exchange),
            f"Retries of {listed(mains)} come back through this exchange and also reach"
            f" {listed(others)}, which did not fail: each retry is handled there once more.",
            "Return straight to the queue that failed, through the default exchange with its name"
            f" as the key: {HARDENED}.",
        )
    for (exchange, others), mains in _leaving(scene).items():
        yield Sighting(
            exchange_place(exchange),
            f"Failed messages of {listed(mains)} that leave for retry also reach {listed(others)}:"
            " each failure makes further copies.",
            "Let each retry queue be reached by a key of its own.",
        )
    for (exchange, others), waiting in _spreading(scene).items():
        yield Sighting(
            exchange_place(exchange),
            f"What expires in {listed(waiting)} reaches several queues through this exchange:"
            f" {listed(others)}. If these messages are retries, queues that did not fail receive"
            " them too.",
            "Let a retry return straight to its own queue, through the default exchange.",
            infos(),
        )


def _returning(scene: Scene) -> _Strays:
    strays: _Strays = defaultdict(set)
    ways = [(plan.queue, route.queue) for plan, _, route in scene.routes]
    ways += [(loop.main, name) for loop in scene.loops for name in loop.through]
    for main, waiting in ways:
        others = frozenset(scene.targets(waiting)) - {main}
        # Where it does not come back at all, another rule speaks.
        if others and main in scene.targets(waiting):
            strays[scene.legs[waiting].exchange, others].add(main)
    return strays


def _leaving(scene: Scene) -> _Strays:
    strays: _Strays = defaultdict(set)
    for plan in scene.plans.values():
        for exchange, reached, meant in _ways_out(scene, plan):
            others = frozenset(reached) - meant
            if others and meant.intersection(reached):
                strays[exchange, others].add(plan.queue)
    return strays


def _ways_out(scene: Scene, plan: Plan) -> Iterator[tuple[str, tuple[str, ...], frozenset[str]]]:
    """Each way out of a plan's queue: the exchange, what it reaches, what it should."""
    routes = [route for tier in plan.tiers for route in tier.routes]
    leg = scene.legs.get(plan.queue)
    if plan.leave is Leave.REJECT and leg:
        yield leg.exchange, leg.targets, frozenset(route.queue for route in routes)
    # A message that carries our own count leaves by publish in any plan.
    for route in routes:
        reached = scene.route(route.exchange, route.routing_key)
        yield route.exchange, reached, frozenset({route.queue})


def _spreading(scene: Scene) -> _Strays:
    """Retry queues that no plan and no loop explains, and that reach several queues."""
    explained = set(scene.users) | {name for loop in scene.loops for name in loop.through}
    strays: _Strays = defaultdict(set)
    for name in scene.waiting - explained:
        if len(scene.targets(name)) > 1:
            strays[scene.legs[name].exchange, frozenset(scene.targets(name))].add(name)
    return strays


def _limited(scene: Scene) -> Iterator[Sighting]:
    for name in scene.waiting & scene.queues.keys():
        queue = scene.queues[name]
        if drops_head(queue):
            yield Sighting(
                queue_place(name),
                "When this retry queue is full, the broker sends its oldest messages on before"
                " their wait is over, or deletes them if it has no dead-letter exchange.",
                "Take the length limit away.",
            )
        elif _discards(scene, queue):
            yield Sighting(
                queue_place(name),
                "When this classic retry queue is full, it discards the dead letters that the"
                " broker moves into it; `reject-publish` tells only publishers.",
                "Take the length limit away, or let messages leave by a confirmed publish.",
                errors(),
            )


def _discards(scene: Scene, queue: Queue) -> bool:
    """Whether it is full one day and receives dead letters, of which nobody is told."""
    fed = any(queue.name in leg.targets for leg in scene.legs.values())
    return limited(queue) and fed and queue.type is QueueType.CLASSIC


def _with_priorities(scene: Scene) -> Iterator[Sighting]:
    for queue in scene.queues.values():
        if queue.name in scene.waiting and number(queue, "x-max-priority") is not None:
            yield Sighting(
                queue_place(queue.name),
                "A retry queue with priorities (`x-max-priority`): messages expire at the head"
                " only, so one of low priority waits behind every later one of a higher priority,"
                " far longer than its delay.",
                "Take `x-max-priority` away; messages keep their priority for the main queue.",
            )


RULES = (
    Rule("retry-without-ttl", errors(), _without_ttl),
    Rule("retry-without-return", errors(), _without_return),
    Rule("retry-delay-differs", warnings(), _other_delay),
    Rule("mixed-delays", warnings(), _mixed),
    Rule("retry-reaches-others", warnings(), _reaches_others),
    Rule("retry-queue-limited", warnings(), _limited),
    Rule("retry-queue-with-priorities", warnings(), _with_priorities),
)
"""What can go wrong while a message waits."""
