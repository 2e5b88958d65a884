"""The public test kit: simulations, and the conformance suite that every broker must pass."""

from __future__ import annotations

__all__: list[str] = []
