"""Hopback makes RabbitMQ consumers dependable.

The names below are the front door; each is loaded when it is first asked for, so that
`import hopback` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.front_door import front_door

if TYPE_CHECKING:
    from hopback.broker.declare import Ownership
    from hopback.broker.embedded import EmbeddedBroker
    from hopback.broker.port import Broker
    from hopback.broker.publisher import Publisher
    from hopback.broker.rabbitmq import RabbitMQ
    from hopback.clock import Clock, SystemClock
    from hopback.designs import DESIGNS, recommended
    from hopback.errors import BrokerError, HopbackError, NoReply
    from hopback.message import Delivery, Message, Properties
    from hopback.policy.breaker import BreakerPolicy
    from hopback.policy.outcome import (
        ConsumerStatus,
        Done,
        Outcome,
        Park,
        Retry,
        Rule,
        Snooze,
        Verdict,
    )
    from hopback.policy.periodic import Missed
    from hopback.runtime.app import App, Router
    from hopback.runtime.codecs import Codec, Codecs, JsonCodec, MsgpackCodec, ProtobufCodec
    from hopback.runtime.context import Context, compose
    from hopback.runtime.dependencies import Depends, Scope
    from hopback.runtime.message_types import by_cloudevents, by_header, by_property
    from hopback.runtime.middleware import Middleware, NextRun
    from hopback.runtime.periodic import PeriodicMessage
    from hopback.runtime.relay import Relay
    from hopback.runtime.requests import RequestClient
    from hopback.runtime.service import Service, ServiceOptions
    from hopback.runtime.settling import Environment
    from hopback.runtime.shutdown import Report
    from hopback.runtime.sync_publisher import SyncPublisher
    from hopback.topology.check import check
    from hopback.topology.feed import Feed
    from hopback.topology.hazards.rule import Finding, Severity
    from hopback.topology.model import Binding, Exchange, Queue, QueueType, Topology
    from hopback.topology.plan import Plan
    from hopback.version import BrokerVersion

__all__ = [
    "DESIGNS",
    "App",
    "Binding",
    "BreakerPolicy",
    "Broker",
    "BrokerError",
    "BrokerVersion",
    "Clock",
    "Codec",
    "Codecs",
    "ConsumerStatus",
    "Context",
    "Delivery",
    "Depends",
    "Done",
    "EmbeddedBroker",
    "Environment",
    "Exchange",
    "Feed",
    "Finding",
    "HopbackError",
    "JsonCodec",
    "Message",
    "Middleware",
    "Missed",
    "MsgpackCodec",
    "NextRun",
    "NoReply",
    "Outcome",
    "Ownership",
    "Park",
    "PeriodicMessage",
    "Plan",
    "Properties",
    "ProtobufCodec",
    "Publisher",
    "Queue",
    "QueueType",
    "RabbitMQ",
    "Relay",
    "Report",
    "RequestClient",
    "Retry",
    "Router",
    "Rule",
    "Scope",
    "Service",
    "ServiceOptions",
    "Severity",
    "Snooze",
    "SyncPublisher",
    "SystemClock",
    "Topology",
    "Verdict",
    "__version__",
    "by_cloudevents",
    "by_header",
    "by_property",
    "check",
    "compose",
    "recommended",
]

__version__ = "0.3.0"

_HOMES = {
    "hopback.broker.declare": ("Ownership",),
    "hopback.broker.port": ("Broker",),
    "hopback.broker.publisher": ("Publisher",),
    "hopback.broker.rabbitmq": ("RabbitMQ",),
    "hopback.broker.embedded": ("EmbeddedBroker",),
    "hopback.clock": ("Clock", "SystemClock"),
    "hopback.errors": ("BrokerError", "HopbackError", "NoReply"),
    "hopback.message": ("Delivery", "Message", "Properties"),
    "hopback.designs": ("DESIGNS", "recommended"),
    "hopback.policy.breaker": ("BreakerPolicy",),
    "hopback.policy.outcome": (
        "ConsumerStatus",
        "Done",
        "Outcome",
        "Park",
        "Retry",
        "Rule",
        "Snooze",
        "Verdict",
    ),
    "hopback.policy.periodic": ("Missed",),
    "hopback.runtime.app": ("App", "Router"),
    "hopback.runtime.codecs": (
        "Codec",
        "Codecs",
        "JsonCodec",
        "MsgpackCodec",
        "ProtobufCodec",
    ),
    "hopback.runtime.context": ("Context", "compose"),
    "hopback.runtime.dependencies": ("Depends", "Scope"),
    "hopback.runtime.message_types": ("by_cloudevents", "by_header", "by_property"),
    "hopback.runtime.middleware": ("Middleware", "NextRun"),
    "hopback.runtime.periodic": ("PeriodicMessage",),
    "hopback.runtime.relay": ("Relay",),
    "hopback.runtime.requests": ("RequestClient",),
    "hopback.runtime.service": ("Service", "ServiceOptions"),
    "hopback.runtime.shutdown": ("Report",),
    "hopback.runtime.settling": ("Environment",),
    "hopback.runtime.sync_publisher": ("SyncPublisher",),
    "hopback.topology.check": ("check",),
    "hopback.topology.hazards.rule": ("Finding", "Severity"),
    "hopback.topology.feed": ("Feed",),
    "hopback.topology.model": ("Binding", "Exchange", "Queue", "QueueType", "Topology"),
    "hopback.topology.plan": ("Plan",),
    "hopback.version": ("BrokerVersion",),
}

__getattr__, __dir__ = front_door(__name__, _HOMES)
