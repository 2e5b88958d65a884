"""Plan, run, resume and record jobs, which re-drive or discard messages."""

from __future__ import annotations

__all__: list[str] = []
