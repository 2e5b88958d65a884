"""The worker pool: no item is lost, keys keep their order, and every key makes progress."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopback.runtime.pool import KeyedItems, Pool
from hopback.testing import in_virtual_time


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("offer"), st.sampled_from([None, "a", "b"])),
            st.tuples(st.sampled_from(["take", "finish", "clear"]), st.none()),
        ),
        max_size=40,
    )
)
def test_lanes_keep_order_and_lose_no_item(steps: list[tuple[str, str | None]]) -> None:
    """Each item is taken or cleared once, one at a time per key."""
    items: KeyedItems[int] = KeyedItems()
    offered: dict[str | int | None, list[int]] = {}
    gone: dict[str | int | None, list[int]] = {}
    running: list[tuple[str | int | None, int]] = []
    keys: dict[int, str | None] = {}
    for number, (step, key) in enumerate(steps):
        if step == "offer":
            items.offer(key, number)
            offered.setdefault(key, []).append(number)
            keys[number] = key
        elif step == "take" and items.has_ready:
            taken = items.take()
            assert taken[0] is None or taken[0] not in [one for one, _ in running]
            running.append(taken)
            gone.setdefault(taken[0], []).append(taken[1])
        elif step == "finish" and running:
            items.finish(running.pop(0)[0])
        elif step == "clear":
            for item in items.clear():
                gone.setdefault(keys[item], []).append(item)
            assert len(items) == 0
    for item in items.clear():
        gone.setdefault(keys[item], []).append(item)
    assert gone == offered


@given(
    size=st.integers(1, 4),
    items=st.lists(
        st.tuples(st.sampled_from([None, "a", "b"]), st.integers(0, 3), st.booleans()), max_size=30
    ),
    limits=st.lists(st.integers(0, 5), max_size=4),
)
def test_every_item_runs_once_within_limits(
    size: int, items: list[tuple[str | None, int, bool]], limits: list[int]
) -> None:
    """Items take different times, may fail, and the limits change. Keys keep their order."""

    @in_virtual_time
    async def play() -> None:
        began: list[int] = []
        busy: set[str] = set()
        at_once = 0

        async def run(number: int) -> None:
            nonlocal at_once
            key, seconds, fails = items[number]
            assert key not in busy
            at_once += 1
            assert at_once <= size
            if key is not None:
                busy.add(key)
            began.append(number)
            await asyncio.sleep(seconds)
            busy.discard(key or "")
            at_once -= 1
            if fails:
                raise asyncio.CancelledError  # the worst that can come out of a run

        pool = Pool(size, run)
        for number, (key, _, _) in enumerate(items):
            pool.submit(number, key)
        for limit in limits:
            pool.limit(limit)
            await asyncio.sleep(0.5)
        pool.limit(size)
        await pool.join()
        assert sorted(began) == list(range(len(items)))
        for lane in ("a", "b"):
            mine = [number for number in began if items[number][0] == lane]
            assert mine == sorted(mine)
        assert await pool.stop() == ()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    play()


@in_virtual_time
async def test_limit_of_zero_pauses_pool_until_raised() -> None:
    done: list[int] = []

    async def run(number: int) -> None:
        await asyncio.sleep(1)
        done.append(number)

    pool = Pool(2, run)
    for number in range(5):
        pool.submit(number)
    await asyncio.sleep(0.5)
    pool.limit(0)
    await asyncio.sleep(100)
    assert (done, pool.waiting) == ([0, 1], 3)
    pool.limit(1)
    await asyncio.sleep(1.5)
    assert len(pool.running) == 1
    pool.limit(9)
    await pool.join()
    assert done == [0, 1, 2, 3, 4]
    await pool.stop()


@in_virtual_time
async def test_stop_reports_interrupted_items_that_resist_cancellation() -> None:
    resisted = 0
    release = asyncio.Event()

    async def run(_number: int) -> None:
        nonlocal resisted
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                resisted += 1

    pool = Pool(1, run)
    pool.submit(7)
    await asyncio.sleep(0.1)
    assert await pool.stop() == (7,)
    assert resisted == 3
    release.set()


@pytest.mark.parametrize("size", [1, 3])
@in_virtual_time
async def test_pool_starts_no_unneeded_workers(size: int) -> None:
    names: set[str] = set()

    async def run(_number: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        names.add(str(id(task)))

    pool = Pool(size, run)
    for number in range(100):
        pool.submit(number)
    await pool.join()
    assert len(names) <= size
    await pool.stop()


@in_virtual_time
async def test_worker_that_fails_unexpectedly_is_logged_and_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ran: list[int] = []

    async def run(item: int) -> None:
        ran.append(item)
        if item == 0:
            raise ZeroDivisionError

    pool = Pool(1, run, name="orders")
    for item in range(3):
        pool.submit(item)
    await pool.join()
    await asyncio.sleep(0)
    assert ran == [0, 1, 2]
    assert "a worker of orders ended unexpectedly" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    await pool.stop()
