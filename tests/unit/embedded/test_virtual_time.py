"""The loop whose time jumps."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING

import aiosqlite
import pytest

from hopback.broker.embedded import StuckLoop, VirtualTimeLoop, run_virtual
from hopback.broker.embedded.virtual_time import LoopClock
from tests.unit.embedded.node_setup import START, pass_time

if TYPE_CHECKING:
    from pathlib import Path


def test_virtual_year_passes_at_once() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        moments = [loop.time()]
        for seconds in (0.3, 30.0, 365 * 24 * 3600.0):
            await pass_time(seconds)
            moments.append(loop.time())
        return moments

    moments = run_virtual(main())
    expected = [START]
    for seconds in (0.3, 30.0, 365 * 24 * 3600.0):
        expected.append(expected[-1] + seconds)
    assert moments == expected


async def test_timeouts_follow_virtual_time() -> None:
    loop = asyncio.get_running_loop()
    begin = loop.time()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(pass_time(3600), timeout=60)
    assert loop.time() - begin == 60


async def test_timers_due_at_same_moment_run_in_same_turn() -> None:
    loop = asyncio.get_running_loop()
    begin = loop.time()
    await asyncio.gather(*(pass_time(0.1) for _ in range(50)))
    assert loop.time() == begin + 0.1


def test_waiting_forever_raises_with_place() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(StuckLoop, match=r"test_virtual_time\.py:\d+"):
        run_virtual(main())


def test_endless_timers_raise() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()

        def again() -> None:
            loop.call_later(3600, again)

        again()
        await loop.create_future()

    with pytest.raises(StuckLoop, match="virtual time ran out"):
        run_virtual(main())


def test_virtual_time_stops_while_thread_works() -> None:
    release = threading.Event()

    async def main() -> float:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        work = loop.run_in_executor(None, release.wait, 10)
        loop.call_soon(release.set)
        await asyncio.wait_for(work, timeout=1)
        return loop.time() - begin

    assert run_virtual(main()) == 0


def test_virtual_time_stops_while_aiosqlite_works(tmp_path: Path) -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        async with asyncio.timeout(1), aiosqlite.connect(tmp_path / "some.db") as database:
            await database.execute("create table some (number integer)")
            await database.commit()
        return loop.time() - begin

    assert run_virtual(main()) == 0


def test_sockets_work_in_virtual_time() -> None:
    async def main() -> bytes:
        loop = asyncio.get_running_loop()
        near, far = socket.socketpair()
        with near, far:
            near.setblocking(False)
            far.send(b"here")
            return await loop.sock_recv(near, 10)

    assert run_virtual(main()) == b"here"


def test_virtual_loop_is_the_clock() -> None:
    clock = LoopClock(lambda: 5.0)
    assert clock.now() == 5.0

    async def main() -> float:
        return clock.now()

    assert asyncio.run(main()) == 5.0
    assert run_virtual(main(), start=77.0) == 77.0
    loop = VirtualTimeLoop(9.0)
    assert loop.now() == loop.time() == 9.0
    loop.close()
