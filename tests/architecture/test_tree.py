"""Files of the project: root entries, vocabulary, no paths of a machine."""

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

# Concatenated so that this file does not match.
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


def _list_files() -> list[str]:
    """Return files under version control. An unpacked archive has no git, so return all its files."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        command = ["git", "ls-files", "-z"]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if ran.returncode == 0:
            return [name for name in ran.stdout.split("\0") if name and (ROOT / name).is_file()]
    parts = ("src", "tests", "docs", "tools", "benchmarks")
    paths = (path for part in parts for path in (ROOT / part).rglob("*") if path.is_file())
    return [str(path.relative_to(ROOT)) for path in paths if "__pycache__" not in path.parts]


_FILES = _list_files()
_PROSE = [name for name in _FILES if name.endswith(".md")]


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8", errors="replace")


def test_root_contains_only_known_entries() -> None:
    assert {name.split("/")[0] for name in _FILES} <= _ROOT_ENTRIES


def test_no_file_names_a_local_path_or_a_registry() -> None:
    found = [
        name
        for name in _FILES
        if _LOCAL_PATHS.search(_text(name)) or _REGISTRIES.search(_text(name))
    ]
    assert found == []


@pytest.mark.parametrize("name", _PROSE)
def test_pages_use_the_words_of_the_glossary(name: str) -> None:
    """Code and names in backticks are ignored."""
    prose = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", _text(name), flags=re.DOTALL)
    found = {word: use for word, use in _ONE_WORD.items() if re.search(word, prose, re.IGNORECASE)}
    assert found == {} or name == "docs/glossary.md"
