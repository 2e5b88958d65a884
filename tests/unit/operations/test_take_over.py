"""Jobs whose processes are gone go on elsewhere by themselves, those that somebody stopped do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.broker.embedded.management import EmbeddedManagement
from hopback.deadletters.contract import JobState
from hopback.deadletters.journal import MemoryJournal
from hopback.deadletters.requests import AuditQuery, Pace
from hopback.deadletters.service import Operations
from hopback.testing import in_virtual_time
from tests.unit.operations.shop import DLQ, MAIN, open_shop, redrive

if TYPE_CHECKING:
    from tests.unit.operations.shop import Shop

_SLOW = Pace(rate=1.0, in_flight=1)


def _another(shop: Shop, journal: MemoryJournal, **more: object) -> Operations:
    """Another process on the same broker and journal."""
    return Operations(
        shop.broker,
        management=EmbeddedManagement(shop.broker),
        topologies=(shop.topology,),
        journal=journal,
        clock=shop.operations.clock,
        **more,  # type: ignore[arg-type]
    )


@in_virtual_time
async def test_a_job_goes_on_where_its_process_ended() -> None:
    """All messages are there once; who took it over, and why, is in the audit."""
    journal = MemoryJournal()
    async with open_shop(journal=journal) as shop:
        await shop.park(20)
        job = await shop.operations.start(redrive(pace=_SLOW))
        async for seen in shop.operations.events(job.id):
            if seen.counts.done:
                break
        await shop.operations.close()
        assert (await shop.operations.job(job.id)).state is JobState.INTERRUPTED
        async with _another(shop, journal) as other:
            (taken,) = await other.take_over()
            assert (taken.id, taken.run) == (job.id, 2)
            assert await other.take_over() == ()
            done = await other.wait(job.id)
            (entry,) = await other.audit(AuditQuery(action="job.take-over"))
        assert (done.state, done.counts.remaining) == (JobState.COMPLETED, 0)
        assert (entry.by, entry.job, entry.reason) == (
            "hopback",
            job.id,
            "the process that ran it ended",
        )
        assert sorted(shop.bodies(MAIN)) == sorted(b"%d" % number for number in range(20))
        assert shop.bodies(DLQ) == []


@in_virtual_time
async def test_what_somebody_stopped_or_another_broker_has_stays() -> None:
    """A job that was paused before its process ended, a cancelled one, and one of a broker beside it."""
    journal = MemoryJournal()
    async with open_shop(journal=journal) as shop:
        await shop.park(20)
        job = await shop.operations.start(redrive(pace=_SLOW))
        await shop.operations.interrupt(job.id)
        async with (
            _another(shop, journal) as other,
            _another(shop, journal, vhost="beside") as beside,
        ):
            assert await other.take_over() == ()
            await other.resume(job.id)
            await other.close()
            assert await beside.take_over() == ()
            await other.cancel(job.id)
            assert await other.take_over() == ()
