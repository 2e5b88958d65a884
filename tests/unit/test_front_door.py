"""Front doors: names of an earlier version are found under their name of today, with a warning."""

from __future__ import annotations

from importlib import import_module

import pytest

_OLD = [
    ("hopback", "Surroundings", "Environment"),
    ("hopback.designs", "Parameter", "DesignParameter"),
    ("hopback.runtime.settling", "Surroundings", "Environment"),
    ("hopback.topology", "Entry", "DiffEntry"),
]


@pytest.mark.parametrize(("home", "old", "now"), _OLD)
def test_an_old_name_is_the_thing_of_today(home: str, old: str, now: str) -> None:
    """The same class, so that nothing that was written with the old name breaks."""
    module = import_module(home)
    with pytest.warns(DeprecationWarning, match=f"{home}.{old} is called {now} now"):
        found = getattr(module, old)
    assert found is getattr(module, now)
    assert old not in module.__all__


def test_a_name_that_never_was_is_not_found() -> None:
    """No other error than Python's own."""
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        getattr(import_module("hopback.topology"), "noth" + "ing")
