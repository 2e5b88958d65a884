"""Tests that find work which blocks an event loop."""

from __future__ import annotations

import asyncio
import time

from tests.harness.loop_watch import MOST_CPU_S, watch_loops, watch_requests


async def _compute(*_: object) -> None:
    await asyncio.sleep(0)
    end = time.thread_time() + 2 * MOST_CPU_S
    while time.thread_time() < end:
        pass


def test_request_that_blocks_loop_is_reported() -> None:
    async def ask() -> None:
        await watch_requests(_compute)({"method": "GET", "path": "/slow"}, None, None)  # type: ignore[arg-type]

    with watch_loops() as found:
        asyncio.run(ask())
    assert [text.partition(" in ")[2] for text in found] == ["GET /slow"]


def test_cancelled_request_is_not_reported() -> None:
    async def wait(*_: object) -> None:
        await asyncio.Event().wait()

    async def ask() -> str:
        asked = asyncio.ensure_future(
            watch_requests(wait)({"method": "GET", "path": "/"}, None, None)  # type: ignore[arg-type]
        )
        await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait({asked})
        return "cancelled" if asked.cancelled() else "ended"

    with watch_loops() as found:
        assert asyncio.run(ask()) == "cancelled"
    assert found == []
