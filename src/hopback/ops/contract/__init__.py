"""The values, requests and results of the operations on dead letters."""

from __future__ import annotations

__all__: list[str] = []
