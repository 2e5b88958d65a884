"""The command `hopback demo`, which runs the five systems and a page about them in one process."""

from __future__ import annotations

__all__: list[str] = []
