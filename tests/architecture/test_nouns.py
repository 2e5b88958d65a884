"""One noun, one meaning: class names, the words of the front doors, and the doors themselves."""

from __future__ import annotations

import ast
import inspect
import re
from importlib import import_module
from itertools import pairwise

import pytest
from tools.figures import Source, shared_class_names, without_reason

from tests.architecture.source import ROOT, Module, library, test_modules

_DOORS = (
    "hopback",
    "hopback.broker",
    "hopback.ops",
    "hopback.runtime",
    "hopback.testing",
    "hopback.topology",
)

# Names that two classes have, each for a reason. This list only gets shorter.
_SHARED = {
    "Park": "an outcome is asked for, a decision is made: `decision.Park` is never imported by its name",
    "Retry": "as Park",
}


def _sources() -> list[Source]:
    """What the figures are counted from; parsed already."""
    return [Source(each.name, each.path, each.text, each.tree) for each in library()]


def test_a_class_name_is_defined_once() -> None:
    """Who reads a name knows the thing, without looking at the import; an underscore makes no other name."""
    shared = shared_class_names(_sources())
    assert {name: homes for name, homes in shared.items() if name not in _SHARED} == {}


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
    allowed |= {"hopback.broker.apply", "hopback.broker.declare", "hopback.topology.check"}
    allowed.add("hopback.store.rows")  # needs another extra than `hopback.store`
    assert inner - allowed == set()


def test_a_numeric_constant_says_why_it_has_its_value() -> None:
    """By a comment beside or above it, or a docstring below."""
    assert without_reason(_sources()) == []


# Words that stood for other things here once, with what took their place. As parts of names they tell a
# reader of today nothing; `docs/glossary.md` has the words that do.
_METAPHORS = {
    "actor": "consumer, client or handler",
    "bench": "subject",
    "ceremony": "completion event",
    "desk": "planner, or the dead letters themselves",
    "letter": "dead letter, message or delivery",
    "mend": "repair, correct, reopen",
    "office": "system",
    "player": "runner",
    "pulse": "heartbeat",
    "rota": "ring of consumers",
    "scene": "snapshot, analysis or scenario",
    "wish": "control request",
    "workshop": "job runner",
}
# In tests alone: a ramp and a pipeline do have stages.
_METAPHORS_OF_TESTS = {"stage": "setup, service or system"}
# Where such a word is itself the matter: a test of old names, letters of an alphabet.
_IN_ANOTHER_SENSE = {
    "hopback.ops.contract.values": {"letter", "letters"},
    "hopback.testing.simulate": {"letter"},
    # The word of Dramatiq for what handles a message.
    "tests.clients.programs.dramatiq_client": {"actor"},
    "tests.frameworks.dramatiq_app": {"actor"},
}


def _metaphors_in(module: Module) -> set[str]:
    names = {
        getattr(node, "id", getattr(node, "arg", getattr(node, "attr", None)))
        for node in module.nodes
    }
    names |= {node.name for node in module.nodes if isinstance(node, _DEFINITIONS)}
    suspect = {name for name in names if isinstance(name, str) and _SUSPECT.search(name)}
    of_tests = _METAPHORS_OF_TESTS if module.name.startswith("tests.") else {}
    words = {name: re.findall(r"[A-Z]?[a-z]+", name) for name in suspect}
    return {
        name
        for name, parts in words.items()
        for before, part in pairwise(["", *map(str.lower, parts)])
        if part.removesuffix("s") in (_METAPHORS | of_tests)
        and (before, part.removesuffix("s")) != ("dead", "letter")
    } - _IN_ANOTHER_SENSE.get(module.name, set())


def test_names_are_words_of_the_glossary_and_no_metaphors() -> None:
    """One word per thing: what was called otherwise once keeps no trace in other names."""
    found = {each.name: _metaphors_in(each) for each in (*library(), *test_modules())}
    assert {name: words for name, words in found.items() if words} == {}


def test_texts_are_in_the_english_of_today() -> None:
    """What users read: the documentation, the systems' own pages, and every text of the source."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.md")]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in pages}
    assert {name: found for name, text in texts.items() if (found := _LOFTY.findall(text))} == {}
    texts |= {
        each.name: "\n".join(
            node.value
            for node in each.nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )
        for each in library()
    }
    assert {name: found for name, text in texts.items() if (found := _BYGONE.findall(text))} == {}


_BYGONE = re.compile(
    r"\b(?:mend(?:s|ed|ing)?|(?:cannot|could not|not to) be had|publish him|for ever|in spite of"
    r"|of another make)\b",
    re.IGNORECASE,
)
# In pages: who it is can be said, a user, a process or a connection.
_LOFTY = re.compile(r"\bwhoever\b", re.IGNORECASE)
_SUSPECT = re.compile("|".join([*_METAPHORS, *_METAPHORS_OF_TESTS]), re.IGNORECASE)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
