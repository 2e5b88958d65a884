"""The commands of the operator tools."""

from __future__ import annotations

__all__: list[str] = []
