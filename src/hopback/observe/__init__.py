"""Events, logs and metrics."""

from __future__ import annotations

from hopback.observe.events import EVENTS, Bus, EventDescription, Subscriber

__all__ = ["EVENTS", "Bus", "EventDescription", "Subscriber"]
