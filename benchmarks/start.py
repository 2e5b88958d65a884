"""Measure the CPU time of a start, for the help of the command, a completion and an import: `python
-m benchmarks.start`.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measured_sections import Table, TableGoal, stamp_now
from benchmarks.report import keep_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_RUNS = 15
_COMMAND_MS, _IMPORT_MS = 150, 15
_HELP, _COMPLETION, _IMPORT = "`hopback --help`", "completing `hopback dlq `", "`import hopback`"
_PYTHON = "Python with the same standard modules"
_LIST = (
    "import sys; before = set(sys.modules); import hopback; "
    "print(' '.join(name for name in sys.modules if name.partition('.')[0] in sys.stdlib_module_names "
    "and name not in before))"
)


def _cpu_ms(command: Sequence[str], more: Mapping[str, str]) -> float:
    """Return the user and system time of a process in ms, including its start and exit."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env={**os.environ, **more}, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def _commands() -> dict[str, tuple[list[str], dict[str, str]]]:
    command = str(Path(sys.executable).with_name("hopback"))
    loaded = subprocess.run(
        [sys.executable, "-c", _LIST], capture_output=True, text=True, check=True
    ).stdout.split()
    own = "; ".join(f"import {name}" for name in loaded)
    variables = {
        "_HOPBACK_COMPLETE": "bash_complete",
        "COMP_WORDS": "hopback dlq ",
        "COMP_CWORD": "2",
    }
    return {
        _HELP: ([command, "--help"], {}),
        _COMPLETION: ([command], variables),
        _IMPORT: ([sys.executable, "-c", "import hopback"], {}),
        _PYTHON: ([sys.executable, "-c", own], {}),
    }


def measure() -> Table:
    """Measure all commands in turn several times."""
    found: dict[str, list[float]] = {}
    for _ in range(_RUNS):
        for name, (command, more) in _commands().items():
            found.setdefault(name, []).append(_cpu_ms(command, more))
    median = {name: statistics.median(times) for name, times in found.items()}
    beyond = median[_IMPORT] - median[_PYTHON]
    text = [
        f"CPU of a whole process, the median of {_RUNS} alternating runs, in milliseconds.",
        "",
        "| | ms | spread |",
        "|---|---|---|",
        *(
            f"| {name} | {median[name]:.0f} | {min(times):.0f}–{max(times):.0f} |"
            for name, times in found.items()
        ),
        "",
    ]
    goals = (
        *(
            TableGoal(
                name,
                f"≤ {_COMMAND_MS} ms of CPU",
                f"{median[name]:.0f} ms",
                median[name] <= _COMMAND_MS,
            )
            for name in (_HELP, _COMPLETION)
        ),
        TableGoal(
            _IMPORT,
            f"≤ {_IMPORT_MS} ms of CPU more than Python's own modules",
            f"{beyond:.0f} ms",
            beyond <= _IMPORT_MS,
        ),
    )
    return Table(
        "start", "Starting", stamp_now("", os.getloadavg()[0]), "\n".join(text), tuple(goals)
    )


def main() -> int:
    """Measure and print the table, and write it if `--write` is given."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start", description=__doc__)
    parser.add_argument(
        "--write", action="store_true", help="write the table to benchmarks/RESULTS.md"
    )
    table = measure()
    print(table.text, *table.goals, sep="\n")
    if parser.parse_args().write:
        keep_table(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
