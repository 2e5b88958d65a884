"""Tests of the pages about guarantees. Each sentence must name a test, and each test that is named
must exist.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import ROOT
from tests.faults.ledger.checks import Finding, Promise, Verdict
from tests.faults.results import Result, Results
from tests.faults.tally import Part, Tally, page

if TYPE_CHECKING:
    from pathlib import Path

_GUARANTEES = ROOT / "docs" / "explanation" / "guarantees.md"
_NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`")
_MARK = re.compile(r"\[([a-z-]+)\](?!\()")
_PROMISING = ("guarantees.md", "threat-model.md")


def _exists(path: Path, test: str) -> bool:
    if not path.exists():
        return False
    names = {
        node.name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    return test in names if test else any(name.startswith("test_") for name in names)


def _sentences(text: str) -> list[str]:
    """Return the sentences of a page without headings. Each table cell, list item or paragraph is
    one.
    """
    found: list[str] = []
    for block in re.split(r"\n\s*\n|\n(?=- )", text):
        lines = block.strip().splitlines()
        if not lines or lines[0].startswith("#"):
            continue
        if lines[0].startswith("|"):
            rows = [line.strip("|").split("|")[1:] for line in lines[2:]]
            found += [cell.strip() for row in rows for cell in row]
        else:
            found.append(" ".join(lines))
    return found


def _problems(text: str) -> list[str]:
    """Return sentences without a test, marks that are not listed, and listed marks that are not
    used.
    """
    words, _, listed = text.partition("## The tests")
    known = dict(re.findall(r"^- \[([a-z-]+)\] (.+)$", listed, re.MULTILINE))
    marked = [(sentence, set(_MARK.findall(sentence))) for sentence in _sentences(words)]
    wanting = [sentence for sentence, marks in marked if not marks]
    unknown = [mark for _, marks in marked for mark in marks if mark not in known]
    unused = [mark for mark in known if not any(mark in marks for _, marks in marked)]
    return wanting + unknown + unused


def test_every_sentence_of_guarantees_names_an_existing_test() -> None:
    assert _problems(_GUARANTEES.read_text(encoding="utf-8")) == []


def test_sentence_without_test_is_reported() -> None:
    """Unknown and unused marks are reported as well."""
    good = "# G\n\nIt holds [a].\n\n## The tests\n\n- [a] `tests/x.py::test_a`\n"
    assert _problems(good) == []
    assert _problems(good.replace(" [a].", ".")) == ["It holds.", "a"]
    assert "b" in _problems(good.replace("holds [a]", "holds [a] [b]"))
    table = "| what | x |\n|---|---|\n| one | nothing |\n\n"
    assert _problems(table + good) == ["nothing"]


@pytest.mark.parametrize("name", _PROMISING)
def test_every_test_named_on_pages_exists(name: str) -> None:
    named = _NAMED.findall((ROOT / "docs" / "explanation" / name).read_text(encoding="utf-8"))
    assert len(named) > 10
    assert [f"{path}::{test}" for path, test in named if not _exists(ROOT / path, test)] == []


def _long_run(folder: Path, *arguments: str) -> str:
    """Run a minimal long run as a process and return the page that it writes."""
    command = [sys.executable, "-m", "tests.faults", *arguments, "--seeds", "3", "--fuzz", "20"]
    command += ["--http", "1", "--kept", str(folder / "kept"), "--page", str(folder / "p.md")]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return (folder / "p.md").read_text(encoding="utf-8")


def test_long_run_stores_results_and_continues(tmp_path: Path) -> None:
    """Blocks that have finished are not repeated, even if the last line is incomplete. The page
    contains all of them.
    """
    first = _long_run(tmp_path, "simulation", "fuzz")
    assert "| simulation | 3 seeds | embedded |" in first
    kept = tmp_path / "kept" / "results.ndjson"
    with kept.open("ab") as lines:
        # the process was killed while it wrote this line
        lines.write(b'{"block": "http embedded 0", "par')
    written = _long_run(tmp_path, "simulation", "fuzz", "http")
    assert "| simulation | 3 seeds | embedded |" in written
    assert "20 inputs" in written
    assert "| bad input: HTTP requests | " in written
    assert [one.split()[0] for one in Results(kept).done()].count("simulation") == 1
    assert kept.read_text(encoding="utf-8").count('"block": "simulation embedded 0"') == 1


def test_blocks_of_part_are_one_row_and_failed_block_is_reported(tmp_path: Path) -> None:
    """If a block has several results, the last one counts. The blocks of a part are added up for
    each broker.
    """
    results = Results(tmp_path / "results.ndjson")
    for number, broker in ((0, "4.0"), (1, "4.0"), (0, "4.3")):
        part = Part("fault matrix", "", f"RabbitMQ {broker}")
        part.add(Verdict(10, 10, 12, {"broker:_kill_-9": 2}, 1, 3, (), gone=2))
        results.append(Result(f"matrix {broker} {number}", [part]))
    results.append(Result("storm 4.0 0", error="TimeoutError: not within 60 s"))
    told = page("", results.tally(["matrix", "storm"]), "x")
    assert "| RabbitMQ 4.0 | 20 | 4 | 4 | 0 | 0 | 0 | 2 | 4 |" in told
    assert "| broker: kill -9 | 4 | 2 |" in told
    assert "failed: did not finish" in told
    assert results.done() == {"matrix 4.0 0", "matrix 4.0 1", "matrix 4.3 0"}
    results.append(Result("storm 4.0 0"))
    assert not results.tally(["matrix", "storm"]).failed


def test_report_rewrites_tables_and_shows_broken_promises() -> None:
    """The text at the beginning of the page is kept."""
    found = Finding(Promise.LOST, "7", "left", "confirmed, and nowhere")
    fine = Part("fault matrix", "2 rounds", "RabbitMQ 3.10.8")
    fine.add(Verdict(10, 10, 12, {"broker:_kill_-9": 2}, 1, 3, ()))
    lossy = Part("storm: faithful", "1 kill", "RabbitMQ 3.10.8", lossy=True)
    lossy.add(Verdict(5, 5, 5, {}, 0, 0, (found,)))
    written = page("# The proof\n\nWords.\n", Tally([fine, lossy]), "make test-faults")
    assert written.startswith("# The proof\n\nWords.\n")
    assert "**10 confirmed messages, 2 faults, 0 lost**" in written
    assert "| broker: kill -9 | 2 |" in written
    assert "1 (expected)" in written
    assert "No message was stuck" in written
    assert page(written, Tally([fine, lossy]), "make test-faults") == written
    broken = Part("fault matrix", "", "RabbitMQ 3.10.8")
    broken.add(Verdict(5, 5, 5, {}, 0, 0, (found,)))
    tally = Tally([broken])
    assert tally.failed
    assert "Broken promises" in page("", tally, "x")
    assert not Tally([fine, lossy]).failed
    assert Tally([Part("storm", "", "", lossy=True)]).failed
    unpromised = Part("restarts: faithful", "", "RabbitMQ 3.10.8", may_lose=True)
    unpromised.add(Verdict(5, 5, 5, {}, 0, 0, (found,)))
    assert not Tally([unpromised]).failed
    assert "1 (not promised)" in page("", Tally([unpromised]), "x")
