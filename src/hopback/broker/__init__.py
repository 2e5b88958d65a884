"""Brokers behind one port: RabbitMQ over our wire, and the embedded broker.

The names below are the package's front door, each loaded when it is first asked for. The functions
`declare`, `apply` and `migrate` are reached through their modules, whose names they share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.front_door import front_door

if TYPE_CHECKING:
    from hopback.broker.apply import ApplyPlan, live_plan
    from hopback.broker.declare import Ownership
    from hopback.broker.embedded import (
        EmbeddedBroker,
        EmbeddedManagement,
        Fault,
        VirtualTimeLoop,
        run_virtual,
    )
    from hopback.broker.limits import restore_limits
    from hopback.broker.management import Management
    from hopback.broker.port import Broker, Channel, Connection, QueueState, count, count_now
    from hopback.broker.publisher import Publisher
    from hopback.broker.rabbitmq import RabbitMQ
    from hopback.broker.supervise import Backoff

__all__ = [
    "ApplyPlan",
    "Backoff",
    "Broker",
    "Channel",
    "Connection",
    "EmbeddedBroker",
    "EmbeddedManagement",
    "Fault",
    "Management",
    "Ownership",
    "Publisher",
    "QueueState",
    "RabbitMQ",
    "VirtualTimeLoop",
    "count",
    "count_now",
    "live_plan",
    "restore_limits",
    "run_virtual",
]

_HOMES = {
    "hopback.broker.apply": ("ApplyPlan", "live_plan"),
    "hopback.broker.limits": ("restore_limits",),
    "hopback.broker.declare": ("Ownership",),
    "hopback.broker.embedded": (
        "EmbeddedBroker",
        "EmbeddedManagement",
        "Fault",
        "VirtualTimeLoop",
        "run_virtual",
    ),
    "hopback.broker.management": ("Management",),
    "hopback.broker.port": ("Broker", "Channel", "Connection", "QueueState", "count", "count_now"),
    "hopback.broker.publisher": ("Publisher",),
    "hopback.broker.rabbitmq": ("RabbitMQ",),
    "hopback.broker.supervise": ("Backoff",),
}

__getattr__, __dir__ = front_door(__name__, _HOMES)
