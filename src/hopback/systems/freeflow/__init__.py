"""FreeFlow: seven domains on one topic exchange, three waits, and an audit of everything."""

from __future__ import annotations

from hopback.systems.freeflow.demo import SYSTEM

__all__ = ["SYSTEM"]
