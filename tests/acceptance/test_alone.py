"""How `make test` runs its tests: some wait while others compute, and a few that failed run again, alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.alone import plain_name
from tests.harness.lanes import chosen, that_wait

_ROOT = Path(__file__).resolve().parents[2]
_FAILS_ONCE = """
from pathlib import Path

import pytest

@pytest.mark.xdist_group("one")
def test_chance():
    seen = Path("seen")
    if not seen.exists():
        seen.touch()
        raise AssertionError
"""
_FAILS_ALWAYS = """
import pytest

@pytest.mark.parametrize("one", range({number}))
def test_broken(one):
    raise AssertionError
"""


def _run(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_given.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "tests.harness.alone", "-n", "1", "--dist", "loadgroup"],
        cwd=folder,
        # A plugin that takes seconds to load, in each of two runs and their workers.
        env={**os.environ, "PYTHONPATH": str(_ROOT), "PYTEST_ADDOPTS": "-p no:schemathesis"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_test_that_passes_alone_is_named(tmp_path: Path) -> None:
    """The run passes."""
    ran = _run(tmp_path, _FAILS_ONCE)
    assert ran.returncode == 0
    assert "passed only alone, give them patience:\n  test_given.py::test_chance" in ran.stdout


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("test_a.py::test_b", "test_a.py::test_b"),
        ("test_a.py::test_b[x@y]", "test_a.py::test_b[x@y]"),
        ("test_a.py::test_b[x@y]@one group", "test_a.py::test_b[x@y]"),
        ("test_a.py::test_b@one group[POST /queues/{queue}]", "test_a.py::test_b"),
    ],
)
def test_group_and_subtest_are_removed_from_a_name(name: str, plain: str) -> None:
    assert plain_name(name) == plain


def test_broken_test_fails_alone_too(tmp_path: Path) -> None:
    """The status is that of the second run."""
    ran = _run(tmp_path, _FAILS_ALWAYS.format(number=2))
    assert ran.returncode == 1
    assert "2 failed in parallel with other tests and are run again alone" in ran.stdout


def test_many_failures_are_not_run_again(tmp_path: Path) -> None:
    ran = _run(tmp_path, _FAILS_ALWAYS.format(number=6))
    assert ran.returncode == 1
    assert "once more" not in ran.stdout


def test_marked_tests_can_run_alone_without_xdist() -> None:
    """The marks of pytest-xdist must be known for the second run."""
    marked = ["tests/acceptance/ops/test_page.py", "tests/faults/test_cluster.py"]
    options = ["-p", "no:xdist", "-p", "no:schemathesis", "--collect-only", "-q"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *marked],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout


def test_half_of_workers_take_waiting_tests() -> None:
    """The longest are first. Without such tests a worker takes any."""
    groups = ["a", "matrix_waits-5", "b", "storm_waits-60"]
    waits = that_wait(groups)
    assert waits == ["storm_waits-60", "matrix_waits-5"]
    assert chosen(groups, waits, is_to_wait=True) == "storm_waits-60"
    assert chosen(groups, waits, is_to_wait=False) == "a"
    assert chosen(["a", "b"], [], is_to_wait=True) == "a"
    assert chosen(waits, waits, is_to_wait=False) == "storm_waits-60"
