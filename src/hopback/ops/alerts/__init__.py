"""Alerts on dead letters, with their rules, delivery, API and page."""

from __future__ import annotations

__all__: list[str] = []
