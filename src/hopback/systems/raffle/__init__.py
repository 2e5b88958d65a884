"""The raffle: users enqueued over HTTP and inserted in batches, raffles to join and draw."""

from __future__ import annotations

from hopback.systems.raffle.demo import SYSTEM

__all__ = ["SYSTEM"]
