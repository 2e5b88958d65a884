"""The parts of `make pristine` and the table of their results."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

import pytest

from tests.pristine.__main__ import PARTS, SUITES, Result, select, summarize, table
from tests.pristine.installing import extras_in, problems
from tests.pristine.root import PROJECT

if TYPE_CHECKING:
    from pathlib import Path


def _project() -> dict[str, list[str]]:
    found: dict[str, list[str]] = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    return found


def test_classifiers_name_exactly_the_tested_pythons() -> None:
    named = [line.rpartition(" ")[2] for line in _project()["classifiers"] if ":: 3." in line]
    assert named == list(SUITES.values())
    assert {part.suite for part in PARTS} == SUITES.keys()


def test_parts_are_selected_by_name_or_suite() -> None:
    """Without names all parts are selected, in their order. The error for an unknown name lists the
    parts.
    """
    assert tuple(select([])) == PARTS
    assert [part.title for part in select(["forky", "bookworm/demo"])] == [
        "bookworm/demo",
        *(part.title for part in PARTS if part.suite == "forky"),
    ]
    with pytest.raises(ValueError, match=r"among bookworm/demo.* got 'woody'"):
        select(["woody"])


def test_table_has_a_line_per_result() -> None:
    text = table([Result(PARTS[0], "3.11.2", False, 81.4, "ended with 1")])
    assert text.splitlines()[-1] == "| bookworm/demo | 3.11.2 | FAILED | 1:21 | ended with 1 |"


def test_summary_contains_each_pytest_run_and_the_exit_status(tmp_path: Path) -> None:
    """A command that fails after its tests have passed has failed."""
    log = tmp_path / "bookworm-ci.log"
    log.write_text("87 passed in 5.40s\n===== 2 failed, 15 passed in 100.18s (0:01:40) =====\n")
    assert summarize(0, log) == (True, "87 passed in 5.40s; 2 failed, 15 passed in 100.18s")
    assert summarize(2, log)[0] is False
    assert summarize(2, log)[1].endswith("; ended with 2, see bookworm-ci.log")


def test_extras_include_the_extras_that_they_name() -> None:
    """At any depth."""
    extras = {"a": ["hopback[b]", "x"], "b": ["hopback[c,d]"], "c": ["y"], "d": ["z"], "e": ["w"]}
    assert extras_in("a", extras) == {"a", "b", "c", "d"}


def test_features_outside_the_extra_must_name_their_extra() -> None:
    """A feature may also work without its extra."""
    extras = {"store": ["sqlalchemy"], "zstd": ["zstandard"], "push": ["httpx"]}
    named = "MissingExtra: push needs httpx, which is not installed: pip install 'hopback[push]'"
    results = {"": "works", "store": "works", "zstd": "works", "push": named}
    assert problems("store", extras, results) == []
    assert problems("store", extras, {**results, "store": "KeyError: x"}) == [
        "hopback[store]: store: KeyError: x"
    ]
    assert problems("", extras, {**results, "push": "ModuleNotFoundError: httpx"}) == [
        "hopback: push does not name its extra: ModuleNotFoundError: httpx"
    ]
