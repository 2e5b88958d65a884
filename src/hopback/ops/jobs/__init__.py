"""Jobs that re-drive, discard or export messages: plan, run, resume, record."""

from __future__ import annotations

__all__: list[str] = []
