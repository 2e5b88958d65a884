"""Reliable RabbitMQ consumers.

This package exports the names that most services import. They are loaded lazily to keep `import
hopback` fast.

Other public names are in subpackages: `hopback.runtime` (codecs, clocks), `hopback.topology`,
`hopback.broker`, `hopback.designs`, `hopback.store` (inbox and outbox) and `hopback.testing`. An import
of such a name from here raises an ImportError that names its package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.front_door import front_door

if TYPE_CHECKING:
    from hopback.broker.rabbitmq import RabbitMQ as RabbitMQ
    from hopback.errors import (
        BrokerError as BrokerError,
        HopbackError as HopbackError,
        NoReply as NoReply,
    )
    from hopback.message import Delivery as Delivery, Message as Message
    from hopback.policy.breaker import BreakerPolicy as BreakerPolicy
    from hopback.policy.outcome import (
        Done as Done,
        Outcome as Outcome,
        Park as Park,
        Retry as Retry,
        Rule as Rule,
        Snooze as Snooze,
        Verdict as Verdict,
    )
    from hopback.runtime.app import App as App, Router as Router
    from hopback.runtime.context import Context as Context, compose as compose
    from hopback.runtime.handler import Output as Output
    from hopback.runtime.dependencies import Depends as Depends
    from hopback.runtime.message_types import by_header as by_header
    from hopback.runtime.middleware import Middleware as Middleware, NextRun as NextRun
    from hopback.runtime.periodic import PeriodicMessage as PeriodicMessage
    from hopback.runtime.publisher import Publisher as Publisher
    from hopback.runtime.relay import Relay as Relay
    from hopback.runtime.requests import RequestClient as RequestClient
    from hopback.runtime.service import Service as Service, ServiceOptions as ServiceOptions
    from hopback.runtime.sync_publisher import SyncPublisher as SyncPublisher
    from hopback.topology.feed import Feed as Feed
    from hopback.topology.waits import exponential as exponential, linear as linear

__version__ = "0.3.0"

_HOMES = {
    "hopback.broker.rabbitmq": "RabbitMQ",
    "hopback.errors": "BrokerError HopbackError NoReply",
    "hopback.message": "Delivery Message",
    "hopback.policy.breaker": "BreakerPolicy",
    "hopback.policy.outcome": "Done Outcome Park Retry Rule Snooze Verdict",
    "hopback.runtime.app": "App Router",
    "hopback.runtime.context": "Context compose",
    "hopback.runtime.dependencies": "Depends",
    "hopback.runtime.handler": "Output",
    "hopback.runtime.message_types": "by_header",
    "hopback.runtime.middleware": "Middleware NextRun",
    "hopback.runtime.periodic": "PeriodicMessage",
    "hopback.runtime.publisher": "Publisher",
    "hopback.runtime.relay": "Relay",
    "hopback.runtime.requests": "RequestClient",
    "hopback.runtime.service": "Service ServiceOptions",
    "hopback.runtime.sync_publisher": "SyncPublisher",
    "hopback.topology.feed": "Feed",
    "hopback.topology.waits": "exponential linear",
}

__getattr__, __dir__ = front_door(__name__, _HOMES)
