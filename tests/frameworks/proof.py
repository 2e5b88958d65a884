"""A consumer of another framework on one broker, with its messages and its ledger."""

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

__all__ = ["NUMBERS", "POISON", "ConsumerSetup"]

NUMBERS = frozenset(range(72))
POISON = frozenset(number for number in NUMBERS if number % 12 == 5)
_TIMEOUT_S = 60.0  # well above the time that each step needs


@dataclass(slots=True)
class ConsumerSetup:
    """A queue with messages and a supervised consumer process."""

    kind: str
    url: str
    ledger: Path
    repaired: bool = False
    restarts: int = -1
    _process: asyncio.subprocess.Process | None = None

    @property
    def queue(self) -> str:
        return f"orders-{self.kind}"

    def handled(self) -> list[int]:
        """Return the handled orders in sequence. A number occurs twice if the order was handled twice."""
        return (
            [int(line) for line in self.ledger.read_text().split()] if self.ledger.exists() else []
        )

    async def fill(self) -> None:
        """Publish all messages to a plain classic queue before a plan exists."""
        connection = await RabbitMQ(self.url).connect("producer")
        channel = await connection.open_channel()
        await channel.declare_queue(Queue(self.queue))
        for number in sorted(NUMBERS):
            await channel.publish(
                compose(self.queue, {"number": number}, message_id=f"order-{number}")
            )
        await connection.close()

    @asynccontextmanager
    async def consume(self) -> AsyncIterator[None]:
        """Run a consumer process and restart it whenever it ends."""
        supervisor = asyncio.create_task(self._supervise())
        try:
            yield
        finally:
            supervisor.cancel()
            await asyncio.wait({supervisor})
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
        """Kill the process with SIGKILL."""
        process = self._process
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    async def wait_until(self, condition: Callable[[], bool], expected: str) -> None:
        """Wait until the condition is true. Raise an error with the end of the consumer's log after
        the timeout.
        """
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                while not condition():  # noqa: ASYNC110 - there is no event to wait for
                    await asyncio.sleep(0.05)
        except TimeoutError:
            log = self.ledger.with_suffix(".log").read_text(errors="replace")[-3000:]
            raise AssertionError(
                f"{self.kind}: expected {expected}; missing {sorted(NUMBERS - set(self.handled()))}; "
                f"depths {await self.depths()}\n{log}"
            ) from None

    async def depths(self) -> dict[str, int]:
        """Return the ready messages of the queue, its retry queues and its dead-letter queue."""
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

    async def wait_until_settled(self, parked: int) -> int:
        """Wait until only parked messages are left, at least `parked`. Return their number.

        A kill between a publish confirm and the ack leaves a copy, so more messages may be parked.
        """
        found: list[int] = []
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                while found[:3] != [0, 0, 0] or found[3] < parked:
                    await asyncio.sleep(0.1)
                    try:
                        found = [*(await self.depths()).values()]
                    except BrokerError:
                        continue
        except TimeoutError:
            log = self.ledger.with_suffix(".log").read_text(errors="replace")[-3000:]
            raise AssertionError(
                f"{self.kind}: expected {parked} parked messages, found depths {found}\n{log}"
            ) from None
        return found[3]
