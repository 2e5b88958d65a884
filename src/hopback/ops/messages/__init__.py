"""Pure functions to read, filter, group and archive dead letters."""

from __future__ import annotations

__all__: list[str] = []
