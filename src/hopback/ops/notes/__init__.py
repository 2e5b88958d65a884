"""Notes on groups of dead letters, and saved filters."""

from __future__ import annotations

__all__: list[str] = []
