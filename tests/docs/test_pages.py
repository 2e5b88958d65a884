"""What the pages show is what happens: their examples are played, their links followed."""

from __future__ import annotations

import doctest
import re
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import ROOT, Block, blocks, matches, pages, play, run_in, steps

if TYPE_CHECKING:
    from pathlib import Path

_PAGES = pages()


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", _PAGES, ids=_name)
def test_commands_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    """Every command of a console block prints what stands under it."""
    for step, printed in play(page.read_text(encoding="utf-8"), tmp_path):
        assert matches(step.expected, printed), f"$ {step.command}\n{printed}"


@pytest.mark.parametrize("page", _PAGES, ids=_name)
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python block runs; one with prompts shows what they print."""
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
    told: list[str] = []
    assert runner.run(test, out=told.append, clear_globs=False).failed == 0, "".join(told)
    namespace.update(test.globs)


_DRAWING = re.compile(
    r"^```sh\n(hopback [^\n]*)\n```\n+```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE
)


@pytest.mark.parametrize(
    "page", [one for one in _PAGES if "```mermaid" in one.read_text()], ids=_name
)
def test_drawings_are_what_the_command_draws(page: Path, tmp_path: Path) -> None:
    """A drawing stands under the command that draws it."""
    text = page.read_text(encoding="utf-8")
    list(play(text, tmp_path))
    found = _DRAWING.findall(text)
    assert len(found) == text.count("```mermaid")
    for command, drawn in found:
        assert run_in(tmp_path, command)[0] == drawn


@pytest.mark.parametrize("page", _PAGES, ids=_name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every link to another page of ours leads to a file that exists."""
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)]+)\)", prose)]
    ours = [target for target in targets if target and "://" not in target]
    assert [target for target in ours if not (page.parent / target).exists()] == []


def test_every_page_can_be_found() -> None:
    """Each page of docs/ is linked from its index."""
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([^)#]+)", index))
    below = {str(page.relative_to(ROOT / "docs")) for page in _PAGES if page.parent != ROOT}
    assert below - linked == {"README.md"}


def test_a_wrong_page_would_be_noticed() -> None:
    """The comparison fails for other output, missing lines and extra ones."""
    assert matches("one\n…\nfour\n", "one\ntwo\nthree\nfour\n")
    assert matches("job j-… done\n", "job j-12 done\n")
    assert not matches("job j-… done\n", "job j-12\ndone\n")
    assert not matches("one\n", "two\n")
    assert not matches("one\n", "one\ntwo\n")
    assert not matches("one\ntwo\n", "one\n")


def test_a_console_block_is_split_into_its_commands() -> None:
    """A command may run over several lines; what follows it is its output."""
    found = steps(Block("console", None, "$ a \\\n    b\nout\n$ c\n"))
    assert [(step.command, step.expected) for step in found] == [
        ("a \\\n    b", "out\n"),
        ("c", ""),
    ]
