"""The short form of the tests with delayed messages, periodic messages and requests under faults.

The long form is in `later.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.later import on_broker, virtually
from tests.harness.configuration import QUICK_DEAD_LETTERS_MS, Timings
from tests.harness.installation import HOST
from tests.harness.rabbitmq import RabbitNode
from tests.harness.versions import SUITES, installations

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.installation import Installation


@pytest.mark.parametrize("version", ["3.10", "4.0", "4.3"])
def test_delays_of_three_days_survive_restarts_in_virtual_time(version: str) -> None:
    """No message is lost or too early. The delay is only exceeded by rounding and a reconnection."""
    found = virtually(300, faults=30, version=version)
    assert (found.lost, found.early) == (0, 0)
    assert found.late[-1] < 60


async def _survive(installation: Installation, folder: Path) -> None:
    timings = Timings(dead_letter_retry_ms=QUICK_DEAD_LETTERS_MS)
    with RabbitNode(installation, timings=timings) as node:
        found = await on_broker(node, folder, messages=200, longest_s=8, kills=3, pause_s=2)
    assert (found.messages, found.lost, found.early) == (200, 0, 0)
    assert found.periodic_missing == 0
    assert found.wrong == 0
    assert found.answered > 0
    assert (found.process_kills, found.broker_kills) == (2, 1)


@pytest.mark.broker
@pytest.mark.waits(23)
async def test_killed_processes_and_broker_lose_no_delayed_or_periodic_message(
    tmp_path: Path,
) -> None:
    """No message is too early, and no request receives the reply of another one."""
    await _survive(HOST, tmp_path)


@pytest.mark.broker
@pytest.mark.all_brokers
@pytest.mark.parametrize("suite", sorted(SUITES))
async def test_killed_processes_and_broker_lose_no_delayed_message_on_newer_versions(
    suite: str, tmp_path: Path
) -> None:
    await _survive(installations()[suite], tmp_path)
