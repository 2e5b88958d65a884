"""The page for operators, with its templates, static files and request handlers."""

from __future__ import annotations

__all__: list[str] = []
