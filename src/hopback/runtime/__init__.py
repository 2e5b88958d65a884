"""Handlers that survive: the application object and what runs it.

The names below are the package's front door, each loaded when it is first asked for. The other modules
of the package are its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.front_door import front_door

if TYPE_CHECKING:
    from hopback.runtime.app import App
    from hopback.runtime.context import Context, PublishOptions, compose
    from hopback.runtime.health import Health
    from hopback.runtime.push import PushTarget
    from hopback.runtime.relay import OutboxStore, Relay
    from hopback.runtime.service import Service, ServiceOptions
    from hopback.runtime.settling import Environment
    from hopback.runtime.shutdown import Report
    from hopback.runtime.tracing import traced, traced_batch

__all__ = [
    "App",
    "Context",
    "Environment",
    "Health",
    "OutboxStore",
    "PublishOptions",
    "PushTarget",
    "Relay",
    "Report",
    "Service",
    "ServiceOptions",
    "compose",
    "traced",
    "traced_batch",
]

_HOMES = {
    "hopback.runtime.app": ("App",),
    "hopback.runtime.context": ("Context", "PublishOptions", "compose"),
    "hopback.runtime.health": ("Health",),
    "hopback.runtime.push": ("PushTarget",),
    "hopback.runtime.relay": ("OutboxStore", "Relay"),
    "hopback.runtime.service": ("Service", "ServiceOptions"),
    "hopback.runtime.shutdown": ("Report",),
    "hopback.runtime.settling": ("Environment",),
    "hopback.runtime.tracing": ("traced", "traced_batch"),
}

__getattr__, __dir__ = front_door(__name__, _HOMES)
