"""The topologies that are tested on real brokers. Their delays are shortened to about a second."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from hopback.designs import DESIGNS, event_bus, file_pipeline, freeflow
from hopback.topology.expand import DELIVERY_LIMIT
from tests.faults.ledger.application import EXCHANGE, two_queues

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hopback.topology import Topology

__all__ = ["HARDENED", "TOPOLOGIES", "address_of"]

_SHORT = {"ratatoskr": {"retry_delay": "1s"}, "raffle": {"retry_ttl_ms": "1000"}}


def _design(name: str, hardened: bool) -> Callable[[], Topology]:
    return lambda: DESIGNS[name].build(_SHORT[name], hardened=hardened)


def _impatient(topology: Topology) -> Topology:
    """Return the topology with a delivery limit of 10. With the usual limit of 200, a poison
    message would take hours.
    """
    limited = tuple(
        replace(queue, arguments={**queue.arguments, "x-delivery-limit": 10})
        if queue.arguments.get("x-delivery-limit") == DELIVERY_LIMIT
        else queue
        for queue in topology.queues
    )
    return replace(topology, queues=limited)


TOPOLOGIES: dict[str, Callable[[], Topology]] = {
    "recommended": lambda: two_queues(("1s", "2s")),
    "recommended-limit-10": lambda: _impatient(two_queues(("1s", "2s"))),
    "ratatoskr-faithful": _design("ratatoskr", hardened=False),
    "ratatoskr-hardened": _design("ratatoskr", hardened=True),
    "raffle-faithful": _design("raffle", hardened=False),
    "raffle-hardened": _design("raffle", hardened=True),
    "file-pipeline-hardened": lambda: file_pipeline(hardened=True, retry_ttl_ms=1000),
    "event-bus-hardened": lambda: event_bus(hardened=True, retry_ttl_ms=1000),
    "freeflow-hardened": lambda: freeflow(
        audit_keys=("#",), hardened=True, tiers_ms={"30s": 1000, "5m": 1500, "30m": 2000}
    ),
}
"""The topologies by their command-line name."""

HARDENED = (
    "recommended",
    "file-pipeline-hardened",
    "raffle-hardened",
    "ratatoskr-hardened",
    "event-bus-hardened",
    "freeflow-hardened",
)
"""The forms that must not lose any messages."""

_Address = tuple[tuple[str, ...], str, str]
_TURNS: Mapping[str, tuple[_Address, ...]] = MappingProxyType(
    {
        "ledger": (
            (("left", "audit"), EXCHANGE, "left.order"),
            (("right", "audit"), EXCHANGE, "right.order"),
        ),
        "file-pipeline": (
            (("q.upload.commands",), "domain.commands", "commands.upload.begin"),
            (("q.validator", "q.projection", "q.audit"), "domain.events", "files.uploaded.pdf"),
            (("q.notification",), "", "q.notification"),
            (("q.thumbnail",), "", "q.thumbnail"),
        ),
        "event-bus": (
            (("wms.queue.wms-orders", "wms.queue.wms-cincout"), "wms.main-exchange", ""),
            (("wms.queue.wms-cincout",), "", "wms.queue.wms-cincout"),
        ),
        "freeflow": (
            (("freeflow.users.queue", "freeflow.audit.queue"), "freeflow.events", "user.created"),
            (("freeflow.alarms.queue", "freeflow.audit.queue"), "freeflow.events", "alarm.raised"),
            (("freeflow.workflows.queue",), "", "freeflow.workflows.queue"),
        ),
    }
)
"""The addresses to which messages are published in turn. Some exchanges fan out, other addresses
are single queues.
"""


def address_of(topology: Topology, number: int) -> _Address:
    """Return the queues that receive a message, and its exchange and routing key."""
    turns = _TURNS.get(topology.name)
    if turns is not None:
        return turns[number % len(turns)]
    queue = topology.plans[0].queue
    return (queue,), "", queue
