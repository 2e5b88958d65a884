"""Delayed messages while the broker is restarted in order, and while parts of the ladder are missing.

`python -m tests.faults.ladder 3.10 4.0 4.3` runs every scenario on these brokers and prints the counts.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hopback import App, Context, Environment, RabbitMQ, Service
from hopback.broker.supervise import Backoff
from hopback.errors import BrokerError
from tests.faults.site import installation_of
from tests.harness.configuration import QUICK_DEAD_LETTERS_MS, Timings
from tests.harness.rabbitmq import RabbitNode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["SCENARIOS", "LadderResult", "restart_in_order"]

_PATIENCE_S = 120.0
"""How long a scenario waits for messages after the last one is due; missing messages count as lost."""

PREFETCH = 100
CONCURRENCY = 50
"""Of the last hop: the bound of duplicates after a restart is their sum for each restart."""


@dataclass(slots=True)
class LadderResult:
    """Counts of one scenario."""

    messages: int = 0
    lost: int = 0
    early: int = 0
    earliest_s: float = 0.0
    """By how much the earliest one was early."""
    twice: int = 0
    latest_s: float = 0.0
    events: dict[str, int] = field(default_factory=dict)


class _Delaying:
    """An application that delays messages and notes when they arrive."""

    def __init__(self, node: RabbitNode) -> None:
        self.node = node
        self.due: dict[str, float] = {}
        self.came: dict[str, list[float]] = {}
        self.events: dict[str, int] = {}
        self.app = App("delaying")
        self.app.delays("1h")

        @self.app.handler("ladder.work", retry=["1s"])
        async def work(context: Context) -> None:
            self.came.setdefault(context.message_id, []).append(time.time())

        world = Environment(reconnect=Backoff(first=0.2, most=1.0))
        world.bus.subscribe(self._count)
        self.service = Service(self.app, RabbitMQ(node.url), world=world)

    def _count(self, name: str, _fields: Any) -> None:
        self.events[name] = self.events.get(name, 0) + 1

    async def publish(self, count: int, delay: Callable[[int], float], **options: Any) -> None:
        """Publish until each message is confirmed once; its wait begins with the first try."""
        turns = asyncio.Semaphore(50)

        async def one(number: int) -> None:
            name, wait = f"m-{len(self.due)}-{number}", delay(number)
            self.due[name] = time.time() + wait
            async with turns:
                while True:
                    try:
                        await self.app.publish(
                            "", "ladder.work", {}, delay=wait, message_id=name, **options
                        )
                    except BrokerError:
                        await asyncio.sleep(0.2)
                    else:
                        return

        await asyncio.gather(*map(one, range(count)))

    async def settled(self) -> None:
        """Wait until every message has come, and for second copies a little longer."""
        left_s = max(self.due.values()) - time.time() + _PATIENCE_S
        await until(lambda: set(self.due) <= set(self.came), left_s)
        await asyncio.sleep(5)

    def result(self) -> LadderResult:
        first = {name: min(moments) for name, moments in self.came.items()}
        ahead = [self.due[name] - moment for name, moment in first.items()]
        return LadderResult(
            messages=len(self.due),
            lost=len(set(self.due) - set(first)),
            early=sum(one > 0.05 for one in ahead),
            earliest_s=round(max(0.0, *ahead), 2),
            twice=sum(len(moments) - 1 for moments in self.came.values()),
            latest_s=round(max(0.0, *(-one for one in ahead)), 2),
            events=dict(sorted(self.events.items())),
        )


async def until(fulfilled: Callable[[], bool], seconds: float) -> None:
    """Wait for it, for this time at most."""
    ends = time.monotonic() + seconds
    while not fulfilled() and time.monotonic() < ends:  # noqa: ASYNC110 - counts are looked at
        await asyncio.sleep(0.01)


async def _with_application(
    node: RabbitNode, play: Callable[[_Delaying], Awaitable[None]]
) -> LadderResult:
    delaying = _Delaying(node)
    serving = asyncio.create_task(delaying.service.run())
    try:
        await asyncio.wait_for(delaying.service.ready.wait(), 60)
        await play(delaying)
        await delaying.settled()
    finally:
        delaying.service.stop()
        await serving
    return delaying.result()


async def restart_in_order(
    node: RabbitNode, *, messages: int = 600, restarts: int = 2
) -> LadderResult:
    """Stop and start the broker in order while messages become due."""

    async def play(delaying: _Delaying) -> None:
        await asyncio.sleep(5)  # a broker keeps what was declared a while ago
        for _ in range(restarts):
            await delaying.publish(messages // restarts, lambda _: 6.0)
            arrived = len(delaying.came)
            await until(lambda: len(delaying.came) > arrived, 60)  # noqa: B023 - called at once
            await asyncio.to_thread(node.restart)
            await until(lambda: set(delaying.due) <= set(delaying.came), 60)

    return await _with_application(node, play)


SCENARIOS: dict[str, Callable[[RabbitNode], Awaitable[LadderResult]]] = {
    "restart": restart_in_order,
}


def main() -> int:
    """Run the scenarios, print the counts, and return 1 if a message was lost or early."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.ladder", description=__doc__)
    parser.add_argument("broker", nargs="+", choices=["3.10", "4.0", "4.3"])
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), action="append")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    broken = False
    for broker in options.broker:
        for name in options.scenario or SCENARIOS:
            timings = Timings(dead_letter_retry_ms=QUICK_DEAD_LETTERS_MS)
            with RabbitNode(installation=installation_of(broker), timings=timings) as node:
                found = asyncio.run(_run(name, node))
            print(broker, name, found, flush=True)  # noqa: T201 - a program for people
            broken |= bool(found.lost or found.early)
    return int(broken)


async def _run(name: str, node: RabbitNode) -> LadderResult:
    return await SCENARIOS[name](node)


if __name__ == "__main__":
    sys.exit(main())
