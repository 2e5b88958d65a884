"""Ratatoskr: typed events on quorum queues, transient and permanent failures, an idempotent consumer."""

from __future__ import annotations

from hopback.systems.ratatoskr.demo import SYSTEM

__all__ = ["SYSTEM"]
