"""What is tried on bare machines, and how the results are told."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

import pytest

from tests.pristine.__main__ import PARTS, SUITES, Result, chosen, judged, table
from tests.pristine.installing import brought_by, problems
from tests.pristine.root import PROJECT

if TYPE_CHECKING:
    from pathlib import Path


def _project() -> dict[str, list[str]]:
    found: dict[str, list[str]] = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    return found


def test_the_classifiers_name_the_pythons_that_are_tried() -> None:
    """No more and no fewer."""
    named = [line.rpartition(" ")[2] for line in _project()["classifiers"] if ":: 3." in line]
    assert named == list(SUITES.values())
    assert {part.suite for part in PARTS} == SUITES.keys()


def test_parts_are_chosen_by_name_or_suite() -> None:
    """Without a name all of them, in their order; what is unknown is refused with what is known."""
    assert tuple(chosen([])) == PARTS
    assert [part.title for part in chosen(["forky", "bookworm/demo"])] == [
        "bookworm/demo",
        *(part.title for part in PARTS if part.suite == "forky"),
    ]
    with pytest.raises(ValueError, match=r"among bookworm/demo.* got 'woody'"):
        chosen(["woody"])


def test_every_result_is_a_line() -> None:
    """Part, Python, verdict, minutes, words."""
    told = table([Result(PARTS[0], "3.11.2", False, 81.4, "ended with 1")])
    assert told.splitlines()[-1] == "| bookworm/demo | 3.11.2 | FAILED | 1:21 | ended with 1 |"


def test_a_run_is_told_by_what_each_pytest_said(tmp_path: Path) -> None:
    """A command that fails after its tests have passed is told as one that failed."""
    log = tmp_path / "bookworm-ci.log"
    log.write_text("87 passed in 5.40s\n===== 2 failed, 15 passed in 100.18s (0:01:40) =====\n")
    assert judged(0, log) == (True, "87 passed in 5.40s; 2 failed, 15 passed in 100.18s")
    assert judged(2, log)[0] is False
    assert judged(2, log)[1].endswith("; ended with 2, see bookworm-ci.log")


def test_an_extra_brings_what_it_names() -> None:
    """Extras are made of extras, to any depth."""
    extras = {"a": ["hopback[b]", "x"], "b": ["hopback[c,d]"], "c": ["y"], "d": ["z"], "e": ["w"]}
    assert brought_by("a", extras) == {"a", "b", "c", "d"}


def test_what_an_extra_brings_works_and_the_rest_names_its_extra() -> None:
    """A feature that fails without such words is a problem, one that works is none."""
    extras = {"store": ["sqlalchemy"], "zstd": ["zstandard"], "push": ["httpx"]}
    named = "MissingExtra: push needs httpx, which is not installed: pip install 'hopback[push]'"
    told = {"": "works", "store": "works", "zstd": "works", "push": named}
    assert problems("store", extras, told) == []
    assert problems("store", extras, {**told, "store": "KeyError: x"}) == [
        "hopback[store]: store: KeyError: x"
    ]
    assert problems("", extras, {**told, "push": "ModuleNotFoundError: httpx"}) == [
        "hopback: push does not name its extra: ModuleNotFoundError: httpx"
    ]
