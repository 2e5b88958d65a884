"""The event bus: events published once, pushed over HTTP to every service that is registered."""

from __future__ import annotations

from hopback.systems.event_bus.demo import SYSTEM

__all__ = ["SYSTEM"]
