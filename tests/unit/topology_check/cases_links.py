"""Hazards of shovels, federation and operator policies, each broken and repaired."""

from __future__ import annotations

from dataclasses import replace

from hopback.topology.model import Policy
from tests.unit.topology_check.building import classic, live, quorum, sound
from tests.unit.topology_check.casebook import Case, with_parameters

__all__ = ["LINKS"]


def _shovel(source: str, **more: object) -> tuple[str, str, dict[str, object]]:
    value = {f"{key.replace('_', '-')}": each for key, each in more.items()}
    return "shovel", "mover", {"src-queue": source, "dest-queue": "orders", **value}


LINKS = (
    Case(
        "link-unconfirmed",
        with_parameters(live(classic("a")), _shovel("a", ack_mode="no-ack")),
        with_parameters(live(classic("a")), _shovel("a", ack_mode="on-confirm")),
        "error",
        "shovel `mover`",
        "as soon as they are delivered",
    ),
    Case(
        "shovel-drains-failures",
        with_parameters(sound(), _shovel("orders.dlq")),
        with_parameters(sound(), _shovel("orders", dest_queue="orders.dlq")),
        "warning",
        "shovel `mover`",
        "return from queue `orders` and circulate forever",
    ),
    Case(
        "shovel-empties-quorum-queue",
        with_parameters(live(quorum("a")), _shovel("a")),
        with_parameters(live(classic("a")), _shovel("a")),
        "error",
        "shovel `mover`",
        "After 20 returns the broker deletes them",
        "4.0",
    ),
    Case(
        "failures-federated",
        replace(sound(), policies=(Policy("fed", ".*", {"federation-upstream-set": "all"}),)),
        replace(sound(), policies=(Policy("fed", "^orders$", {"federation-upstream-set": "all"}),)),
        "warning",
        "policy `fed`",
        "queues `orders.dlq` and `orders.retry.1s`",
    ),
    Case(
        "operator-policy",
        with_parameters(
            sound(),
            ("operator_policy", "cap", {"pattern": "dlq$", "definition": {"max-length": 100}}),
        ),
        with_parameters(
            sound(),
            ("operator_policy", "cap", {"pattern": "^other", "definition": {"max-length": 100}}),
        ),
        "info",
        "operator policy `cap`",
        "It sets `max-length` for queue `orders.dlq`",
    ),
)
"""In the order of the rules."""
