"""Rules about dead-letter queues. Messages must not be removed from them automatically."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hopback.topology.effective import MANY_RETURNS
from hopback.topology.hazards.analysis import Analysis, has_limit, number, text
from hopback.topology.hazards.rule import (
    HARDENED,
    HazardRule,
    Hit,
    Severity,
    VersionedSeverity,
    errors,
    if_limits_can_be_lifted,
    infos,
    list_names,
    queue_place,
    warnings,
)
from hopback.topology.model import Queue, QueueType
from hopback.topology.plan import Leave

if TYPE_CHECKING:
    from collections.abc import Iterator


_LOOKING = (
    VersionedSeverity.of(Severity.ERROR, "4.0", "4.3"),
    VersionedSeverity.of(Severity.WARNING, "4.3"),
)
_LOOKING_WITH_OWN_LIMIT = (
    VersionedSeverity.of(Severity.ERROR, before="4.3"),
    VersionedSeverity.of(Severity.WARNING, "4.3"),
)


def _dead_letter_queues(analysis: Analysis) -> Iterator[Queue]:
    return (
        queue for queue in analysis.queues.values() if queue.name in analysis.dead_letter_queues
    )


def _expiry(analysis: Analysis) -> Iterator[Hit]:
    for queue in _dead_letter_queues(analysis):
        ttl_ms = number(queue, "x-message-ttl")
        if ttl_ms is not None:
            yield Hit(
                queue_place(queue.name),
                f"Messages in this dead-letter queue expire after {ttl_ms} ms, and the broker deletes"
                " them.",
                "Remove `x-message-ttl`, and discard dead letters by hand.",
            )


def _length_limit(analysis: Analysis) -> Iterator[Hit]:
    for queue in _dead_letter_queues(analysis):
        if not has_limit(queue) or queue.type is QueueType.STREAM:
            continue
        refusing = text(queue, "x-overflow") == "reject-publish"
        if refusing and queue.type is QueueType.QUORUM:
            yield Hit(
                queue_place(queue.name),
                "When this dead-letter queue is full, it refuses published messages. Failed"
                " messages stay in their queue and are delivered again.",
                "Remove the length limit.",
                warnings(),
            )
        else:
            lost = (
                "new dead letters are discarded" if refusing else "its oldest messages are deleted"
            )
            yield Hit(
                queue_place(queue.name),
                f"When this dead-letter queue is full, {lost} without notice.",
                "Remove the length limit and monitor the depth instead.",
            )


def _move_on(analysis: Analysis) -> Iterator[Hit]:
    for queue in _dead_letter_queues(analysis):
        if queue.name not in analysis.legs:
            continue
        reached = analysis.reach(queue.name, analysis.retry_queues | analysis.dead_letter_queues)
        back = sorted(reached.intersection(analysis.mains))
        if back:
            yield Hit(
                queue_place(queue.name),
                f"This dead-letter queue has a dead-letter exchange that leads back to"
                f" {list_names(back)}. The broker drops a message that returns this way without a"
                " rejection, because it detects a cycle.",
                "Remove its dead-letter exchange and re-drive messages instead.",
                errors(),
            )
        else:
            yield Hit(
                queue_place(queue.name),
                "This dead-letter queue has a dead-letter exchange itself. A message that is"
                " rejected, expires or is read too often moves on without an operator's decision.",
                "Remove its dead-letter exchange.",
            )


def _reads_delete(analysis: Analysis) -> Iterator[Hit]:
    for queue in _dead_letter_queues(analysis):
        limit = analysis.limit(queue)
        if limit is None or limit.value >= MANY_RETURNS:
            continue
        origin = "default delivery limit" if limit.by_default else "delivery limit"
        yield Hit(
            queue_place(queue.name),
            f"Reading and requeueing the messages of this quorum dead-letter queue counts as"
            f" returns. With its {origin} of {limit.value} the broker silently deletes a"
            f" message after it was read {limit.value + 1} times. From 4.3 on only some ways of"
            " reading count (a reject or a closed channel, not a nack).",
            f"{HARDENED[0].upper()}{HARDENED[1:]}, which sets an unreachable limit"
            + if_limits_can_be_lifted(
                ", or set a policy `delivery-limit: -1` for it (from 4.0 on)", analysis.version
            )
            + ".",
            _LOOKING if limit.by_default else _LOOKING_WITH_OWN_LIMIT,
        )


def _common_queue(analysis: Analysis) -> Iterator[Hit]:
    users: defaultdict[str, set[str]] = defaultdict(set)
    unplanned = set(analysis.mains) - analysis.plans.keys()
    for plan in analysis.plans.values():
        # Published messages have a header with the name of the queue.
        if plan.parking.by is Leave.REJECT:
            users[plan.parking.queue].add(plan.queue)
    for leg in analysis.legs.values():
        for target in (
            analysis.dead_letter_queues.intersection(leg.targets) if leg.source in unplanned else ()
        ):
            users[target].add(leg.source)
    for name, sources in users.items():
        if len(sources) > 1:
            yield Hit(
                queue_place(name),
                f"One dead-letter queue is shared by {list_names(sources)}. To see or re-drive"
                " the failures of one queue, operators must filter its messages.",
                "Give each consumed queue its own dead-letter queue, or select by the header with"
                " the name of the failed queue.",
            )


def _stream(analysis: Analysis) -> Iterator[Hit]:
    for queue in _dead_letter_queues(analysis):
        if queue.type is QueueType.STREAM:
            yield Hit(
                queue_place(queue.name),
                "This dead-letter queue is a stream. Its messages cannot be removed, so each"
                " re-drive would send the same messages again. Its retention"
                " (`x-max-age`, `x-max-length-bytes`) deletes messages silently.",
                "Use a quorum queue. A stream is suitable for copies only.",
            )


RULES = (
    HazardRule("dead-letters-expire", errors(), _expiry),
    HazardRule("dead-letter-queue-limited", errors(), _length_limit),
    HazardRule("dead-letters-move-on", warnings(), _move_on),
    HazardRule("looking-deletes", _LOOKING, _reads_delete),
    HazardRule("dead-letter-queue-shared", infos(), _common_queue),
    HazardRule("dead-letter-queue-is-stream", warnings(), _stream),
)
"""Rules about dead-letter queues."""
