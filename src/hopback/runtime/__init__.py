"""Handlers that survive: the application object and what runs it.

The names below are the package's front door, each loaded when it is first asked for. The other modules
of the package are its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.front_door import front_door

if TYPE_CHECKING:
    from hopback.runtime.app import App as App
    from hopback.runtime.context import (
        Context as Context,
        PublishOptions as PublishOptions,
        compose as compose,
    )
    from hopback.runtime.health import Health as Health
    from hopback.runtime.push import PushTarget as PushTarget
    from hopback.runtime.relay import OutboxStore as OutboxStore, Relay as Relay
    from hopback.runtime.service import Service as Service, ServiceOptions as ServiceOptions
    from hopback.runtime.settling import Environment as Environment
    from hopback.runtime.shutdown import Report as Report
    from hopback.runtime.tracing import traced as traced, traced_batch as traced_batch

_HOMES = {
    "hopback.runtime.app": "App",
    "hopback.runtime.context": "Context PublishOptions compose",
    "hopback.runtime.health": "Health",
    "hopback.runtime.push": "PushTarget",
    "hopback.runtime.relay": "OutboxStore Relay",
    "hopback.runtime.service": "Service ServiceOptions",
    "hopback.runtime.settling": "Environment",
    "hopback.runtime.shutdown": "Report",
    "hopback.runtime.tracing": "traced traced_batch",
}

__getattr__, __dir__ = front_door(__name__, _HOMES)
