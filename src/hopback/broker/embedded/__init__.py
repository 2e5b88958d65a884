"""An in-memory implementation of RabbitMQ. The node is synchronous, the embedded broker is its
async interface.
"""

from hopback.broker.embedded.broker import EmbeddedBroker
from hopback.broker.embedded.channel import EmbeddedChannel
from hopback.broker.embedded.connection import EmbeddedConnection
from hopback.broker.embedded.faults import Fault, Faults
from hopback.broker.embedded.journal import Event, EventKind, Loss
from hopback.broker.embedded.management import EmbeddedManagement
from hopback.broker.embedded.node import Node, advance
from hopback.broker.embedded.profile import PROFILES, Profile, profile_for
from hopback.broker.embedded.refusal import Refusal
from hopback.broker.embedded.session import Session, SessionChannel, Sink
from hopback.broker.embedded.snapshot import NodeSnapshot, QueueSnapshot, StoredMessage
from hopback.broker.embedded.virtual_time import StuckLoop, VirtualTimeLoop, run_virtual

__all__ = [
    "PROFILES",
    "EmbeddedBroker",
    "EmbeddedChannel",
    "EmbeddedConnection",
    "EmbeddedManagement",
    "Event",
    "EventKind",
    "Fault",
    "Faults",
    "Loss",
    "Node",
    "NodeSnapshot",
    "Profile",
    "QueueSnapshot",
    "Refusal",
    "Session",
    "SessionChannel",
    "Sink",
    "StoredMessage",
    "StuckLoop",
    "VirtualTimeLoop",
    "advance",
    "profile_for",
    "run_virtual",
]
