"""The topologies that are put to the proof on real brokers: the designs, with waits of a second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback import DESIGNS
from tests.faults.ledger.application import EXCHANGE, two_queues

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback import Topology

__all__ = ["TOPOLOGIES", "address_of"]

_SHORT = {"ratatoskr": {"retry_delay": "1s"}, "raffle": {"retry_ttl_ms": "1000"}}


def _design(name: str, hardened: bool) -> Callable[[], Topology]:
    return lambda: DESIGNS[name].build(_SHORT[name], hardened=hardened)


TOPOLOGIES: dict[str, Callable[[], Topology]] = {
    "recommended": lambda: two_queues(("1s", "2s")),
    "ratatoskr-faithful": _design("ratatoskr", hardened=False),
    "ratatoskr-hardened": _design("ratatoskr", hardened=True),
    "raffle-hardened": _design("raffle", hardened=True),
}
"""By the name that the programs of this folder know them by."""


def address_of(topology: Topology, number: int) -> tuple[tuple[str, ...], str, str]:
    """The queues that message `number` goes to, and the exchange and routing key that lead there."""
    if len(topology.plans) > 1:
        queue = ("left", "right")[number % 2]
        return (queue, "audit"), EXCHANGE, f"{queue}.order"
    queue = topology.plans[0].queue
    return (queue,), "", queue
