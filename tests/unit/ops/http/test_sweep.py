"""The shared sweep of the queues with its history."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from hopback.clock import ManualClock
from hopback.errors import ConnectionFailed
from hopback.ops.contract.values import Depth, Moment, QueueSummary
from hopback.ops.http.events import changes_of_board
from hopback.ops.http.sweep import FIRST_AT_ONCE, Sweep, read_all
from tests.unit.ops.admin_service import NOW

if TYPE_CHECKING:
    from collections.abc import Callable

_ONE = QueueSummary(
    queue="a.dlq",
    main_queue="a",
    origins=("a",),
    label="a",
    known_by="plan",
    depth=Depth(3, 0, 0, "amqp", Moment(NOW)),
)


def _reader(*answers: int | Exception) -> tuple[Callable[[], object], list[int]]:
    """A reader that returns or raises these values in turn and counts its calls."""
    waiting, asked = list(answers), [0]

    async def read() -> tuple[QueueSummary, ...]:
        asked[0] += 1
        answer = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        await asyncio.sleep(0)
        if isinstance(answer, Exception):
            raise answer
        return (structs.replace(_ONE, depth=structs.replace(_ONE.depth, ready=answer)),)

    return read, asked


async def test_concurrent_callers_share_one_sweep() -> None:
    clock, (read, asked) = ManualClock(NOW), _reader(3)
    sweep = Sweep(read, clock)  # type: ignore[arg-type]
    found = await asyncio.gather(*(sweep.get() for _ in range(100)))
    assert asked == [1]
    assert {swept.at for swept in found} == {NOW}
    clock.advance(1.0)
    await sweep.get()
    assert asked == [2]


async def test_many_brokers_are_read_a_few_at_a_time() -> None:
    """Pages are answered while the service reads 50 virtual hosts for the first time."""
    reading, most = 0, 0

    async def read() -> tuple[QueueSummary, ...]:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        await asyncio.sleep(0)
        reading -= 1
        return (_ONE,)

    found = await read_all([Sweep(read, ManualClock(NOW)) for _ in range(50)], None)
    assert [swept is not None and swept.queues for swept in found] == [(_ONE,)] * 50
    assert most == FIRST_AT_ONCE


async def test_broker_without_answer_does_not_hide_the_others() -> None:
    async def hang() -> tuple[QueueSummary, ...]:
        await asyncio.Event().wait()
        raise AssertionError

    read, _ = _reader(3)
    sweeps = [Sweep(hang, ManualClock(NOW)), Sweep(read, ManualClock(NOW))]  # type: ignore[arg-type]
    found = await read_all(sweeps, 0.05)
    assert found[0] is None
    assert found[1] is not None


async def test_unreachable_broker_keeps_last_depths_with_their_age() -> None:
    clock = ManualClock(NOW)
    read, _ = _reader(3, ConnectionFailed("gone"), 5)
    sweep = Sweep(read, clock)  # type: ignore[arg-type]
    await sweep.get()
    clock.advance(2.0)
    stale = await sweep.get_or_last()
    assert (stale.queues[0].depth.ready, stale.age(clock.now())) == (3, 2.0)
    with pytest.raises(ConnectionFailed):
        await sweep.get()
    clock.advance(1.0)
    assert (await sweep.get()).queues[0].depth.ready == 5


async def test_trend_has_one_sample_every_few_seconds() -> None:
    clock = ManualClock(NOW)
    read, _ = _reader(1, 2, 3, 4, 5, 6, 7)
    sweep = Sweep(read, clock)  # type: ignore[arg-type]
    for _ in range(7):
        await sweep.get()
        clock.advance(2.0)
    assert sweep.trend("a.dlq") == ((NOW, 1), (NOW + 6, 4), (NOW + 12, 7))
    assert sweep.trend("unknown") == ()


async def test_live_stream_reports_change_since_page_was_rendered() -> None:
    clock = ManualClock(NOW)
    read, _ = _reader(3, 3, 0)
    sweep = Sweep(read, clock)  # type: ignore[arg-type]
    shown_at = (await sweep.get()).at
    clock.advance(1.0)
    assert (await sweep.get()).queues[0].depth.ready == 3
    assert sweep.changed_at == shown_at
    clock.advance(1.0)
    changes = changes_of_board([sweep], shown_at)
    assert await anext(changes) == b"event: change\ndata: {}\n\n"
    assert sweep.changed_at == NOW + 2.0
