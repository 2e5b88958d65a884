"""The blocks of the long run: which there are, in which order, and how they are run beside each other."""

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
"""Maximum number of blocks at once, working or waiting. Each has a separate broker."""


_LONGEST_S = 1200.0
"""Longest time of a block between two of its turns, in seconds. The wait for a turn does not count.
A block that exceeds it has stalled and fails."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block: a part of the run on one broker, one of several."""

    part: str
    broker: str
    number: int = 0

    @property
    def name(self) -> str:
        """By which its result is known."""
        return f"{self.part} {self.broker} {self.number}"


async def _soaked(site: Site) -> Result:
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
    "soak": (1, _soaked),
}
"""The parts run on every broker, with the number of blocks and the function of a block."""


def blocks_of(names: Iterable[str], brokers: Sequence[str]) -> list[Block]:
    """First one block of every part on every broker, then the others."""
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
    """Run the blocks, `at_once` of them concurrently while others wait for their brokers, and store
    each result.
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
    """The turns of one block. Its time limit stops while it waits for a turn."""

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
    """Return the result of a block. A failed block does not end the others."""
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
