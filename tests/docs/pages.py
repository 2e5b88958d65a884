"""Pages for people, and the examples in them.

A page's fenced blocks are played in order in one empty folder:

- `toml`, `json` and `python` blocks with a title (```` ```toml title="shop.toml" ````) become files;
- `console` blocks are played: each `$ ` line is run by a shell and what follows it is expected.
  A line that is only `…` stands for any lines, `…` within a line for any text there;
- a page that says so is played beside the broker of a shop (`tests.docs.shop`);
- other `python` blocks are run, one after the other, in one namespace; with `>>>` as a doctest.

`python -m tests.docs.pages` writes what the commands really print into the pages.
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

__all__ = ["ROOT", "Block", "Step", "blocks", "matches", "pages", "play", "run_in", "steps"]

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(
    r'^```(?P<language>\w+)(?: title="(?P<title>[^"/]+)")?\n(?P<text>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block."""

    language: str
    title: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a console block and the output that the page shows."""

    command: str
    expected: str


def pages() -> list[Path]:
    """Every page whose examples are played."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page in order."""
    for found in _FENCE.finditer(text):
        yield Block(found["language"], found["title"], found["text"])


def steps(block: Block) -> list[Step]:
    """The commands of a console block; a trailing backslash continues a command."""
    found: list[Step] = []
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, expected = re.sub(r"\\\n", "\\\\\0", part).partition("\n")
        found.append(Step(command.replace("\\\0", "\\\n"), expected.replace("\\\0", "\\\n")))
    return found


def run_in(
    folder: Path, command: str, last_code: int = 0, around: dict[str, str] | None = None
) -> tuple[str, int]:
    """Run one command as a reader would type it: its output, stderr included, and exit code."""
    environment = {
        **os.environ,
        **(around or {}),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "NO_COLOR": "1",
        "COLUMNS": "100",
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
    """Whether the page shows what was printed; `…` stands for any lines, or for any text in one."""
    pattern = "".join(
        r"(?:.*\n)*?"
        if line.strip() == "…"
        else ".*".join(map(re.escape, line.rstrip().split("…"))) + r"[ \t]*\n"
        for line in expected.rstrip("\n").split("\n")
    )
    shown = printed.rstrip("\n") + "\n"
    return re.fullmatch(pattern, shown) is not None


def play(text: str, folder: Path) -> Iterator[tuple[Step, str]]:
    """Play a page's files and commands; yields each step with what it printed."""
    code = 0
    with _around(text, folder) as around:
        for block in blocks(text):
            if block.title is not None:
                (folder / block.title).write_text(block.text, encoding="utf-8")
            elif block.language == "console":
                for step in steps(block):
                    printed, code = run_in(folder, step.command, code, around)
                    yield step, printed


def _around(text: str, folder: Path) -> AbstractContextManager[dict[str, str]]:
    """What the commands of a page find in their environment."""
    return shop(folder) if MARK in text else nullcontext({})


def _refreshed(text: str, folder: Path) -> str:
    """The page with the output of each command as it is now; cut ones stay as they are."""
    for step, printed in list(play(text, folder)):
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
            page.write_text(_refreshed(text, Path(folder)), encoding="utf-8")


if __name__ == "__main__":
    _main()
