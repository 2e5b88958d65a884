"""A dead letter as a value: reading, filtering, grouping and archiving. Pure."""

from __future__ import annotations

__all__: list[str] = []
