"""A snooze in a batch, where the plan has no retry queue to wait in."""

from __future__ import annotations

from hopback import App, Queue, Snooze, Topology
from hopback.testing import AppTest, in_virtual_time
from hopback.topology.plan import Count, Leave, LocalWait, Parking, Plan, Redrive, Return

_PLAN = Plan(
    "letters",
    attempts=1,
    tiers=(),
    leave=Leave.PUBLISH,
    returns=Return.QUEUE,
    parking=Parking("rest", Leave.PUBLISH, "", "rest"),
    count=Count.HEADER,
    redrive=Redrive("", "letters"),
    snooze=LocalWait(60_000, 60_000),
)


@in_virtual_time
async def test_without_a_retry_queue_it_waits_in_hand_and_is_never_parked() -> None:
    """Every message of a batch is held for as long as was asked, requeued, and handled again."""
    app = App(
        "letters", topology=Topology("t", queues=(Queue("letters"), Queue("rest")), plans=(_PLAN,))
    )
    sizes: list[int] = []

    @app.batch("letters", size=3, batchers=1)
    async def insert(rows: list[int]) -> list[Snooze] | None:
        sizes.append(len(rows))
        return [Snooze(40)] * len(rows) if len(sizes) < 3 else None

    async with AppTest(app) as test:
        for number in range(3):
            await test.publish("", "letters", number)
        await test.advance(79)
        assert sizes == [3, 3]
        tally = await test.drain()
        assert (tally.done, tally.snoozed, tally.parked) == (3, 6, 0)
        assert test.dead_letters("letters") == ()
