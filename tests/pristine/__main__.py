"""Try the project on machines that nobody has prepared: `make pristine`, as root.

Each Debian suite is a bare root with make, Python, venv and git, and a clone of HEAD in it. What is not
committed is not tried. Prints a table of results; the exit status is 1 if one of them failed. What the
parts printed is in `.work/pristine/logs/`.

    python3 -m tests.pristine                      everything; half an hour on a quiet machine of two cores
    python3 -m tests.pristine bookworm/demo forky  one part, and all parts of a suite
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.harness.signals import set_signals
from tests.pristine.root import WORK, fresh_root

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.pristine.root import Root

_LOGS = WORK / "logs"
_MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Part:
    """Something that is tried in a suite's root; parts of one suite share the root, in this order."""

    suite: str
    name: str

    @property
    def title(self) -> str:
        """How it is chosen and shown."""
        return f"{self.suite}/{self.name}"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a part."""

    part: Part
    python: str
    passed: bool
    seconds: float
    words: str


SUITES = {"bookworm": "3.11", "trixie": "3.13", "forky": "3.14"}
"""Debian suite → its Python."""

PARTS = (
    Part("bookworm", "demo"),
    Part("bookworm", "ci"),
    Part("bookworm", "installing"),
    Part("trixie", "fast"),
    Part("trixie", "installing"),
    Part("forky", "fast"),
    Part("forky", "installing"),
)


def chosen(names: Sequence[str]) -> list[Part]:
    """The parts of that name or of that suite, all without a name; ValueError for what is neither."""
    for name in names:
        if not any(name in (part.suite, part.title) for part in PARTS):
            known = ", ".join(part.title for part in PARTS)
            raise ValueError(f"expected parts among {known}, or a suite; got {name!r}")
    return [part for part in PARTS if not names or part.suite in names or part.title in names]


def table(results: Sequence[Result]) -> str:
    """The results, a line each."""
    rows = ["| part | Python | result | time | |", "|---|---|---|---|---|"]
    for result in results:
        verdict = "passed" if result.passed else "FAILED"
        minutes, seconds = divmod(round(result.seconds), 60)
        time_taken = f"{minutes}:{seconds:02}"
        rows.append(
            f"| {result.part.title} | {result.python} | {verdict} | {time_taken} | {result.words} |"
        )
    return "\n".join(rows)


def main(arguments: Sequence[str]) -> int:
    """Try the chosen parts, one suite after the other, and print the table."""
    try:
        parts = chosen(arguments)
    except ValueError as error:
        sys.stderr.write(f"hopback: {error}\n")
        return 2
    if os.geteuid() != 0:
        sys.stderr.write("hopback: debootstrap and chroot need root; run this as root\n")
        return 2
    set_signals()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was begun is taken away
    _LOGS.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    try:
        for suite in dict.fromkeys(part.suite for part in parts):
            with fresh_root(suite) as root:
                results += [_tried(part, root) for part in parts if part.suite == suite]
    except KeyboardInterrupt:
        sys.stderr.write("hopback: interrupted; what was not tried is not in the table\n")
        return 130
    finally:
        sys.stdout.write(table(results) + "\n")
    return int(not all(result.passed for result in results))


def _tried(part: Part, root: Root) -> Result:
    log = _LOGS / f"{part.suite}-{part.name}.log"
    sys.stderr.write(f"hopback: {part.title}, see {log}\n")
    python = root.output("python3", "-c", "import platform; print(platform.python_version())")
    if not python.startswith(f"{SUITES[part.suite]}."):
        return Result(part, python, False, 0.0, f"expected Python {SUITES[part.suite]}")
    started = time.monotonic()
    passed, words = _ACTS[part.name](root, log)
    return Result(part, python, passed, time.monotonic() - started, words)


def _demo(root: Root, log: Path) -> tuple[bool, str]:
    """`make demo` until its page answers, then Ctrl-C."""
    answers: list[str] = []
    straight = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is on this machine

    def is_up(text: str) -> bool:
        """Whether it has said all it has to say, and answers where it says that it does."""
        address = re.search(r"https?://[\d.:]+", text)
        if address is None or "Ctrl-C ends it." not in text:
            return False
        try:
            with straight.open(f"{address[0]}/healthz", timeout=10) as response:
                answers.append(f"{address[0]}/healthz answered {response.status}")
        except OSError:
            return False
        return True

    status = root.run("make demo", log, 10 * _MINUTE, is_up)
    ended = "No process is left running" in log.read_text(errors="replace")
    # Interrupted with its command, make itself ends as one that was interrupted.
    passed = bool(answers) and ended and status in (0, 2, 130)
    return passed, ", ".join([*answers, f"ended with {status}"])


def _ci(root: Root, log: Path) -> tuple[bool, str]:
    """What continuous integration runs."""
    return judged(root.run(".ci/run", log, 60 * _MINUTE), log)


def _fast(root: Root, log: Path) -> tuple[bool, str]:
    """The unit and property tests."""
    return judged(root.run("make test-fast", log, 20 * _MINUTE), log)


def _installing(root: Root, log: Path) -> tuple[bool, str]:
    """The wheel alone and each extra alone, as users install them."""
    status = root.run("python3 -m tests.pristine.installing", log, 30 * _MINUTE)
    return status == 0, log.read_text(errors="replace").strip().rpartition("\n")[2]


def judged(status: int, log: Path) -> tuple[bool, str]:
    """Whether it passed, and what each run of pytest said."""
    text = log.read_text(errors="replace")
    said = re.findall(r"\d+ (?:passed|failed|errors?)[^\n=]* in [\d.]+s", text)
    if status:
        said.append(f"ended with {status}, see {log.name}")
    return status == 0, "; ".join(said)


_ACTS = {"demo": _demo, "ci": _ci, "fast": _fast, "installing": _installing}

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
