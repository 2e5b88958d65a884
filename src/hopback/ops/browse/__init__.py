"""Reading messages of a queue without removing them: sessions, searches and surveys."""

from __future__ import annotations

__all__: list[str] = []
