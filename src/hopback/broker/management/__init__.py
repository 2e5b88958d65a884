"""The broker's HTTP management API: the few calls that discovery, plans and checks need.

AMQP remains the source of exact counts. Values of the management API may be up to five seconds old, so
every reading has its source, its time and its maximum lag. Needs the extra `management` (httpx), which
is imported when the first client is created.
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
