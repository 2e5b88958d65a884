"""Tests that choose which node of a divided cluster is restarted."""

from __future__ import annotations

from tests.harness.cluster import View, to_start_again


def _view(running: str, partitions: str = "") -> View:
    return View(frozenset(running), frozenset(partitions))


def test_node_that_rejoins_too_late_is_restarted() -> None:
    """Both sides have continued separately, as RabbitMQ 3.10 does. The node that is alone is
    restarted.
    """
    views = {"a": _view("a", "bc"), "b": _view("bc", "a"), "c": _view("bc")}
    assert to_start_again(views, patient=True) == "a"


def test_paused_node_returns_without_restart() -> None:
    """The other nodes report a partition. The node does not respond yet, or it sees all others
    again.
    """
    views = {"a": _view("ac", "b"), "b": None, "c": _view("ac", "b")}
    assert to_start_again(views, patient=True) is None
    views = {"a": _view("abc", "b"), "b": _view("abc"), "c": _view("abc", "b")}
    assert to_start_again(views, patient=True) is None


def test_missing_node_is_restarted_after_timeout() -> None:
    views = {"a": _view("ac"), "b": None, "c": _view("ac")}
    assert to_start_again(views, patient=False) == "b"
