"""Old module names: they find the module of today, and say so."""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hopback.renamed import RENAMED, new_name

if TYPE_CHECKING:
    from types import ModuleType


def _import(name: str) -> tuple[ModuleType, list[str]]:
    """The module and what was warned of: the packages above it may have old names too."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module = importlib.import_module(name)
    return module, [str(each.message) for each in caught]


@pytest.mark.parametrize("old", sorted(RENAMED))
def test_an_old_name_is_the_module_of_today(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same object, so that classes reached by both names are one class."""
    for name in [name for name in sys.modules if name == old or name.startswith(f"{old}.")]:
        monkeypatch.delitem(sys.modules, name)
    today = importlib.import_module(RENAMED[old])
    spec = today.__spec__
    found, warned = _import(old)
    assert found is today
    assert any(each.startswith(f"{old} is called {RENAMED[old]} now") for each in warned)
    assert today.__spec__ is spec
    assert today.__name__ == RENAMED[old]


@pytest.mark.parametrize(
    ("old", "home", "name"),
    [
        ("hopback.patterns.raffle", "hopback.designs", "raffle"),
        ("hopback.topology.diagram.subject", "hopback.topology.diagram", "subject"),
    ],
)
def test_an_old_name_does_not_hide_a_function(
    old: str, home: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python lays a module over what the one above it calls by the same name; not over what is used today."""
    monkeypatch.delitem(sys.modules, old, raising=False)
    function = getattr(importlib.import_module(home), name)
    assert callable(function)
    _import(old)
    assert getattr(importlib.import_module(home), name) is function


def test_what_stands_below_follows() -> None:
    """A module of a renamed package, and a module that moved out of it, each by the longest name."""
    assert new_name("hopback.patterns.ratatoskr") == "hopback.designs.ratatoskr"
    assert new_name("hopback.broker.simulator.embedded") == "hopback.broker.embedded.broker"
    assert new_name("hopback.broker.port") is None
    old, warned = _import("hopback.patterns.ratatoskr")
    assert "hopback.designs.ratatoskr now" in warned[-1]
    assert old is importlib.import_module("hopback.designs.ratatoskr")


def test_a_name_that_never_was_is_not_found() -> None:
    """No other error than Python's own."""
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("hopback.nothing")


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("hopback.admin.answers", "JobAnswer"),
        ("hopback.admin.answers", "job_answer"),
        ("hopback.admin.answers_messages", "LetterAnswer"),
        ("hopback.admin.api_jobs", "NewJob"),
        ("hopback.admin.api_queues", "NewSession"),
        ("hopback.admin.content", "Payload"),
        ("hopback.admin.endpoints", "Answer"),
        ("hopback.admin.endpoints", "Endpoint"),
        ("hopback.admin.settings", "Limits"),
        ("hopback.admin.live", "event_response"),
        ("hopback.admin.job_events", "event_stream"),
        ("hopback.broker.declare", "Difference"),
        ("hopback.broker.declare", "read_difference"),
        ("hopback.broker.probe", "refused_argument"),
    ],
)
def test_an_old_name_in_a_module_is_found(module: str, name: str) -> None:
    """It works, and the warning says what to use instead; a name that never was is an error."""
    found = importlib.import_module(new_name(module) or module)
    with pytest.warns(DeprecationWarning, match=rf"\.{name} goes with version 1.0; use \w"):
        assert callable(getattr(found, name))
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(found, "no_such" + "_name")


_RELEASED = [
    (module, names.split())
    for module, _, names in (
        line.partition(":")
        for line in Path(__file__)
        .with_name("old_names.txt")
        .read_text(encoding="utf-8")
        .splitlines()
        if not line.startswith("#")
    )
]
_FILLED = "it filled the Pages of one app, which are made otherwise; hopback.admin.app.page_routes has all"
_GONE = {
    "hopback.admin.pages_access.add_access_pages": _FILLED,
    "hopback.admin.pages_acts.add_act_pages": _FILLED,
    "hopback.admin.pages_deadletters.add_deadletter_pages": _FILLED,
    "hopback.admin.pages_jobs.add_job_pages": _FILLED,
    "hopback.admin.pages_topology.add_topology_pages": _FILLED,
}
"""Names that could not be kept, each with the reason. This list does not grow."""


@pytest.mark.parametrize(("module", "names"), _RELEASED, ids=[module for module, _ in _RELEASED])
def test_what_was_released_is_still_found(module: str, names: list[str]) -> None:
    """Every name that a module promised, by the path it had; a warning is all that may be new."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        home = importlib.import_module(module)
        missing = {f"{module}.{name}" for name in names if not hasattr(home, name)}
    assert missing == {each for each in _GONE if each.rpartition(".")[0] == module}
    assert {each.category for each in caught} <= {DeprecationWarning}
