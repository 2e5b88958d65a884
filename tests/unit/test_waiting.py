"""The first of several things: what it tells, and that nothing it started is left behind."""

from __future__ import annotations

import asyncio

import pytest

from hopback.testing import in_virtual_time
from hopback.waiting import finish, first_of


class _Step:
    """Something that takes a while and knows how it ended."""

    def __init__(self) -> None:
        self.ended = ""

    async def take(self, seconds: float) -> str:
        """Wait; a cancel is noted."""
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise
        self.ended = "done"
        return "result"


@in_virtual_time
async def test_the_first_is_told_and_the_others_have_ended() -> None:
    """Not only asked to end: when it returns, they are over."""
    quick, slow = _Step(), _Step()
    first, second = await first_of(quick.take(1), slow.take(2))
    assert first is not None
    assert (first.result(), second) == ("result", None)
    assert (quick.ended, slow.ended) == ("done", "cancelled")


@in_virtual_time
async def test_a_task_that_is_given_goes_on() -> None:
    """Whoever started it ends it."""
    step = _Step()
    task = asyncio.ensure_future(step.take(5))
    assert await first_of(task, asyncio.sleep(9), within=1) == (None, None)
    assert await task == "result"


@in_virtual_time
async def test_whoever_waits_can_be_cancelled() -> None:
    """Then what was started ends with it."""
    step = _Step()
    waiting = asyncio.ensure_future(first_of(step.take(5), asyncio.sleep(9)))
    await asyncio.sleep(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert step.ended == "cancelled"


@in_virtual_time
async def test_a_failure_is_for_the_caller() -> None:
    """It is in the future that is told; the others end all the same."""

    async def fail() -> None:
        raise LookupError("no")

    failed, other = await first_of(fail(), asyncio.sleep(9))
    assert other is None
    assert failed is not None
    with pytest.raises(LookupError):
        failed.result()


async def test_work_comes_to_its_end_though_its_caller_is_cancelled() -> None:
    """Once: who is cancelled twice does not wait any more."""
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
