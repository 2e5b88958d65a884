"""The tree as a visitor sees it: an orderly root, one vocabulary, nothing of anyone's machine."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from tests.architecture.source import ROOT

_ROOT_ENTRIES = {
    ".ci", ".gitattributes", ".github", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE",
    "Makefile", "README.md", "SECURITY.md", "benchmarks", "deploy", "docs", "examples", "pyproject.toml",
    "src", "tests", "tools",
}  # fmt: skip

# Put together here, so that this file does not find itself.
_LOCAL_PATHS = re.compile(
    "|".join(["/wo" + "rk/", r"\.\./sha" + "red", "/home/" + r"\w", "/ro" + "ot/"])
)
_REGISTRIES = re.compile("pyp" + "i|pythonhos" + "ted|artif" + "actory", re.IGNORECASE)

_ONE_WORD = {
    r"dead letter queue": "dead-letter queue",
    r"dead letter exchange": "dead-letter exchange",
    r"redrive[sn]?\b|redriving|redrove": "re-drive",
    r"back off\b": "back-off (noun)",
    r"wait queue": "retry queue",
    r"poison queue": "dead-letter queue",
}


def _tracked() -> list[str]:
    """Files under version control, or every file where there is no git (an unpacked archive)."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        command = ["git", "ls-files", "-z"]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if ran.returncode == 0:
            return [name for name in ran.stdout.split("\0") if name and (ROOT / name).is_file()]
    parts = ("src", "tests", "docs", "tools", "benchmarks")
    paths = (path for part in parts for path in (ROOT / part).rglob("*") if path.is_file())
    return [str(path.relative_to(ROOT)) for path in paths if "__pycache__" not in path.parts]


_FILES = _tracked()
_PROSE = [name for name in _FILES if name.endswith(".md")]


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8", errors="replace")


def test_the_root_holds_only_what_belongs_there() -> None:
    """No working papers: every entry at the root is expected."""
    assert {name.split("/")[0] for name in _FILES} <= _ROOT_ENTRIES


def test_nothing_refers_to_a_machine_or_a_registry() -> None:
    """No file names a path of someone's machine or the host of a package registry."""
    found = [
        name
        for name in _FILES
        if _LOCAL_PATHS.search(_text(name)) or _REGISTRIES.search(_text(name))
    ]
    assert found == []


@pytest.mark.parametrize("name", _PROSE)
def test_prose_uses_one_word_per_thing(name: str) -> None:
    """Pages for people use the words of the glossary; code and names in backticks are left alone."""
    prose = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", _text(name), flags=re.DOTALL)
    found = {word: use for word, use in _ONE_WORD.items() if re.search(word, prose, re.IGNORECASE)}
    assert found == {} or name == "docs/glossary.md"
