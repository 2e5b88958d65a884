"""The blocks of the long run, their order, and how several of them run at once."""

from __future__ import annotations

import asyncio
import random
import sys
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.faults import commands, parts, traffic
from tests.faults.databases import databases
from tests.faults.hanging import hanging
from tests.faults.hostile import hostile
from tests.faults.killed import killed
from tests.faults.ladder import ladder
from tests.faults.publishing import publishing
from tests.faults.results import Result
from tests.faults.site import Site
from tests.faults.soak import soak, verdict_on
from tests.faults.tally import Part

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from contextlib import AbstractAsyncContextManager

__all__ = ["ON_BROKERS", "Block", "blocks_of", "run_blocks"]

_STANDING = 9
"""The maximum number of blocks that run or wait at the same time. Each one has its own broker."""


_LONGEST_S = 1200.0
"""The maximum time of a block between two of its turns, in seconds. The wait for a turn is not
included. If a block takes longer, it has stalled and fails.
"""


@dataclass(frozen=True, slots=True)
class Block:
    """One of the blocks into which a part of the run is divided, on one broker."""

    part: str
    broker: str
    number: int = 0

    @property
    def name(self) -> str:
        """The name under which the result is stored."""
        return f"{self.part} {self.broker} {self.number}"


async def _run_soak(site: Site) -> Result:
    part, used = await soak(site, site.messages(60_000))
    first, last = used[len(used) // 4], used[-1]
    measured = (
        f"{first.rss / 2**20:.0f} → {last.rss / 2**20:.0f} MB, {last.fds} descriptors,"
        f" {last.tasks} tasks, {last.channels} channels, {len(used)} samples"
    )
    row = (f"soak of {part.confirmed:,} messages, {part.broker}", measured, verdict_on(used))
    return Result("", [part], [row])


ON_BROKERS: dict[str, tuple[int, Callable[[Site], Awaitable[Part | list[Part] | Result]]]] = {
    "topologies": (1, commands.topologies),
    "matrix": (6, traffic.matrix),
    "deletions": (1, traffic.deletions),
    "poison": (1, traffic.poison),
    "jobs": (1, commands.jobs),
    "databases": (1, databases),
    "publishing": (1, publishing),
    "hanging": (1, hanging),
    "delays": (1, ladder),
    "hostile": (1, hostile),
    "killed": (1, killed),
    "cluster": (1, parts.cluster),
    "storm": (1, traffic.storm),
    "faithful": (1, parts.faithful),
    "soak": (1, _run_soak),
}
"""The parts that run on all brokers, with their number of blocks and the function that runs a
block.
"""


def blocks_of(names: Iterable[str], brokers: Sequence[str]) -> list[Block]:
    """Return the blocks. The first block of each part on each broker comes before all second
    blocks.
    """
    found = [
        Block(name, broker, number)
        for name in names
        for number in range(ON_BROKERS[name][0])
        for broker in brokers
    ]
    return sorted(found, key=lambda block: block.number)


async def run_blocks(
    blocks: Iterable[Block],
    keep: Callable[[Result], None],
    *,
    at_once: int,
    scale: float,
    seed: int,
) -> None:
    """Run the blocks and store each result. `at_once` blocks run concurrently, and others wait for
    their brokers.
    """
    turns, standing = asyncio.Semaphore(at_once), asyncio.Semaphore(_STANDING)

    async def run(block: Block) -> None:
        async with standing:
            chance = random.Random(f"{seed} {block.name}")
            site = Site(block.broker, block.number, turns, scale, chance)
            keep(await _result(block, site))

    async with asyncio.TaskGroup() as group:
        for block in blocks:
            group.create_task(run(block))


class _TimedTurns:
    """The turns of one block. Its time limit is suspended while it waits for a turn."""

    def __init__(self, turns: AbstractAsyncContextManager[None], limit: asyncio.Timeout) -> None:
        self._turns = turns
        self._limit = limit

    async def __aenter__(self) -> None:
        self._limit.reschedule(None)
        await self._turns.__aenter__()
        self._limit.reschedule(asyncio.get_running_loop().time() + _LONGEST_S)

    async def __aexit__(self, *raised: object) -> None:
        await self._turns.__aexit__(None, None, None)


async def _result(block: Block, site: Site) -> Result:
    """Run a block and return its result. If it fails, the other blocks continue."""
    try:
        async with asyncio.timeout(_LONGEST_S) as limit:
            turns = _TimedTurns(site.turns, limit)
            found = await ON_BROKERS[block.part][1](replace(site, turns=turns))
    except Exception as error:
        sys.stderr.write(f"{block.name}: {traceback.format_exc()}\n")
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return Result(block.name, error=text.replace("|", "/")[:300])
    if isinstance(found, Part):
        found = [found]
    result = Result("", found) if isinstance(found, list) else found
    result.block = block.name
    return result
