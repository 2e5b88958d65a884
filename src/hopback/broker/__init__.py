"""Interfaces to RabbitMQ and the embedded broker.

Names are loaded lazily. The functions `declare`, `apply` and `migrate` are not exported, because
their modules have the same names. `hopback` exports `RabbitMQ` and `Publisher`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.front_door import front_door

if TYPE_CHECKING:
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
    )
    from hopback.broker.supervise import Backoff as Backoff, OnState as OnState
    from hopback.version import BrokerVersion as BrokerVersion

_HOMES = {
    "hopback.broker.declare": "Ownership",
    "hopback.broker.embedded": "EmbeddedBroker EmbeddedManagement Fault VirtualTimeLoop run_virtual",
    "hopback.broker.limits": "restore_limits",
    "hopback.broker.management": "Management",
    "hopback.broker.port": "Broker Channel Connection QueueState",
    "hopback.broker.supervise": "Backoff OnState",
    "hopback.version": "BrokerVersion",
}

__getattr__, __dir__ = front_door(__name__, _HOMES)
