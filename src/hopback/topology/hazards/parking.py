"""Rules about dead-letter queues: nothing may leave them by itself."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hopback.topology.hazards.phrases import HARDENED, listed, queue_place
from hopback.topology.hazards.rule import Rule, Severity, Sighting, Verdict, errors, infos, warnings
from hopback.topology.hazards.scene import limited, number, text
from hopback.topology.model import QueueType
from hopback.topology.plan import Leave

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.topology.hazards.scene import Scene
    from hopback.topology.model import Queue

__all__ = ["RULES"]

_LOOKING = (
    Verdict.of(Severity.ERROR, "4.0", "4.3"),
    Verdict.of(Severity.WARNING, "4.3"),
)
_LOOKING_WITH_OWN_LIMIT = (
    Verdict.of(Severity.ERROR, before="4.3"),
    Verdict.of(Severity.WARNING, "4.3"),
)
_MANY_LOOKS = 1000


def _resting(scene: Scene) -> Iterator[Queue]:
    return (queue for queue in scene.queues.values() if queue.name in scene.resting)


def _expiring(scene: Scene) -> Iterator[Sighting]:
    for queue in _resting(scene):
        ttl_ms = number(queue, "x-message-ttl")
        if ttl_ms is not None:
            yield Sighting(
                queue_place(queue.name),
                f"This dead-letter queue lets go of its messages after {ttl_ms} ms: what nobody"
                " looked at by then is gone.",
                "Take `x-message-ttl` away; discard by hand what is of no use.",
            )


def _limited(scene: Scene) -> Iterator[Sighting]:
    for queue in _resting(scene):
        if not limited(queue) or queue.type is QueueType.STREAM:
            continue
        refusing = text(queue, "x-overflow") == "reject-publish"
        if refusing and queue.type is QueueType.QUORUM:
            yield Sighting(
                queue_place(queue.name),
                "When this dead-letter queue is full, parking by publish is refused: failed"
                " messages stay in their queue and come round again.",
                "Take the length limit away.",
                warnings(),
            )
        else:
            lost = "new dead letters are discarded" if refusing else "its oldest messages go"
            yield Sighting(
                queue_place(queue.name),
                f"When this dead-letter queue is full, {lost}, and nobody is told.",
                "Take the length limit away; watch the depth instead.",
            )


def _leaving(scene: Scene) -> Iterator[Sighting]:
    for queue in _resting(scene):
        if queue.name not in scene.legs:
            continue
        reached = scene.reached(queue.name, scene.waiting | scene.resting)
        back = sorted(reached.intersection(scene.mains))
        if back:
            yield Sighting(
                queue_place(queue.name),
                f"This dead-letter queue has a dead-letter exchange that leads back to"
                f" {listed(back)}. A message that did not die by a rejection and comes back this"
                " way is dropped as a cycle.",
                "Take its dead-letter exchange away and re-drive by hand.",
                errors(),
            )
        else:
            yield Sighting(
                queue_place(queue.name),
                "This dead-letter queue has a dead-letter exchange itself: a message that is"
                " rejected, expires or is looked at too often moves on without anybody's wish.",
                "Take its dead-letter exchange away.",
            )


def _looking(scene: Scene) -> Iterator[Sighting]:
    for queue in _resting(scene):
        limit = scene.limit(queue)
        if limit is None or limit.value > _MANY_LOOKS:
            continue
        origin = "default delivery limit" if limit.by_default else "delivery limit"
        yield Sighting(
            queue_place(queue.name),
            f"Looking at the messages of this quorum dead-letter queue and putting them back"
            f" counts; with its {origin} of {limit.value} the broker deletes a message after"
            f" {limit.value + 1} looks, without a word. From 4.3 on only some ways of looking"
            " count (a reject or a closed channel, not a nack).",
            f"{HARDENED[0].upper()}{HARDENED[1:]}, which sets a limit nobody reaches; or set a"
            " policy `delivery-limit: -1` for it (from 4.0 on).",
            _LOOKING if limit.by_default else _LOOKING_WITH_OWN_LIMIT,
        )


def _shared(scene: Scene) -> Iterator[Sighting]:
    users: defaultdict[str, set[str]] = defaultdict(set)
    unplanned = set(scene.mains) - scene.plans.keys()
    for plan in scene.plans.values():
        # What we publish there says in its headers which queue it comes from.
        if plan.parking.by is Leave.REJECT:
            users[plan.parking.queue].add(plan.queue)
    for leg in scene.legs.values():
        for target in scene.resting.intersection(leg.targets) if leg.source in unplanned else ():
            users[target].add(leg.source)
    for name, sources in users.items():
        if len(sources) > 1:
            yield Sighting(
                queue_place(name),
                f"One dead-letter queue is shared by {listed(sources)}: to see or re-drive what"
                " one of them failed, one has to pick it out of all.",
                "Give each consumed queue a dead-letter queue of its own, or select by the header"
                " that names the queue that failed.",
            )


def _stream(scene: Scene) -> Iterator[Sighting]:
    for queue in _resting(scene):
        if queue.type is QueueType.STREAM:
            yield Sighting(
                queue_place(queue.name),
                "This dead-letter queue is a stream: nothing can be taken out of it, so a re-drive"
                " would send the same messages again each time, and what its retention"
                " (`x-max-age`, `x-max-length-bytes`) removes is gone unseen.",
                "Use a quorum queue; let a stream have copies at most.",
            )


RULES = (
    Rule("dead-letters-expire", errors(), _expiring),
    Rule("dead-letter-queue-limited", errors(), _limited),
    Rule("dead-letters-move-on", warnings(), _leaving),
    Rule("looking-deletes", _LOOKING, _looking),
    Rule("dead-letter-queue-shared", infos(), _shared),
    Rule("dead-letter-queue-is-stream", warnings(), _stream),
)
"""What can go wrong where messages should rest."""
