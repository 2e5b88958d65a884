"""Test the project on bare Debian systems: `make pristine`, as root.

Each root contains one Debian suite with make, Python, venv and git, and a clone of HEAD.
Uncommitted changes are not tested. Prints a table of results and exits with status 1 if a part
failed. The output of the parts is in `.work/pristine/logs/`.

    python3 -m tests.pristine                      everything, half an hour on a quiet machine of two cores
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
    """A test in a suite's root. The parts of a suite share the root and run in this order."""

    suite: str
    name: str

    @property
    def title(self) -> str:
        return f"{self.suite}/{self.name}"


@dataclass(frozen=True, slots=True)
class Result:
    part: Part
    python: str
    passed: bool
    seconds: float
    words: str


SUITES = {"bookworm": "3.11", "trixie": "3.13", "forky": "3.14"}
"""The Python version of each Debian suite."""

PARTS = (
    Part("bookworm", "demo"),
    Part("bookworm", "ci"),
    Part("bookworm", "installing"),
    Part("trixie", "fast"),
    Part("trixie", "installing"),
    Part("forky", "fast"),
    Part("forky", "installing"),
)


def select(names: Sequence[str]) -> list[Part]:
    """Return the parts with these names or suites. Without names, return all. Raise ValueError for
    other names.
    """
    for name in names:
        if not any(name in (part.suite, part.title) for part in PARTS):
            known = ", ".join(part.title for part in PARTS)
            raise ValueError(f"expected parts among {known}, or a suite; got {name!r}")
    return [part for part in PARTS if not names or part.suite in names or part.title in names]


def table(results: Sequence[Result]) -> str:
    """Return a Markdown table of the results."""
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
    """Run the selected parts, one suite after the other, and print the table."""
    try:
        parts = select(arguments)
    except ValueError as error:
        sys.stderr.write(f"hopback: {error}\n")
        return 2
    if os.geteuid() != 0:
        sys.stderr.write("hopback: debootstrap and chroot need root; run this as root\n")
        return 2
    set_signals()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # roots are removed
    _LOGS.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    try:
        for suite in dict.fromkeys(part.suite for part in parts):
            with fresh_root(suite) as root:
                results += [_run_part(part, root) for part in parts if part.suite == suite]
    except KeyboardInterrupt:
        sys.stderr.write("hopback: interrupted; the table contains the finished parts\n")
        return 130
    finally:
        sys.stdout.write(table(results) + "\n")
    return int(not all(result.passed for result in results))


def _run_part(part: Part, root: Root) -> Result:
    log = _LOGS / f"{part.suite}-{part.name}.log"
    sys.stderr.write(f"hopback: {part.title}, see {log}\n")
    python = root.output("python3", "-c", "import platform; print(platform.python_version())")
    if not python.startswith(f"{SUITES[part.suite]}."):
        return Result(part, python, False, 0.0, f"expected Python {SUITES[part.suite]}")
    started = time.monotonic()
    passed, words = _RUNNERS[part.name](root, log)
    return Result(part, python, passed, time.monotonic() - started, words)


def _demo(root: Root, log: Path) -> tuple[bool, str]:
    """Run `make demo`, wait until its page answers, then press Ctrl-C."""
    answers: list[str] = []
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # without a proxy

    def is_up(text: str) -> bool:
        """Return whether the demo has printed all its lines and its page answers."""
        address = re.search(r"https?://[\d.:]+", text)
        if address is None or "Ctrl-C ends it." not in text:
            return False
        try:
            with direct.open(f"{address[0]}/healthz", timeout=10) as response:
                answers.append(f"{address[0]}/healthz answered {response.status}")
        except OSError:
            return False
        return True

    status = root.run("make demo", log, 10 * _MINUTE, is_up)
    ended = "No process is left running" in log.read_text(errors="replace")
    # make exits with 130 if its command was interrupted.
    passed = bool(answers) and ended and status in (0, 2, 130)
    return passed, ", ".join([*answers, f"ended with {status}"])


def _ci(root: Root, log: Path) -> tuple[bool, str]:
    """Run the script of continuous integration."""
    return summarize(root.run(".ci/run", log, 60 * _MINUTE), log)


def _fast(root: Root, log: Path) -> tuple[bool, str]:
    """Run the unit and property tests."""
    return summarize(root.run("make test-fast", log, 20 * _MINUTE), log)


def _install(root: Root, log: Path) -> tuple[bool, str]:
    """Install the wheel alone and with each extra, as users do."""
    status = root.run("python3 -m tests.pristine.installing", log, 30 * _MINUTE)
    return status == 0, log.read_text(errors="replace").strip().rpartition("\n")[2]


def summarize(status: int, log: Path) -> tuple[bool, str]:
    """Return whether the part passed and the summary line of each pytest run."""
    text = log.read_text(errors="replace")
    summaries = re.findall(r"\d+ (?:passed|failed|errors?)[^\n=]* in [\d.]+s", text)
    if status:
        summaries.append(f"ended with {status}, see {log.name}")
    return status == 0, "; ".join(summaries)


_RUNNERS = {"demo": _demo, "ci": _ci, "fast": _fast, "installing": _install}

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
