"""Old module names: they find the module of today, and say so."""

from __future__ import annotations

import importlib
import sys

import pytest

from hopback.renamed import RENAMED, new_name


@pytest.mark.parametrize("old", sorted(RENAMED))
def test_an_old_name_is_the_module_of_today(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same object, so that classes reached by both names are one class."""
    for name in [name for name in sys.modules if name == old or name.startswith(f"{old}.")]:
        monkeypatch.delitem(sys.modules, name)
    today = importlib.import_module(RENAMED[old])
    spec = today.__spec__
    with pytest.warns(DeprecationWarning, match=f"{old} is called {RENAMED[old]} now"):
        assert importlib.import_module(old) is today
    assert today.__spec__ is spec
    assert today.__name__ == RENAMED[old]


def test_what_stands_below_follows() -> None:
    """A module of a renamed package, and a module that moved out of it, each by the longest name."""
    assert new_name("hopback.patterns.ratatoskr") == "hopback.designs.ratatoskr"
    assert new_name("hopback.broker.simulator.embedded") == "hopback.broker.embedded.broker"
    assert new_name("hopback.broker.port") is None
    with pytest.warns(DeprecationWarning, match="hopback.designs.ratatoskr now"):
        old = importlib.import_module("hopback.patterns.ratatoskr")
    assert old is importlib.import_module("hopback.designs.ratatoskr")


def test_a_name_that_never_was_is_not_found() -> None:
    """No other error than Python's own."""
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("hopback.nothing")
