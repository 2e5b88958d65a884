"""A process is killed several times in a row. How fast are its queues handled afterwards?

`python -m tests.faults killed --brokers 3.10,4.0,4.3` runs it. One queue has handlers of 3 s with
concurrency 20 and prefetch 40, another one has handlers of 20 ms.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import textwrap
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hopback.broker.port import count_now
from hopback.broker.rabbitmq import RabbitMQ
from hopback.message import Message, Properties
from tests.faults.results import Result

if TYPE_CHECKING:
    from tests.faults.site import Site

__all__ = ["KilledResult", "killed", "rates_around_kills"]

_APP = """
    import asyncio
    from pathlib import Path
    from hopback import App

    app = App("shop")

    def note(name):
        with Path(name).open("a") as file:
            file.write("x\\n")

    @app.handler("orders", retry=["1s"], concurrency=20, prefetch=40)
    async def handle() -> None:
        note("begun")
        await asyncio.sleep(3)
        note("orders")

    @app.handler("mails", retry=["1s"], concurrency=1, prefetch=40)
    async def send() -> None:
        await asyncio.sleep(0.02)
        note("mails")
"""
_MESSAGES = {"orders": 1_500, "mails": 20_000}
_SETTLE_S, _MEASURE_S = 10.0, 21.0
"""Seconds. A process has the first time to reach its normal rate. Then the rate is measured for the
second time.
"""


@dataclass(frozen=True, slots=True)
class KilledResult:
    """The number of messages that were handled during the measurement before the first kill and
    after the last one.
    """

    kills: int
    normal: Counter[str]
    after: Counter[str]
    parked: int

    @property
    def holds(self) -> bool:
        """Whether both queues reach 80 % of their normal rate and no message was parked."""
        fast = all(self.after[queue] >= 0.8 * self.normal[queue] for queue in _MESSAGES)
        return fast and not self.parked

    def row(self, broker: str) -> tuple[str, str, str]:
        """Return the row of the page."""
        much = ", ".join(
            f"{queue} {self.normal[queue]} → {self.after[queue]}" for queue in _MESSAGES
        )
        much = (
            f"done in {_MEASURE_S:.0f} s, before and from {_SETTLE_S:.0f} s after: {much};"
            f" {self.parked} parked"
        )
        return (
            f"{self.kills} kill -9 in a row, {broker}",
            much,
            "holds" if self.holds else "failed",
        )


async def rates_around_kills(url: str, kills: int) -> KilledResult:
    """Measure a new process, kill several processes in a row, and measure the next one."""
    connection = await RabbitMQ(url).connect("operator")
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder)
        (there / "shop.py").write_text(textwrap.dedent(_APP))
        first = await _start(there, url)
        async with asyncio.timeout(60):
            while None in [await count_now(connection, queue) for queue in _MESSAGES]:
                pass
        channel = await connection.open_channel()
        for queue, count in _MESSAGES.items():
            for number in range(count):
                await channel.room()
                properties = Properties(message_id=str(number), delivery_mode=2)
                channel.publish(Message("", queue, b"1", properties))
        normal = await _measure(there)
        await _kill(first)
        for _ in range(kills - 1):
            next_one = await _start(there, url)
            await asyncio.sleep(2)
            await _kill(next_one)
        last = await _start(there, url)
        after = await _measure(there)
        await _kill(last)
    parked = 0
    for queue in _MESSAGES:
        state = await channel.delete_queue(f"{queue}.dlq")
        parked += state
        await channel.delete_queue(queue)
    await connection.close()
    return KilledResult(kills, normal, after, parked)


async def _start(folder: Path, url: str) -> asyncio.subprocess.Process:
    """Start the application. If others have handled messages before, wait until it does as well."""
    begun = _count(folder, "begun")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hopback", "run", "shop:app", "--broker", url, "--log-level", "error",
        cwd=folder,
    )  # fmt: skip
    if begun:
        await _until_more(folder, begun)
    return process


async def _until_more(folder: Path, begun: int) -> None:
    async with asyncio.timeout(60):
        while _count(folder, "begun") <= begun:  # noqa: ASYNC110 - another process writes the file
            await asyncio.sleep(0.1)


async def _kill(process: asyncio.subprocess.Process) -> None:
    process.kill()
    await process.wait()


async def _measure(folder: Path) -> Counter[str]:
    await asyncio.sleep(_SETTLE_S)
    before, began = {queue: _count(folder, queue) for queue in _MESSAGES}, time.monotonic()
    await asyncio.sleep(_MEASURE_S)
    share = _MEASURE_S / (time.monotonic() - began)
    return Counter(
        {queue: round((_count(folder, queue) - before[queue]) * share) for queue in _MESSAGES}
    )


def _count(folder: Path, name: str) -> int:
    path = folder / name
    return path.stat().st_size // 2 if path.exists() else 0


async def killed(site: Site) -> Result:
    """Measure with two and with three kills."""
    checks = []
    async with site.turns, site.node() as node:
        for kills in (2, 3):
            result = await rates_around_kills(node.url, kills)
            checks.append(result.row(site.broker))
    return Result("", [], checks)
