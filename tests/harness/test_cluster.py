"""Which node of a cluster is started again when they do not become one by themselves."""

from __future__ import annotations

from tests.harness.cluster import View, to_start_again


def _view(running: str, partitions: str = "") -> View:
    return View(frozenset(running), frozenset(partitions))


def test_a_node_that_met_the_others_too_late_is_started_again() -> None:
    """Both sides went on alone: the one that is alone gives way, as seen on RabbitMQ 3.10."""
    views = {"a": _view("a", "bc"), "b": _view("bc", "a"), "c": _view("bc")}
    assert to_start_again(views, patient=True) == "a"


def test_a_node_that_has_paused_comes_back_by_itself() -> None:
    """The others tell of a partition, and it does not answer yet, or sees everybody again."""
    views = {"a": _view("ac", "b"), "b": None, "c": _view("ac", "b")}
    assert to_start_again(views, patient=True) is None
    views = {"a": _view("abc", "b"), "b": _view("abc"), "c": _view("abc", "b")}
    assert to_start_again(views, patient=True) is None


def test_patience_has_an_end() -> None:
    """A node that is still away then is started again, whatever it is that keeps it."""
    views = {"a": _view("ac"), "b": None, "c": _view("ac")}
    assert to_start_again(views, patient=False) == "b"
