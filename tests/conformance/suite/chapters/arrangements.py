"""Queues for several rows: a queue with its dead-letter queue, a retry loop, a death."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from hopback.fields import RawValue
from hopback.topology.model import QueueType
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopback.fields import FieldValue, Headers
    from hopback.message import Delivery
    from tests.conformance.suite.subject import Subject

V3_12, V3_13, V4_0, V4_3 = (
    BrokerVersion(3, 12),
    BrokerVersion(3, 13),
    BrokerVersion(4, 0),
    BrokerVersion(4, 3),
)
BOTH = (QueueType.CLASSIC, QueueType.QUORUM)
AT_LEAST_ONCE: Headers = {
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}


def to(queue: str, **further: FieldValue) -> dict[str, FieldValue]:
    """Return arguments that dead-letter directly to a queue. Further keys have `_` for `-` and no `x-`."""
    rest = {f"x-{key.replace('_', '-')}": value for key, value in further.items()}
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue, **rest}


def nested(levels: int) -> RawValue:
    """Return nested tables in wire format."""
    raw = b"V"
    for _ in range(levels):
        raw = b"F" + (len(raw) + 2).to_bytes(4, "big") + b"\x01k" + raw
    return RawValue(raw)


async def pair(
    subject: Subject,
    kind: QueueType = QueueType.CLASSIC,
    target: QueueType = QueueType.CLASSIC,
    **arguments: FieldValue,
) -> tuple[str, str]:
    """Declare a queue that dead-letters to a second one. Return both names."""
    dead = await subject.queue(target)
    return await subject.queue(kind, to(dead, **arguments)), dead


async def reject_loop(
    subject: Subject,
    kind: QueueType = QueueType.CLASSIC,
    wait_ms: int = 50,
    **arguments: FieldValue,
) -> tuple[str, str]:
    """Declare main -rejected→ wait -expired→ main. Return both names."""
    main, wait = subject.name("main"), subject.name("wait")
    await subject.queue(kind, to(main, message_ttl=wait_ms), name=wait)
    await subject.queue(kind, to(wait, **arguments), name=main)
    return main, wait


async def lap(subject: Subject, queue: str) -> Delivery:
    """Get a message, dead-letter it and return the delivery."""
    delivery = await subject.take(queue)
    subject.channel.nack(delivery.tag, requeue=False)
    return delivery


def deaths(delivery: Delivery) -> list[Mapping[str, FieldValue]]:
    """Return the entries of the delivery's `x-death`."""
    found = delivery.properties.headers.get("x-death", [])
    return list(cast("list[Mapping[str, FieldValue]]", found))
