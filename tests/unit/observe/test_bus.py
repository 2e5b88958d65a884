"""The event bus: subscriptions, and subscribers that raise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hopback.observe.events import Bus

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest


class _Picky:
    """Hears of parked messages alone."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def wants(self, name: str) -> bool:
        return name == "delivery.parked"

    def __call__(self, name: str, fields: Mapping[str, Any]) -> None:
        self.heard.append(name)


def test_subscriber_gets_only_wanted_events() -> None:
    picky = _Picky()
    bus = Bus(picky)
    bus.emit("delivery.done", {})
    bus.emit("delivery.parked", {})
    assert picky.heard == ["delivery.parked"]
    assert bus.has_listener("delivery.parked")
    assert not bus.has_listener("delivery.done")


def test_later_subscriber_gets_events() -> None:
    bus = Bus(_Picky())
    assert not bus.has_listener("delivery.done")
    heard: list[str] = []
    bus.subscribe(lambda name, _fields: heard.append(name))
    bus.emit("delivery.done", {})
    assert heard == ["delivery.done"]


def test_subscriber_that_raises_is_dropped_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(name: str, fields: Mapping[str, Any]) -> None:
        raise OSError("the disk is full")

    heard: list[str] = []
    bus = Bus(broken, lambda name, _fields: heard.append(name))
    bus.emit("delivery.done", {})
    bus.emit("delivery.done", {})
    assert heard == ["delivery.done"] * 2
    assert [(one, str(error)) for one, error in bus.dropped] == [(broken, "the disk is full")]
    assert "raised an error and was removed" in caplog.text
