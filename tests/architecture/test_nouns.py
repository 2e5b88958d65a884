"""Each noun has one meaning: class names, glossary entries, front doors, vocabulary of names and
texts.
"""

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

# Names of two classes, with the reason. Do not add to this list.
_SHARED = {
    "Park": "a handler returns the outcome `Park`; `decision.Park` is never imported by name",
    "Retry": "same reason as Park",
}


def _sources() -> list[Source]:
    return [Source(each.name, each.path, each.text, each.tree) for each in library()]


def test_class_names_are_unique() -> None:
    """A leading underscore does not make a name different."""
    shared = shared_class_names(_sources())
    assert {name: homes for name, homes in shared.items() if name not in _SHARED} == {}


@pytest.mark.parametrize("door", _DOORS)
def test_classes_of_front_doors_are_in_the_glossary(door: str) -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    known = set(re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE))
    package = import_module(door)
    nouns = {name for name in package.__all__ if inspect.isclass(getattr(package, name))}
    assert nouns - known == set()


# Packages whose modules are front doors.
_OWN_DOORS = ("hopback.integrations", "hopback.observe", "hopback.systems", "hopback.wire")


def _page_imports() -> set[str]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = (page.read_text(encoding="utf-8") for page in pages)
    return {
        name
        for text in texts
        for name in re.findall(r"^from (hopback[\w.]*) import", text, re.MULTILINE)
    }


def test_pages_import_from_front_doors() -> None:
    inner = {name for name in _page_imports() if name.count(".") > 1}
    allowed = {name for name in inner if name.startswith(_OWN_DOORS)}
    # Functions with the name of their module. They are imported from it.
    allowed |= {"hopback.broker.apply", "hopback.broker.declare", "hopback.topology.check"}
    allowed.add("hopback.store.rows")  # its extra differs from that of `hopback.store`
    assert inner - allowed == set()


def test_numeric_constants_have_a_comment_or_docstring() -> None:
    assert without_reason(_sources()) == []


# Words that older names used, with their replacements. Current words are in `docs/glossary.md`.
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
# In tests only: ramps and pipelines have stages.
_METAPHORS_OF_TESTS = {"stage": "setup, service or system"}
# Modules that use such a word in another sense.
_IN_ANOTHER_SENSE = {
    "hopback.ops.contract.values": {"letter", "letters"},
    "hopback.testing.simulate": {"letter"},
    # Dramatiq's term for a message handler.
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


def test_names_contain_no_words_that_were_replaced() -> None:
    found = {each.name: _metaphors_in(each) for each in (*library(), *test_modules())}
    assert {name: words for name, words in found.items() if words} == {}


def test_texts_contain_no_phrases_that_were_replaced() -> None:
    """Checks the documentation, the pages of the systems and all string literals of the source."""
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
# Pages name the subject: a user, a process or a connection.
_LOFTY = re.compile(r"\bwhoever\b", re.IGNORECASE)
_SUSPECT = re.compile("|".join([*_METAPHORS, *_METAPHORS_OF_TESTS]), re.IGNORECASE)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
