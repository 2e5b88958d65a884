"""A broker under operation: its queues, their dead letters and re-drive targets."""

from __future__ import annotations

__all__: list[str] = []
