"""Heartbeats, with the time given."""

from __future__ import annotations

from hopback.wire.transport import Heartbeat


def test_heartbeat_is_due_after_half_an_interval() -> None:
    heartbeat = Heartbeat(60, now=0)
    assert not heartbeat.due(29)
    assert heartbeat.due(30)
    heartbeat.sent(30)
    assert not heartbeat.due(59)
    assert heartbeat.due(60)


def test_peer_silent_for_two_intervals_is_dead() -> None:
    heartbeat = Heartbeat(60, now=0)
    assert not heartbeat.dead(120)
    assert heartbeat.dead(120.5)
    heartbeat.mark_received(100)
    assert not heartbeat.dead(219)


def test_heartbeat_of_zero_is_disabled() -> None:
    heartbeat = Heartbeat(0, now=0)
    assert heartbeat.tick is None
    assert not heartbeat.due(1e9)
    assert not heartbeat.dead(1e9)
