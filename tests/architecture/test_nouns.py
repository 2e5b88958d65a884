"""One noun, one meaning: class names, the words of the front doors, and the doors themselves."""

from __future__ import annotations

import inspect
import re
from importlib import import_module

import pytest
from tools.figures import shared_class_names, sources, without_reason

from tests.architecture.source import ROOT

_DOORS = (
    "hopback",
    "hopback.broker",
    "hopback.deadletters",
    "hopback.runtime",
    "hopback.testing",
    "hopback.topology",
)

# Names that two classes have, each for a reason. This list only gets shorter.
_SHARED = {
    "Park": "an outcome is asked for, a decision is made: `decision.Park` is never imported by its name",
    "Retry": "as Park",
}


def test_a_class_name_is_defined_once() -> None:
    """Who reads a name knows the thing, without looking at the import; an underscore makes no other name."""
    shared = shared_class_names(sources())
    assert {name: homes for name, homes in shared.items() if name not in _SHARED} == {}


@pytest.mark.parametrize("door", _DOORS)
def test_every_name_of_a_front_door_opens(door: str) -> None:
    """Each can be had, `dir` shows them all, and nothing else is promised."""
    package = import_module(door)
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(package, "no_such" + "_name")


@pytest.mark.parametrize("door", _DOORS)
def test_the_nouns_of_a_front_door_are_in_the_glossary(door: str) -> None:
    """Every public class has its line there."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    known = set(re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE))
    package = import_module(door)
    nouns = {name for name in package.__all__ if inspect.isclass(getattr(package, name))}
    assert nouns - known == set()


# Packages whose modules are each a door of their own.
_OWN_DOORS = ("hopback.integrations", "hopback.observe", "hopback.systems", "hopback.wire")


def _imported_by_pages() -> set[str]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = (page.read_text(encoding="utf-8") for page in pages)
    return {
        name
        for text in texts
        for name in re.findall(r"^from (hopback[\w.]*) import", text, re.MULTILINE)
    }


def test_the_pages_import_from_front_doors() -> None:
    """A reader learns one module of a package: the package."""
    inner = {name for name in _imported_by_pages() if name.count(".") > 1}
    allowed = {name for name in inner if name.startswith(_OWN_DOORS)}
    # These functions have the names of their modules, and are reached through them.
    allowed |= {"hopback.broker.apply", "hopback.broker.declare"}
    assert inner - allowed == set()


def test_a_numeric_constant_says_why_it_has_its_value() -> None:
    """By a comment beside or above it, or a docstring below."""
    assert without_reason(sources()) == []
