"""The examples of the pages run, and their links lead to existing pages."""

from __future__ import annotations

import doctest
import re
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import ROOT, Block, blocks, matches, pages, run_command, run_page, steps

if TYPE_CHECKING:
    from pathlib import Path

_PAGES = pages()


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", _PAGES, ids=_name)
def test_commands_print_the_output_on_the_page(page: Path, tmp_path: Path) -> None:
    for step, printed in run_page(page.read_text(encoding="utf-8"), tmp_path):
        assert matches(step.expected, printed), f"$ {step.command}\n{printed}"


@pytest.mark.parametrize("page", _PAGES, ids=_name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python block runs. The output of blocks with prompts matches."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "example"}
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language == "python" and block.title is None:
            _run(block, namespace, _name(page))


def _run(block: Block, namespace: dict[str, object], where: str) -> None:
    if ">>>" not in block.text:
        exec(compile(block.text, where, "exec"), namespace)
        return
    test = doctest.DocTestParser().get_doctest(block.text, namespace, where, where, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    report: list[str] = []
    assert runner.run(test, out=report.append, clear_globs=False).failed == 0, "".join(report)
    namespace.update(test.globs)


_IMPORT = re.compile(r"\bfrom (hopback[\w.]*) import (?:\(([^)]*)\)|([\w, ]+))")
_READMES = sorted((ROOT / "src").rglob("README.md"))


@pytest.mark.parametrize("page", [*_PAGES, *_READMES], ids=_name)
def test_imports_on_pages_find_their_names(page: Path) -> None:
    """In blocks that do not run and in sentences, too."""
    missing = [
        f"from {module} import {name}"
        for module, several, one in _IMPORT.findall(page.read_text(encoding="utf-8"))
        for name in re.findall(r"\w+", several or one)
        if not hasattr(import_module(module), name)
    ]
    assert missing == []


_DRAWING = re.compile(
    r"^```sh\n(hopback [^\n]*)\n```\n+```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE
)


@pytest.mark.parametrize(
    "page", [one for one in _PAGES if "```mermaid" in one.read_text()], ids=_name
)
def test_drawings_match_the_output_of_the_command(page: Path, tmp_path: Path) -> None:
    """Every drawing follows the command that prints it."""
    text = page.read_text(encoding="utf-8")
    list(run_page(text, tmp_path))
    found = _DRAWING.findall(text)
    assert len(found) == text.count("```mermaid")
    for command, drawn in found:
        assert run_command(tmp_path, command)[0] == drawn


@pytest.mark.parametrize("page", _PAGES, ids=_name)
def test_links_to_pages_lead_to_existing_files(page: Path) -> None:
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)]+)\)", prose)]
    ours = [target for target in targets if target and "://" not in target]
    assert [target for target in ours if not (page.parent / target).exists()] == []


def test_index_links_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([^)#]+)", index))
    below = {str(page.relative_to(ROOT / "docs")) for page in _PAGES if page.parent != ROOT}
    assert below - linked == {"README.md"}


def test_matches_rejects_missing_and_additional_lines() -> None:
    assert matches("one\n…\nfour\n", "one\ntwo\nthree\nfour\n")
    assert matches("job j-… done\n", "job j-12 done\n")
    assert not matches("job j-… done\n", "job j-12\ndone\n")
    assert not matches("one\n", "two\n")
    assert not matches("one\n", "one\ntwo\n")
    assert not matches("one\ntwo\n", "one\n")


def test_console_block_is_split_into_commands() -> None:
    """A command may span several lines."""
    found = steps(Block("console", None, "$ a \\\n    b\nout\n$ c\n"))
    assert [(step.command, step.expected) for step in found] == [
        ("a \\\n    b", "out\n"),
        ("c", ""),
    ]
