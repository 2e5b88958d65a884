"""A client of RabbitMQ's management API. Requires the `management` extra.

It only supports the requests needed for discovery, plans and checks. Values of the management API
can be up to five seconds old, so each reading contains its source, its time and its maximum age.
Use AMQP for exact counts. httpx is imported when the first client is created.
"""

from __future__ import annotations

from hopback.broker.management.client import Management, ManagementAddress, virtual_host
from hopback.broker.management.readings import (
    Alarm,
    BrokerOverview,
    FeatureFlag,
    QueueCounts,
    QueueReading,
)

__all__ = [
    "Alarm",
    "BrokerOverview",
    "FeatureFlag",
    "Management",
    "ManagementAddress",
    "QueueCounts",
    "QueueReading",
    "virtual_host",
]
