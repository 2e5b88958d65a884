"""Measure how plain the English of the project is: `python3 tools/prose.py [PATH ...]`.

The tool counts habits that are hard to read in docstrings, comments, string literals, templates and
pages, per 10,000 words. The rates of the whole tree show where a rewrite is worth the effort. A
single hit may be right. `--files` lists the files with the most hits. `--show HABIT` prints each
hit with its place. `--check` measures src and docs and exits with status 1 if a rate is above its
limit.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).resolve().parent.parent
PER = 10_000


@dataclass(frozen=True)
class Habit:
    """A pattern, and its highest accepted rates per 10,000 words."""

    pattern: re.Pattern[str]
    source: float
    docs: float


def _habit(pattern: str, source: float, docs: float) -> Habit:
    return Habit(re.compile(pattern, re.IGNORECASE | re.MULTILINE), source, docs)


HABITS = {
    "what-clause": _habit(r"\bwhat\b(?! (?:if|do|does|did|should|would|kind|happens?)\b)", 6, 10),
    "nobody": _habit(
        r"\b(?:some|any|no|every)(?:body|one)\b|\bno one\b|\bwhoever\b|\bpeople\b", 3, 6
    ),
    "nothing": _habit(r"\bnothing\b", 5, 8),
    "say-tell": _habit(r"\b(?:say|says|said|saying|tell|tells|told|telling)\b", 5, 10),
    "stand-lie-rest": _habit(r"\b(?:stand|stands|stood|lies|rests|rested)\b", 3, 5),
    "is-no": _habit(r"(?<!there )\b(?:is|are|was|were|be) (?:no(?! longer)|(?-i:none))\b", 3, 4),
    "so-many": _habit(r"\bso (?:many|much|long|often|few)\b", 1, 1),
    "of-its-own": _habit(
        r"\bof (?:its|their|his|her|our|your) own\b|\bof (?:ours|theirs)\b", 1, 1.5
    ),
    "who-clause": _habit(
        r"(?:^|[.;:(] ?)(?:Who|Whose|Whom) |\b(?:by|to|of|from|for) whom\b", 0.5, 1
    ),
    "come-go": _habit(r"\b(?:comes?|came|coming) back\b|\b(?:goes|went|going) on\b", 2, 3),
    "semicolon": _habit(r";(?= )", 30, 60),
}
# The limit for functions that are named by a participle, such as `opened` or `running_jobs`, in
# percent.
PARTICIPLES = 3
_PARTICIPLE = re.compile(r"_?[a-z]+(?:ed|ing)(?:_[a-z_]+)?")
_MARKUP = re.compile(
    r"<script.*?</script>|<[^>]+>|\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\}|&\w+;", re.DOTALL
)
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


@dataclass
class Measured:
    """The number of words, hits and functions in some files."""

    words: int = 0
    functions: int = 0
    participles: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    by_file: Counter[str] = field(default_factory=Counter)
    places: list[tuple[str, str]] = field(default_factory=list)

    def rate(self, habit: str) -> float:
        return PER * self.hits[habit] / max(1, self.words)

    @property
    def participle_share(self) -> float:
        return 100 * self.participles / max(1, self.functions)


def measure(paths: Iterable[Path]) -> Measured:
    """Count the habits in all files in the paths."""
    found = Measured()
    for path in _files(paths):
        place = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
        source = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            tree = ast.parse(source)
            names = [node.name for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)]
            found.functions += len(names)
            found.participles += sum(bool(_PARTICIPLE.fullmatch(name)) for name in names)
            texts: Iterator[tuple[int, str]] = _python_texts(tree, source)
        else:
            texts = _page_texts(source, _FENCE if path.suffix == ".md" else _MARKUP)
        for line, raw in texts:
            text = re.sub(r"`[^`]*`", "`x`", raw)
            found.words += len(re.findall(r"[A-Za-z']+", text))
            for name, habit in HABITS.items():
                for match in habit.pattern.finditer(text):
                    found.hits[name] += 1
                    found.by_file[place] += 1
                    around = text[max(0, match.start() - 50) : match.end() + 50]
                    found.places.append((name, f"{place}:{line}: {' '.join(around.split())}"))
    return found


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        below = [path] if path.is_file() else sorted(path.rglob("*"))
        for each in below:
            if each.suffix in {".py", ".html", ".md"} and "vendor" not in each.parts:
                yield each


def _python_texts(tree: ast.Module, source: str) -> Iterator[tuple[int, str]]:
    """Yield docstrings, string literals that contain a space, and comments."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and " " in node.value.strip()
        ):
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and "noqa" not in token.string:
            yield token.start[0], token.string.lstrip("# ")


def _page_texts(source: str, skipped: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page. Code blocks or markup are omitted."""
    text = skipped.sub(lambda match: "\n" * match.group().count("\n"), source)
    yield from ((number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip())


def _report(title: str, found: Measured) -> list[str]:
    """Print the rates and return the habits that exceed their limit."""
    is_docs = not found.functions
    above = []
    print(f"{title}: {found.words:,} words, hits per {PER:,} words")
    for name, habit in HABITS.items():
        limit = habit.docs if is_docs else habit.source
        rate = found.rate(name)
        if rate > limit:
            above.append(name)
        print(f"  {name:15} {rate:6.1f}  limit {limit:g}{'  ABOVE' if rate > limit else ''}")
    if not is_docs:
        share = found.participle_share
        if share > PARTICIPLES:
            above.append("participles")
        print(f"  {'participles':15} {share:6.1f}  limit {PARTICIPLES:g} % of functions")
    return above


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure how plain the English of the project is.")
    parser.add_argument("paths", nargs="*", type=Path, help="files and folders, src by default")
    parser.add_argument("--files", action="store_true", help="list the files with the most hits")
    parser.add_argument("--show", choices=tuple(HABITS), help="print each hit of a habit")
    parser.add_argument("--check", action="store_true", help="compare src and docs with the limits")
    options = parser.parse_args()
    if options.check:
        above = [
            f"{folder}: {habit}"
            for folder in ("src", "docs")
            for habit in _report(folder, measure([ROOT / folder]))
        ]
        print(f"above the limit: {', '.join(above)}" if above else "all rates within their limits")
        return 1 if above else 0
    paths = [path.resolve() for path in options.paths] or [ROOT / "src"]
    found = measure(paths)
    _report(", ".join(str(path) for path in options.paths) or "src", found)
    for habit, place in found.places:
        if habit == options.show:
            print(place)
    if options.files:
        for name, number in found.by_file.most_common(25):
            print(f"  {number:5} hits  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
