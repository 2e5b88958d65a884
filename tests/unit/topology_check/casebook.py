"""Cases of hazards, and ways to break a sound topology."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from hopback.topology.model import Binding, Exchange, Policy, Queue, Topology
from hopback.topology.plan import Leave
from tests.unit.topology_check.building import (
    classic,
    live,
    loop,
    retry_loop_plan,
)

if TYPE_CHECKING:
    from hopback.fields import FieldValue


__all__ = [
    "Case",
    "dead_letters",
    "fanned_out",
    "planned",
    "policed",
    "reject_plan",
    "replace_retry",
    "returning",
    "two_waits",
    "with_parameters",
]


class Case(NamedTuple):
    """A hazard, its expected text, and the repaired topology."""

    rule: str
    broken: Topology
    repaired: Topology
    severity: str
    place: str
    says: str
    version: str | None = None


def planned(topology: Topology, **changes: object) -> Topology:
    """The topology with its only plan changed."""
    return replace(topology, plans=(replace(topology.plans[0], **changes),))  # type: ignore[arg-type]


def reject_plan(topology: Topology, *, attempts: int = 3) -> Topology:
    """A loop with its plan."""
    return replace(topology, plans=(retry_loop_plan(attempts=attempts),))


def policed(*policies: Policy) -> Topology:
    """Two queues under these policies."""
    return replace(live(classic("a"), classic("b")), policies=policies)


def fanned_out(*bound: str) -> Topology:
    """`q`, whose dead letters go by the fanout `failed` to these queues.

    `billing` belongs to another application.
    """
    return replace(
        loop(classic("q", dead_letter_exchange="failed"), classic("billing")),
        exchanges=(Exchange("failed", "fanout"),),
        bindings=tuple(Binding("failed", queue) for queue in bound),
    )


def replace_retry(**arguments: FieldValue) -> Queue:
    """The retry queue of a loop with more arguments."""
    return classic(
        "q.retry",
        message_ttl=1000,
        dead_letter_exchange="",
        dead_letter_routing_key="q",
        **arguments,
    )


def with_parameters(topology: Topology, *entries: tuple[str, str, dict[str, object]]) -> Topology:
    """The topology with runtime parameters, given as component, name and value."""
    return replace(
        topology,
        foreign={
            "parameters": [
                {"component": component, "name": name, "value": value}
                for component, name, value in entries
            ]
        },
    )


def two_waits(*, chained: bool) -> Topology:
    """A rejected message waits in `w1`, then in `w2` if they are chained, and returns."""
    after = "w2" if chained else "q"
    return live(
        classic("q", dead_letter_exchange="", dead_letter_routing_key="w1"),
        classic("w1", message_ttl=1, dead_letter_exchange="", dead_letter_routing_key=after),
        classic("w2", message_ttl=1, dead_letter_exchange="", dead_letter_routing_key="q"),
    )


def returning(exchange: str, *, others: bool) -> Topology:
    """Retries of `q` that return through an exchange with or without other bindings."""
    plan = replace(retry_loop_plan(), leave=Leave.PUBLISH)
    back = classic(
        "q.retry",
        message_ttl=1000,
        dead_letter_exchange=exchange,
        dead_letter_routing_key="q.again",
    )
    bindings = [Binding("events", "q", "q.*"), Binding("events", "audit", "#")]
    return Topology(
        "t",
        (Exchange("events", "topic"),),
        (classic("q"), back, classic("q.dlq"), classic("audit")),
        tuple(bindings if others else bindings[:1]),
        (plan,),
        unconsumed=frozenset({"audit"}),
    )


def dead_letters(kind: str, *keys: str, **main: FieldValue) -> Topology:
    """`q`, fed by `a.*`, whose dead letters go to exchange `dlx`, bound to `dlq` by these keys."""
    return Topology(
        "t",
        (Exchange("events", "topic"), Exchange("dlx", kind)),
        (classic("q", dead_letter_exchange="dlx", **main), classic("dlq")),
        (Binding("events", "q", "a.*"), *(Binding("dlx", "dlq", key) for key in keys)),
    )
