"""Waiting for the first of several awaitables, without leaving tasks behind."""

from __future__ import annotations

import asyncio

import pytest

from hopback.testing import in_virtual_time
from hopback.waiting import finish, first_of


class _Step:
    """A task that records how it ended."""

    def __init__(self) -> None:
        self.ended = ""

    async def take(self, seconds: float) -> str:
        """Wait and record a cancellation."""
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise
        self.ended = "done"
        return "result"


@in_virtual_time
async def test_first_result_is_returned_and_the_others_are_cancelled() -> None:
    """They have ended when `first_of` returns."""
    quick, slow = _Step(), _Step()
    first, second = await first_of(quick.take(1), slow.take(2))
    assert first is not None
    assert (first.result(), second) == ("result", None)
    assert (quick.ended, slow.ended) == ("done", "cancelled")


@in_virtual_time
async def test_task_created_by_the_caller_continues() -> None:
    """Its caller ends it."""
    step = _Step()
    task = asyncio.ensure_future(step.take(5))
    assert await first_of(task, asyncio.sleep(9), within=1) == (None, None)
    assert await task == "result"


@in_virtual_time
async def test_waiting_caller_can_be_cancelled() -> None:
    """The started tasks end with it."""
    step = _Step()
    waiting = asyncio.ensure_future(first_of(step.take(5), asyncio.sleep(9)))
    await asyncio.sleep(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert step.ended == "cancelled"


@in_virtual_time
async def test_exception_is_in_the_returned_future() -> None:
    """The returned future contains it. The other tasks end as well."""

    async def fail() -> None:
        raise LookupError("no")

    failed, other = await first_of(fail(), asyncio.sleep(9))
    assert other is None
    assert failed is not None
    with pytest.raises(LookupError):
        failed.result()


async def test_finish_completes_work_of_a_cancelled_caller() -> None:
    """A second cancellation ends the wait."""
    ended = list[int]()

    async def work(number: int) -> int:
        await asyncio.sleep(0.01 if number == 1 else 60)
        ended.append(number)
        return number

    assert await finish(asyncio.ensure_future(work(1))) == 1
    for number, cancels in ((1, 1), (2, 2)):
        inner = asyncio.ensure_future(work(number))
        outer = asyncio.create_task(finish(inner))
        for _ in range(cancels):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            outer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await outer
        inner.cancel()
    assert ended == [1, 1]
