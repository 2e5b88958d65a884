"""The brokers that operators manage, with their queues, dead letters and re-drive targets."""

from __future__ import annotations

__all__: list[str] = []
