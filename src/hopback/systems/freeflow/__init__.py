"""FreeFlow: seven domains on one topic exchange, and three waits for what fails."""

from __future__ import annotations

from hopback.systems.freeflow.demo import SYSTEM

__all__ = ["SYSTEM"]
