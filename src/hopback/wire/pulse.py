"""Heartbeats as a rule over time, with the time given: when to send one, when to give up."""

from __future__ import annotations

__all__ = ["Pulse"]


class Pulse:
    """Both directions of one connection's heartbeat. An interval of 0 means no heartbeats.

    A peer must send something in each interval; after two silent ones it is taken for dead. We
    send after half an interval without other traffic.
    """

    __slots__ = ("_interval", "_received_at", "_sent_at")

    def __init__(self, interval: float, now: float) -> None:
        self._interval = interval
        self._received_at = now
        self._sent_at = now

    @property
    def tick(self) -> float | None:
        """How often to look, in seconds; None if never."""
        return self._interval / 4 if self._interval else None

    def received(self, now: float) -> None:
        """Something came in."""
        self._received_at = now

    def sent(self, now: float) -> None:
        """Something went out."""
        self._sent_at = now

    def due(self, now: float) -> bool:
        """Whether a heartbeat has to be sent."""
        return bool(self._interval) and now - self._sent_at >= self._interval / 2

    def dead(self, now: float) -> bool:
        """Whether the peer has been silent for too long."""
        return bool(self._interval) and now - self._received_at > 2 * self._interval
