"""Consumers of 0.1.0 and of now share a queue, its retries and its dead letters, while they are killed.

The earlier version is taken out of the history of the clone. A clone without it cannot run this; all that
does not need two running versions is in `test_taken_over`, which runs everywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING

import pytest

from hopback import RabbitMQ, compose
from hopback.broker.port import count
from hopback.errors import NotFound
from tests.upgrade.earlier import COMMIT, PROGRAMS, ROOT, take_out

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from pathlib import Path

    from hopback.broker.port import Connection

pytestmark = pytest.mark.broker

_COUNT, _KILLS = 600, 6


class _Consumers:
    """A process of each version; one that is killed is started again."""

    def __init__(self, url: str, folder: Path, sources: dict[str, Path]) -> None:
        self._url, self._folder, self._sources = url, folder, sources
        self._running: dict[str, Process] = {}

    async def start(self, name: str) -> None:
        """Start it, and make sure that it is the version it should be."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(PROGRAMS / "consumer.py"), self._url, str(self.done), name),
            env={**os.environ, "PYTHONPATH": str(self._sources[name])},
            stdout=PIPE,
            stderr=DEVNULL,
        )
        self._running[name] = process
        assert process.stdout is not None
        where = (await process.stdout.readline()).decode().strip()
        assert where.startswith(str(self._sources[name])), where

    @property
    def done(self) -> Path:
        """What was done, by whom."""
        return self._folder / "done"

    async def kill(self, name: str) -> None:
        """As kill -9 does, and start it again."""
        self._running[name].kill()
        await self._running[name].wait()
        await self.start(name)

    async def end(self) -> list[int | None]:
        """In order."""
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        return [await process.wait() for process in self._running.values()]


async def test_two_versions_share_a_queue(amqp_url: str, tmp_path: Path) -> None:
    """Each message is done or parked, none is lost, and both versions have had their part."""
    earlier = take_out(tmp_path / "earlier")
    if earlier is None:
        pytest.skip(f"commit {COMMIT} is not in this clone")
    consumers = _Consumers(amqp_url, tmp_path, {"earlier": earlier, "now": ROOT / "src"})
    consumers.done.touch()
    connection = await RabbitMQ(amqp_url).connect("test")
    try:
        await consumers.start("earlier")
        await _until_declared(connection)
        await consumers.start("now")
        channel = await connection.open_channel()
        chance = random.Random(7)
        kills = sorted(chance.sample(range(_COUNT), _KILLS))
        for number in range(_COUNT):
            await channel.publish(compose("", "orders", {"id": number}, message_id=f"m-{number}"))
            if number in kills:
                await consumers.kill(("earlier", "now")[kills.index(number) % 2])
        done = {number for number in range(_COUNT) if number % 50}
        async with asyncio.timeout(60):
            while await _left(connection) != [0, 0, 0] or _ids(consumers) < done:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    finally:
        codes = await consumers.end()
    assert codes == [0, 0]
    assert _ids(consumers) == done
    by = {line.split()[2] for line in consumers.done.read_text().splitlines()}
    assert by == {"earlier", "now"}
    channel = await connection.open_channel()
    parked = set()
    while delivery := await channel.get("orders.dlq"):
        parked.add(delivery.properties.message_id)
    assert parked == {f"m-{number}" for number in range(0, _COUNT, 50)}
    await connection.close()


def _ids(consumers: _Consumers) -> set[int]:
    return {int(line.split()[0]) for line in consumers.done.read_text().splitlines() if " " in line}


async def _until_declared(connection: Connection) -> None:
    async with asyncio.timeout(20):
        while True:
            channel = await connection.open_channel()
            with contextlib.suppress(NotFound):
                await count(channel, "orders.dlq")
                await channel.close()
                return
            await asyncio.sleep(0.05)


async def _left(connection: Connection) -> list[int]:
    channel = await connection.open_channel()
    names = ("orders", "orders.retry.100ms", "orders.retry.300ms")
    found = [(await count(channel, name)).messages for name in names]
    await channel.close()
    return found
