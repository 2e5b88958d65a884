"""Run applications.

The names that most services need are exported by `hopback` and loaded lazily.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.front_door import front_door

if TYPE_CHECKING:
    from hopback.clock import Clock as Clock, SystemClock as SystemClock
    from hopback.message import Properties as Properties
    from hopback.policy.outcome import ConsumerStatus as ConsumerStatus
    from hopback.policy.periodic import Missed as Missed
    from hopback.runtime.codecs import (
        Codec as Codec,
        Codecs as Codecs,
        JsonCodec as JsonCodec,
        MsgpackCodec as MsgpackCodec,
        ProtobufCodec as ProtobufCodec,
    )
    from hopback.runtime.context import PublishOptions as PublishOptions
    from hopback.runtime.dependencies import Scope as Scope
    from hopback.runtime.health import Health as Health
    from hopback.runtime.message_types import (
        by_cloudevents as by_cloudevents,
        by_property as by_property,
    )
    from hopback.runtime.push import PushTarget as PushTarget
    from hopback.runtime.relay import OutboxStore as OutboxStore
    from hopback.runtime.settling import Environment as Environment
    from hopback.runtime.shutdown import Report as Report
    from hopback.runtime.tracing import trace_run as trace_run, trace_batch as trace_batch

_HOMES = {
    "hopback.clock": "Clock SystemClock",
    "hopback.message": "Properties",
    "hopback.policy.outcome": "ConsumerStatus",
    "hopback.policy.periodic": "Missed",
    "hopback.runtime.codecs": "Codec Codecs JsonCodec MsgpackCodec ProtobufCodec",
    "hopback.runtime.context": "PublishOptions",
    "hopback.runtime.dependencies": "Scope",
    "hopback.runtime.health": "Health",
    "hopback.runtime.message_types": "by_cloudevents by_property",
    "hopback.runtime.push": "PushTarget",
    "hopback.runtime.relay": "OutboxStore",
    "hopback.runtime.settling": "Environment",
    "hopback.runtime.shutdown": "Report",
    "hopback.runtime.tracing": "trace_run trace_batch",
}

__getattr__, __dir__ = front_door(__name__, _HOMES)
