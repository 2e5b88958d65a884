"""Rules about queues that delete messages before they are handled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.topology.expand import NO_DELIVERY_LIMIT
from hopback.topology.hazards.analysis import Analysis, drops_head, number
from hopback.topology.hazards.rule import (
    HARDENED,
    HazardRule,
    Hit,
    errors,
    list_names,
    queue_place,
    warnings,
)
from hopback.topology.model import Queue, QueueType

if TYPE_CHECKING:
    from collections.abc import Iterator


_KEEP_THEM = "Set a dead-letter exchange that leads to a dead-letter queue"


def _queues_without_exchange(analysis: Analysis) -> list[Queue]:
    """Return the consumed queues that do not have a dead-letter exchange."""
    return [queue for queue in analysis.mains.values() if queue.name not in analysis.legs]


def _overflow(analysis: Analysis) -> Iterator[Hit]:
    found = [queue.name for queue in _queues_without_exchange(analysis) if drops_head(queue)]
    if found:
        yield Hit(
            queue_place(*found),
            "When the queue is full, the broker deletes its oldest messages, which it has already"
            " confirmed to their publishers.",
            f"{_KEEP_THEM}, or use `x-overflow: reject-publish`, which nacks new publishes.",
        )


def _expiry(analysis: Analysis) -> Iterator[Hit]:
    found = [
        queue.name
        for queue in _queues_without_exchange(analysis)
        if number(queue, "x-message-ttl") is not None and queue.type is not QueueType.STREAM
    ]
    if found:
        yield Hit(
            queue_place(*found),
            "Messages that are not consumed within the time to live (`x-message-ttl`) are deleted.",
            f"{_KEEP_THEM}, or remove the time to live.",
        )


def _delivery_limit(analysis: Analysis) -> Iterator[Hit]:
    limits = {queue.name: analysis.limit(queue) for queue in _queues_without_exchange(analysis)}
    for by_default, severities in ((True, warnings(since="4.0")), (False, warnings())):
        found = [
            name
            for name, limit in limits.items()
            if limit and limit.by_default is by_default and limit.value < NO_DELIVERY_LIMIT
        ]
        if found:
            yield Hit(
                queue_place(*found),
                "A message that exceeds the"
                f" {'default delivery limit of 20' if by_default else 'delivery limit'} is deleted,"
                " because the queue has no dead-letter exchange. Each crash of a consumer counts as"
                " a return of all its unsettled messages.",
                f"{_KEEP_THEM}: {HARDENED}.",
                severities,
            )


def _limit_below_one(analysis: Analysis) -> Iterator[Hit]:
    """Check for delivery limits below 1. Older versions treat negative limits as 0."""
    for queue in analysis.declared.queues:
        value = number(analysis.queues[queue.name], "x-delivery-limit")
        # RabbitMQ rejects policies with a negative limit where it would be harmful.
        harmful = value == 0 or (value is not None and value == number(queue, "x-delivery-limit"))
        if queue.type is QueueType.QUORUM and value is not None and value < 1 and harmful:
            yield Hit(
                queue_place(queue.name),
                f"With a delivery limit of {value} the broker removes a message when it is"
                " returned for the first time. A crash of a consumer is enough, and so is browsing"
                " the queue.",
                "Use a large limit (1000000000 is accepted everywhere), or `-1` on 4.0 and later"
                " only.",
                errors(before="4.0" if value < 0 else ""),
            )


def _queue_vanishes(analysis: Analysis) -> Iterator[Hit]:
    unconsumed = analysis.retry_queues | analysis.dead_letter_queues
    for queue in analysis.queues.values():
        lease_ms = number(queue, "x-expires")
        if lease_ms is None or queue.type is QueueType.STREAM:
            continue
        kept = queue.name in unconsumed
        yield Hit(
            queue_place(queue.name),
            f"The broker deletes this queue with all its messages after {lease_ms} ms without a"
            f" consumer{', and such a queue never has one' if kept else ''}. The messages are not"
            " dead-lettered.",
            "Remove `x-expires`.",
            errors() if kept else warnings(),
        )


def _short_lived(analysis: Analysis) -> Iterator[Hit]:
    found = [name for name in analysis.failure_queues if _is_short_lived(analysis.queues[name])]
    used = {leg.exchange for leg in analysis.legs.values()}
    used |= {route.exchange for _, _, route in analysis.routes}
    used |= {plan.parking.exchange for plan in analysis.plans.values()}
    exchanges = [
        each.name
        for each in analysis.topology.exchanges
        if each.name in used and (each.auto_delete or not each.durable)
    ]
    if found:
        yield Hit(
            queue_place(*found),
            "A queue that is not durable, or is exclusive or auto-delete, is deleted with its"
            " messages when the broker restarts or the last consumer leaves.",
            "Declare it durable, neither exclusive nor auto-delete.",
        )
    if exchanges:
        yield Hit(
            f"exchange {list_names(exchanges)}",
            "An exchange that is not durable, or is auto-delete, can be deleted. Failed messages that"
            " should go through it are then dropped or refused.",
            "Declare it durable and not auto-delete.",
        )


def _is_short_lived(queue: Queue) -> bool:
    return queue.exclusive or queue.auto_delete or not queue.durable


def _transient(analysis: Analysis) -> Iterator[Hit]:
    """Check for queues that are not durable."""
    involved = set(analysis.failure_queues)
    for queue in analysis.queues.values():
        if queue.durable or queue.exclusive or queue.type is not QueueType.CLASSIC:
            continue
        lost = queue.name not in involved and not queue.auto_delete
        yield Hit(
            queue_place(queue.name),
            f"The queue is not durable.{_LOST_AT_RESTART if lost else ''} RabbitMQ is removing"
            " transient queues: from 4.3 on it refuses the declaration unless its configuration"
            " permits it.",
            "Declare it durable, or exclusive if it belongs to one connection.",
            () if lost else warnings(since="4.3"),
        )


_LOST_AT_RESTART = (
    " A restart of its node deletes it with all its messages, including persistent ones."
)


def _classic(analysis: Analysis) -> Iterator[Hit]:
    found = [
        name
        for name in analysis.failure_queues
        if analysis.queues[name].type is QueueType.CLASSIC
        and not _is_short_lived(analysis.queues[name])
    ]
    if found:
        consumed = [name for name in found if name in analysis.mains]
        yield Hit(
            queue_place(*(consumed or found)),
            f"{len(found)} classic {'queues are' if len(found) > 1 else 'queue is'} affected, including"
            " retry and dead-letter queues. A classic queue lives on one node and dead-letters at most"
            " once. Its messages are lost with the node's disk, and dead letters in transit are lost"
            " when the node dies.",
            f"Use quorum queues: {HARDENED}. The type of an existing queue cannot be changed.",
        )


RULES = (
    HazardRule("overflow-deletes", warnings(), _overflow),
    HazardRule("expiry-deletes", warnings(), _expiry),
    HazardRule("delivery-limit-deletes", warnings(since="4.0"), _delivery_limit),
    HazardRule("first-return-deletes", errors(), _limit_below_one),
    HazardRule("queue-expires", errors(), _queue_vanishes),
    HazardRule("short-lived", warnings(), _short_lived),
    HazardRule("transient-queue", warnings(), _transient),
    HazardRule("classic-queue", warnings(), _classic),
)
"""Rules about message loss."""
