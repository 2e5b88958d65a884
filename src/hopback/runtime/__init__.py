"""The runtime of services. `hopback` exports the names that a service module imports.

The names below are needed less often. Each is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.front_door import front_door

if TYPE_CHECKING:
    from hopback.runtime.context import PublishOptions as PublishOptions
    from hopback.runtime.health import Health as Health
    from hopback.runtime.push import PushTarget as PushTarget
    from hopback.runtime.relay import OutboxStore as OutboxStore
    from hopback.runtime.shutdown import Report as Report
    from hopback.runtime.tracing import trace_run as trace_run, trace_batch as trace_batch

_HOMES = {
    "hopback.runtime.context": "PublishOptions",
    "hopback.runtime.health": "Health",
    "hopback.runtime.push": "PushTarget",
    "hopback.runtime.relay": "OutboxStore",
    "hopback.runtime.shutdown": "Report",
    "hopback.runtime.tracing": "trace_run trace_batch",
}

__getattr__, __dir__ = front_door(__name__, _HOMES)
