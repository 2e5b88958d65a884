"""Simulations of the whole runtime in virtual time. All promises must be kept, and each seed must
always give the same result.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.faults.simulation import play, setting_of

SEEDS = 200
"""The number of seeds in the short form. `make test-faults` runs thousands."""
_EACH = 10


@pytest.mark.parametrize("first", range(0, SEEDS, _EACH))
def test_no_seed_breaks_a_promise(first: int) -> None:
    """There are cuts, lost confirms, nacks, returns, slow connections, alarms, restarts and kills
    of processes.
    """
    for seed in range(first, first + _EACH):
        try:
            play(seed).verdict.require()
        except BaseException as error:
            error.add_note(f"play it again: python -m tests.faults.simulation {seed}")
            raise


def test_seeds_cover_every_fault_and_design() -> None:
    settings = [setting_of(seed) for seed in range(SEEDS)]
    assert {str(one.version) for one in settings} == {"3.10", "4.0", "4.3"}
    assert len({one.design for one in settings}) == 7
    assert {one.processes for one in settings} == {1, 2, 3}
    assert any(one.batch for one in settings)
    struck = {name for seed in range(80) for name in play(seed).verdict.faults}
    assert {"kill -9", "cut", "cut all", "broker restart", "forgotten consumer"} <= struck
    assert {"nack", "return", "lose-confirm", "refuse-connection"} <= struck
    assert {"cut-before-publish", "cut-after-publish"} <= struck
    assert {"cut-before-settle", "cut-after-settle"} <= struck


def test_seed_repeats_its_history() -> None:
    """The entries are the same in this process and in another one."""
    seeds = range(12)
    here = [play(seed).digest for seed in seeds]
    assert [play(seed).digest for seed in seeds] == here
    command = [sys.executable, "-m", "tests.faults.simulation", *map(str, seeds)]
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert [line.split()[1] for line in told.stdout.splitlines()] == here


def test_different_seeds_have_different_histories() -> None:
    assert len({play(seed).digest for seed in range(12)}) == 12
