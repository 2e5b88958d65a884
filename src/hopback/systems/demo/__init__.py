"""`hopback demo`: the five systems in one process, with their page."""

from __future__ import annotations

__all__: list[str] = []
