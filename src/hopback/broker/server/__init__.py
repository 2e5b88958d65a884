"""Serve the embedded broker on a socket, with AMQP 0-9-1 and the management API."""

from hopback.broker.server.server import BrokerServer
from hopback.broker.server.settings import ClockKind, ServerLimits, ServerSettings
from hopback.broker.server.time_travel import Advanced
from hopback.broker.server.users import Permission

__all__ = ["Advanced", "BrokerServer", "ClockKind", "Permission", "ServerLimits", "ServerSettings"]
