"""The blocks of the long run on all versions. They have few messages, and the broker has short
delays.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from tests.faults.blocks import ON_BROKERS
from tests.faults.results import Result
from tests.faults.site import BROKERS, Site
from tests.faults.tally import Part, Tally
from tests.harness.configuration import Timings

if TYPE_CHECKING:
    from collections.abc import Awaitable

pytestmark = [pytest.mark.broker, pytest.mark.all_brokers]

_SHORT = Timings(dead_letter_retry_ms=2_000, tick_ms=500, statistics_ms=500)


async def _find_failures(block: Awaitable[Part | list[Part] | Result]) -> list[str]:
    """Describe the promises that a block has broken."""
    found = await block
    parts = (
        [found] if isinstance(found, Part) else found.parts if isinstance(found, Result) else found
    )
    tally = Tally(parts, found.checks if isinstance(found, Result) else [])
    told = [f"{part.name}: {part.broken} {part.notes}" for part in parts if part.failed]
    return told or ["a check failed"] * tally.failed


@pytest.mark.parametrize("broker", BROKERS)
@pytest.mark.parametrize("part", [*ON_BROKERS])
async def test_every_block_holds_on_every_version(part: str, broker: str) -> None:
    """The blocks contain kills, cuts, alarms, deletions, commands and clusters."""
    site = Site(broker, 0, asyncio.Semaphore(1), 0.05, random.Random(1), _SHORT, quiet=2.0)
    _, block = ON_BROKERS[part]
    assert await _find_failures(block(site)) == []
