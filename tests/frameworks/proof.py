"""One consumer of another framework on one broker: what it was given, what it did, what is left."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.broker.port import count_now
from hopback.broker.rabbitmq import RabbitMQ
from hopback.errors import BrokerError
from hopback.runtime.context import compose
from hopback.topology.model import Queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

__all__ = ["NUMBERS", "POISON", "Stand"]

NUMBERS = frozenset(range(72))
POISON = frozenset(number for number in NUMBERS if number % 12 == 5)
_PATIENCE_S = 60.0  # far more than any of it takes: what is lost is not waited for longer


@dataclass(slots=True)
class Stand:
    """A queue with messages in it, and the processes that consume it."""

    kind: str
    url: str
    ledger: Path
    repaired: bool = False
    restarts: int = -1
    _process: asyncio.subprocess.Process | None = None

    @property
    def queue(self) -> str:
        """Its own."""
        return f"orders-{self.kind}"

    def done(self) -> list[int]:
        """What the consumer has written down, in order; a number twice if it ran twice."""
        return (
            [int(line) for line in self.ledger.read_text().split()] if self.ledger.exists() else []
        )

    async def fill(self) -> None:
        """Messages that lie in a plain classic queue before anybody has heard of a plan."""
        connection = await RabbitMQ(self.url).connect("producer")
        channel = await connection.open_channel()
        await channel.declare_queue(Queue(self.queue))
        for number in sorted(NUMBERS):
            await channel.publish(
                compose(self.queue, {"number": number}, message_id=f"order-{number}")
            )
        await connection.close()

    @asynccontextmanager
    async def consuming(self) -> AsyncIterator[None]:
        """A process that consumes, and another whenever it has ended."""
        watching = asyncio.create_task(self._supervise())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait({watching})
            await self.kill()

    async def _supervise(self) -> None:
        while True:
            with self.ledger.with_suffix(".log").open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "tests.frameworks.consumer",
                    self.kind,
                    self.url,
                    self.queue,
                    str(self.ledger),
                    env={**os.environ, **({"REPAIRED": "1"} if self.repaired else {})},
                    stdout=log,
                    stderr=log,
                )
            self.restarts += 1
            await self._process.wait()
            await asyncio.sleep(0.2)

    async def kill(self) -> None:
        """End the process as a power cut would."""
        process = self._process
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until it holds; the end of the consumer's log if it never does."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while not condition():  # noqa: ASYNC110 - nothing to wait on but the look itself
                    await asyncio.sleep(0.05)
        except TimeoutError:
            log = self.ledger.with_suffix(".log").read_text(errors="replace")[-3000:]
            raise AssertionError(
                f"{self.kind}: expected {what}; missing {sorted(NUMBERS - set(self.done()))}; "
                f"depths {await self.depths()}\n{log}"
            ) from None

    async def depths(self) -> dict[str, int]:
        """Ready messages of the queue, its retry queues and its dead-letter queue."""
        names = [self.queue + end for end in ("", ".retry.100ms", ".retry.200ms", ".dlq")]
        connection = await RabbitMQ(self.url).connect("counting")
        try:
            states = [await count_now(connection, name) for name in names]
        finally:
            await connection.close()
        return {
            name: 0 if state is None else state.messages
            for name, state in zip(names, states, strict=True)
        }

    async def until_at_rest(self, parked: int) -> int:
        """Wait until nothing waits or runs, and at least so many are parked; how many are.

        A kill between a confirmed publish and its ack leaves a copy: more may be parked, never fewer.
        """
        found: list[int] = []
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while found[:3] != [0, 0, 0] or found[3] < parked:
                    await asyncio.sleep(0.1)
                    try:
                        found = [*(await self.depths()).values()]
                    except BrokerError:
                        continue
        except TimeoutError:
            log = self.ledger.with_suffix(".log").read_text(errors="replace")[-3000:]
            raise AssertionError(f"{self.kind}: {found}, {parked} to park\n{log}") from None
        return found[3]
