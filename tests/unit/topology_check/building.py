"""Small topologies to break and to repair."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hopback.topology.check import check
from hopback.topology.expand import harden_queues, recommend_plan
from hopback.topology.model import Binding, Exchange, Queue, QueueType, Topology
from hopback.topology.plan import (
    Count,
    Leave,
    Parking,
    Plan,
    Redrive,
    Return,
    Route,
    Tier,
)
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from hopback.fields import FieldValue
    from hopback.topology.hazards.rule import Finding

__all__ = [
    "classic",
    "edited",
    "found",
    "live",
    "loop",
    "quorum",
    "retry_loop_plan",
    "rules",
    "sound",
    "with_queue",
]


def classic(name: str, **arguments: FieldValue) -> Queue:
    """A classic queue. `message_ttl=1` is `x-message-ttl: 1`."""
    return Queue(name, arguments=_spell(arguments))


def quorum(name: str, **arguments: FieldValue) -> Queue:
    """A quorum queue."""
    return Queue(name, QueueType.QUORUM, arguments=_spell(arguments))


def _spell(arguments: dict[str, FieldValue]) -> dict[str, FieldValue]:
    return {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}


def sound() -> Topology:
    """One queue in the recommended design, without findings."""
    plan = recommend_plan("orders", tiers_ms=[1000])
    return Topology("shop", queues=harden_queues(plan), plans=(plan,))


def with_queue(topology: Topology, *queues: Queue) -> Topology:
    """The topology with these queues in the place of those of their names, or beside them."""
    merged = {queue.name: queue for queue in (*topology.queues, *queues)}
    return replace(topology, queues=tuple(merged.values()))


def edited(topology: Topology, queue: str, **arguments: FieldValue) -> Topology:
    """The topology with changed arguments of a queue. None removes one."""
    before = topology.queue(queue)
    assert before is not None
    after = {**before.arguments, **_spell(arguments)}
    kept = {key: value for key, value in after.items() if value is not None}
    return with_queue(topology, replace(before, arguments=kept))


def retry_loop_plan(queue: str = "q", *, attempts: int = 3, parking: Leave = Leave.PUBLISH) -> Plan:
    """A plan that leaves by rejection into `<queue>.retry`."""
    return Plan(
        queue=queue,
        attempts=attempts,
        tiers=(Tier("1s", 1000, (Route("", f"{queue}.retry", f"{queue}.retry"),)),),
        leave=Leave.REJECT,
        returns=Return.QUEUE,
        parking=Parking(f"{queue}.dlq", parking, "", f"{queue}.dlq"),
        count=Count.X_DEATH,
        redrive=Redrive("", queue),
    )


def live(*queues: Queue, exchanges: tuple[Exchange, ...] = (), **bound: str) -> Topology:
    """A live topology without plans. `q="x"` binds queue `q` to exchange `x` by `#`."""
    bindings = tuple(Binding(exchange, queue, "#") for queue, exchange in bound.items())
    return Topology("live", exchanges, queues, bindings)


def loop(main: Queue | None = None, *more: Queue, **main_arguments: FieldValue) -> Topology:
    """A loop that the broker turns: `q` by rejection to `q.retry`, by expiry back."""
    first = main or classic(
        "q", dead_letter_exchange="", dead_letter_routing_key="q.retry", **main_arguments
    )
    back = classic(
        "q.retry", message_ttl=1000, dead_letter_exchange="", dead_letter_routing_key="q"
    )
    return with_queue(live(first, back, classic("q.dlq")), *more)


def found(topology: Topology, rule: str, version: str | None = None) -> list[Finding]:
    """The findings of a rule."""
    broker = BrokerVersion.parse(version) if version else None
    return [each for each in check(topology, broker) if each.rule == rule]


def rules(topology: Topology, version: str | None = None) -> set[str]:
    """The rules that report anything."""
    broker = BrokerVersion.parse(version) if version else None
    return {each.rule for each in check(topology, broker)}
