"""The operator page: templates, static files and page handlers."""

from __future__ import annotations

__all__: list[str] = []
