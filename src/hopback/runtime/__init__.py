"""Handlers that survive: the application object and what runs it."""

from __future__ import annotations

__all__: list[str] = []
