"""RabbitMQ in memory: a synchronous node, and the embedded broker that puts it behind the port."""

from hopback.broker.simulator.channel import EmbeddedChannel
from hopback.broker.simulator.connection import EmbeddedConnection
from hopback.broker.simulator.embedded import EmbeddedBroker
from hopback.broker.simulator.faults import Fault, Faults
from hopback.broker.simulator.journal import Event, EventKind, Loss
from hopback.broker.simulator.management import EmbeddedManagement
from hopback.broker.simulator.node import Node, advance
from hopback.broker.simulator.profile import PROFILES, Profile, profile_for
from hopback.broker.simulator.refusal import Refusal
from hopback.broker.simulator.session import ChannelState, Session, Sink
from hopback.broker.simulator.snapshot import NodeSnapshot, QueueSnapshot, StoredMessage
from hopback.broker.simulator.virtual_time import NothingCanHappen, VirtualTimeLoop, run_virtual

__all__ = [
    "PROFILES",
    "ChannelState",
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
    "NothingCanHappen",
    "Profile",
    "QueueSnapshot",
    "Refusal",
    "Session",
    "Sink",
    "StoredMessage",
    "VirtualTimeLoop",
    "advance",
    "profile_for",
    "run_virtual",
]
