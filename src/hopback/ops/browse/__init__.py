"""Read messages of a queue without removing them, in sessions, searches and surveys."""

from __future__ import annotations

__all__: list[str] = []
