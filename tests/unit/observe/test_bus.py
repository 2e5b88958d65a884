"""The bus: who hears what, and what becomes of a subscriber that raises."""

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


def test_a_subscriber_is_told_only_what_it_wants() -> None:
    """What nobody wants is heard by nobody, so that its fields need not be built."""
    picky = _Picky()
    bus = Bus(picky)
    bus.emit("delivery.done", {})
    bus.emit("delivery.parked", {})
    assert picky.heard == ["delivery.parked"]
    assert bus.hears("delivery.parked")
    assert not bus.hears("delivery.done")


def test_one_who_comes_later_is_told_too() -> None:
    """Who wants what is asked anew when a subscriber comes."""
    bus = Bus(_Picky())
    assert not bus.hears("delivery.done")
    heard: list[str] = []
    bus.subscribe(lambda name, _fields: heard.append(name))
    bus.emit("delivery.done", {})
    assert heard == ["delivery.done"]


def test_one_that_raises_is_dropped_and_said_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Observing never changes what happens: no exception leaves the bus, and it is not silent."""

    def broken(name: str, fields: Mapping[str, Any]) -> None:
        raise OSError("the disk is full")

    heard: list[str] = []
    bus = Bus(broken, lambda name, _fields: heard.append(name))
    bus.emit("delivery.done", {})
    bus.emit("delivery.done", {})
    assert heard == ["delivery.done"] * 2
    assert [(one, str(error)) for one, error in bus.dropped] == [(broken, "the disk is full")]
    assert "raised an error and was removed" in caplog.text
