"""Documentation pages and their examples.

The fenced blocks of a page run in order in one empty folder:

- `toml`, `json` and `python` blocks with a title (```` ```toml title="shop.toml" ````) become files.
- `console` blocks run: a shell executes each `$ ` line, and the lines after it are the expected output.
  A line that is only `…` matches any lines, `…` within a line matches any text in it.
- A page with the comment `tests.docs.shop.MARK` runs with the broker of a shop.
- Other `python` blocks run one after the other in one namespace, those with `>>>` as doctests.

`python -m tests.docs.pages` updates the output in the pages.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.docs.shop import MARK, shop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

__all__ = [
    "ROOT",
    "Block",
    "Step",
    "blocks",
    "matches",
    "pages",
    "run_command",
    "run_page",
    "steps",
]

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(
    r'^```(?P<language>\w+)(?: title="(?P<title>[^"/]+)")?\n(?P<text>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    title: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Step:
    command: str
    expected: str


def pages() -> list[Path]:
    """Return every page with examples."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page in order."""
    for found in _FENCE.finditer(text):
        yield Block(found["language"], found["title"], found["text"])


def steps(block: Block) -> list[Step]:
    """Return the commands of a console block. A trailing backslash continues a command."""
    found: list[Step] = []
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, expected = re.sub(r"\\\n", "\\\\\0", part).partition("\n")
        found.append(Step(command.replace("\\\0", "\\\n"), expected.replace("\\\0", "\\\n")))
    return found


def run_command(
    folder: Path, command: str, last_code: int = 0, variables: dict[str, str] | None = None
) -> tuple[str, int]:
    """Run one command in a shell and return its output, including stderr, and its exit status."""
    environment = {
        **os.environ,
        **(variables or {}),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "NO_COLOR": "1",
        "COLUMNS": "100",
        "PYTHONUNBUFFERED": "1",  # as in a terminal: otherwise all errors precede the output
    }
    ran = subprocess.run(
        ["sh", "-c", command.replace("$?", str(last_code))],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=60,
    )
    return ran.stdout, ran.returncode


def matches(expected: str, printed: str) -> bool:
    """Return whether the output matches the page. `…` matches any lines, or any text within a line."""
    pattern = "".join(
        r"(?:.*\n)*?"
        if line.strip() == "…"
        else ".*".join(map(re.escape, line.rstrip().split("…"))) + r"[ \t]*\n"
        for line in expected.rstrip("\n").split("\n")
    )
    shown = printed.rstrip("\n") + "\n"
    return re.fullmatch(pattern, shown) is not None


def run_page(text: str, folder: Path) -> Iterator[tuple[Step, str]]:
    """Create a page's files and run its commands. Yields each step with its output."""
    code = 0
    with _variables(text, folder) as variables:
        for block in blocks(text):
            if block.title is not None:
                (folder / block.title).write_text(block.text, encoding="utf-8")
            elif block.language == "console":
                for step in steps(block):
                    printed, code = run_command(folder, step.command, code, variables)
                    yield step, printed


def _variables(text: str, folder: Path) -> AbstractContextManager[dict[str, str]]:
    """Return additional environment variables for the commands of a page."""
    return shop(folder) if MARK in text else nullcontext({})


def _refresh(text: str, folder: Path) -> str:
    """Replace the output of each command in the page with its current output, except outputs with `…`."""
    for step, printed in list(run_page(text, folder)):
        if "…" not in step.expected:
            old = f"$ {step.command}\n{step.expected}"
            clean = "".join(f"{line.rstrip()}\n" for line in printed.rstrip("\n").split("\n"))
            blank = "\n" if step.expected.endswith("\n\n") else ""
            text = text.replace(old, f"$ {step.command}\n{clean if printed else ''}{blank}")
    return text


def _main() -> None:
    for page in pages():
        with tempfile.TemporaryDirectory() as folder:
            text = page.read_text(encoding="utf-8")
            page.write_text(_refresh(text, Path(folder)), encoding="utf-8")


if __name__ == "__main__":
    _main()
