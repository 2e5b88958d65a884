"""Heartbeats, with the time given."""

from __future__ import annotations

from hopback.wire.transport import Pulse


def test_we_speak_after_half_an_interval_of_silence() -> None:
    """Traffic of our own puts it off."""
    pulse = Pulse(60, now=0)
    assert not pulse.due(29)
    assert pulse.due(30)
    pulse.sent(30)
    assert not pulse.due(59)
    assert pulse.due(60)


def test_a_peer_silent_for_two_intervals_is_dead() -> None:
    """Anything it sends keeps it alive."""
    pulse = Pulse(60, now=0)
    assert not pulse.dead(120)
    assert pulse.dead(120.5)
    pulse.received(100)
    assert not pulse.dead(219)


def test_an_interval_of_zero_switches_everything_off() -> None:
    """Neither sends nor expects."""
    pulse = Pulse(0, now=0)
    assert pulse.tick is None
    assert not pulse.due(1e9)
    assert not pulse.dead(1e9)
