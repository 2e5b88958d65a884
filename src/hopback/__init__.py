"""Hopback makes RabbitMQ consumers dependable.

`hopback` exports the names that a service module imports. Each is loaded when it is first used, so
`import hopback` loads few modules. Topologies are in `hopback.topology`, brokers in `hopback.broker`,
designs in `hopback.designs`, inbox and outbox in `hopback.store`, and the test kit in `hopback.testing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.front_door import front_door

if TYPE_CHECKING:
    from hopback.broker.rabbitmq import RabbitMQ as RabbitMQ
    from hopback.clock import Clock as Clock, SystemClock as SystemClock
    from hopback.errors import (
        BrokerError as BrokerError,
        HopbackError as HopbackError,
        NoReply as NoReply,
    )
    from hopback.message import Delivery as Delivery, Message as Message, Properties as Properties
    from hopback.policy.breaker import BreakerPolicy as BreakerPolicy
    from hopback.policy.outcome import (
        ConsumerStatus as ConsumerStatus,
        Done as Done,
        Outcome as Outcome,
        Park as Park,
        Retry as Retry,
        Rule as Rule,
        Snooze as Snooze,
        Verdict as Verdict,
    )
    from hopback.policy.periodic import Missed as Missed
    from hopback.runtime.app import App as App, Router as Router
    from hopback.runtime.codecs import (
        Codec as Codec,
        Codecs as Codecs,
        JsonCodec as JsonCodec,
        MsgpackCodec as MsgpackCodec,
        ProtobufCodec as ProtobufCodec,
    )
    from hopback.runtime.context import Context as Context, compose as compose
    from hopback.runtime.handler import Output as Output
    from hopback.runtime.dependencies import Depends as Depends, Scope as Scope
    from hopback.runtime.message_types import (
        by_cloudevents as by_cloudevents,
        by_header as by_header,
        by_property as by_property,
    )
    from hopback.runtime.middleware import Middleware as Middleware, NextRun as NextRun
    from hopback.runtime.periodic import PeriodicMessage as PeriodicMessage
    from hopback.runtime.publisher import Publisher as Publisher
    from hopback.runtime.relay import Relay as Relay
    from hopback.runtime.requests import RequestClient as RequestClient
    from hopback.runtime.service import Service as Service, ServiceOptions as ServiceOptions
    from hopback.runtime.settling import Environment as Environment
    from hopback.runtime.sync_publisher import SyncPublisher as SyncPublisher
    from hopback.topology.feed import Feed as Feed
    from hopback.topology.waits import exponential as exponential, linear as linear

__version__ = "0.3.0"

_HOMES = {
    "hopback.broker.rabbitmq": "RabbitMQ",
    "hopback.clock": "Clock SystemClock",
    "hopback.errors": "BrokerError HopbackError NoReply",
    "hopback.message": "Delivery Message Properties",
    "hopback.policy.breaker": "BreakerPolicy",
    "hopback.policy.outcome": "ConsumerStatus Done Outcome Park Retry Rule Snooze Verdict",
    "hopback.policy.periodic": "Missed",
    "hopback.runtime.app": "App Router",
    "hopback.runtime.codecs": "Codec Codecs JsonCodec MsgpackCodec ProtobufCodec",
    "hopback.runtime.context": "Context compose",
    "hopback.runtime.dependencies": "Depends Scope",
    "hopback.runtime.handler": "Output",
    "hopback.runtime.message_types": "by_cloudevents by_header by_property",
    "hopback.runtime.middleware": "Middleware NextRun",
    "hopback.runtime.periodic": "PeriodicMessage",
    "hopback.runtime.publisher": "Publisher",
    "hopback.runtime.relay": "Relay",
    "hopback.runtime.requests": "RequestClient",
    "hopback.runtime.service": "Service ServiceOptions",
    "hopback.runtime.settling": "Environment",
    "hopback.runtime.sync_publisher": "SyncPublisher",
    "hopback.topology.feed": "Feed",
    "hopback.topology.waits": "exponential linear",
}

__getattr__, __dir__ = front_door(__name__, _HOMES)
