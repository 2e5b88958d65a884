"""Brokers behind one port: RabbitMQ over our wire, and the embedded broker.

The names below are the package's front door, each loaded when it is first asked for. The functions
`declare`, `apply` and `migrate` are reached through their modules, whose names they share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.front_door import front_door

if TYPE_CHECKING:
    from hopback.broker.apply import ApplyPlan as ApplyPlan, live_plan as live_plan
    from hopback.broker.declare import Ownership as Ownership
    from hopback.broker.embedded import (
        EmbeddedBroker as EmbeddedBroker,
        EmbeddedManagement as EmbeddedManagement,
        Fault as Fault,
        VirtualTimeLoop as VirtualTimeLoop,
        run_virtual as run_virtual,
    )
    from hopback.broker.limits import restore_limits as restore_limits
    from hopback.broker.management import Management as Management
    from hopback.broker.port import (
        Broker as Broker,
        Channel as Channel,
        Connection as Connection,
        QueueState as QueueState,
        count as count,
        count_now as count_now,
    )
    from hopback.broker.publisher import Publisher as Publisher
    from hopback.broker.rabbitmq import RabbitMQ as RabbitMQ
    from hopback.broker.supervise import Backoff as Backoff

_HOMES = {
    "hopback.broker.apply": "ApplyPlan live_plan",
    "hopback.broker.declare": "Ownership",
    "hopback.broker.embedded": "EmbeddedBroker EmbeddedManagement Fault VirtualTimeLoop run_virtual",
    "hopback.broker.limits": "restore_limits",
    "hopback.broker.management": "Management",
    "hopback.broker.port": "Broker Channel Connection QueueState count count_now",
    "hopback.broker.publisher": "Publisher",
    "hopback.broker.rabbitmq": "RabbitMQ",
    "hopback.broker.supervise": "Backoff",
}

__getattr__, __dir__ = front_door(__name__, _HOMES)
