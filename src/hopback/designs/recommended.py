"""The recommended design for new queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.designs.design import name_problems, refuse
from hopback.topology.expand import DELIVERY_LIMIT, harden_queues, recommend_plan
from hopback.topology.model import Binding, Exchange, ExchangeType, Topology

if TYPE_CHECKING:
    from collections.abc import Sequence

TIERS_MS = (30_000, 300_000, 1_800_000)
"""The default retry delays: 30 s, 5 min and 30 min."""

_LONGEST_SUFFIX = ".retry.3650d23h59m59s999ms"


def recommended(
    queue: str = "orders",
    *,
    hardened: bool = True,
    tiers_ms: Sequence[int] = TIERS_MS,
    attempts: int | None = None,
    exchange: str | None = None,
    routing_keys: Sequence[str] = ("#",),
    delivery_limit: int = DELIVERY_LIMIT,
) -> Topology:
    """Hopback's own design, which avoids the hazards of the documented systems.

    Each delay has a quorum queue (`{queue}.retry.30s`, …), from which a message returns directly to
    the queue in which it failed. The dead-letter queue is `{queue}.dlq`. Messages reach all queues
    through the default exchange. If `exchange` is given, this topic exchange also feeds the queue.

    A failed message is not lost when a process, connection or node dies, and a retry only reaches
    the queue in which the message failed. `hardened` has no effect.
    """
    problems = name_problems("params.queue", queue, room=len(_LONGEST_SUFFIX))
    refuse([*problems], "recommended")
    plan = recommend_plan(queue, tiers_ms=tiers_ms, attempts=attempts)
    feeds = () if exchange is None else tuple(Binding(exchange, queue, k) for k in routing_keys)
    return Topology(
        name="recommended",
        exchanges=() if exchange is None else (Exchange(exchange, ExchangeType.TOPIC),),
        queues=harden_queues(plan, delivery_limit=delivery_limit),
        bindings=feeds,
        plans=(plan,),
    )
