"""Errors across all queues and depth trends. Both are stored, and queues at risk are skipped."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from hopback.broker.declare import declare
from hopback.broker.embedded import EmbeddedBroker, EmbeddedManagement
from hopback.broker.embedded.virtual_time import LoopClock
from hopback.headers import Failure, failure_json
from hopback.message import Message, Properties
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.contract.requests import (
    DiscardRequest,
    Pace,
    RedriveRequest,
    Selection,
    SessionRequest,
    Settings,
)
from hopback.ops.jobs.journal import open_journal
from hopback.ops.operations import Operations
from hopback.testing import in_virtual_time
from hopback.topology.model import Queue, QueueType, Topology

if TYPE_CHECKING:
    import pytest

    from hopback.ops.jobs.journal import Journal

_DAY_S = 86_400.0  # seconds
_TOPOLOGY = Topology(
    "foreign",
    queues=(
        *(Queue(each) for each in ("orders", "billing", "mail", "busy", "ledger")),
        *(Queue(f"{each}.dlq") for each in ("orders", "billing", "mail", "busy")),
        Queue("ledger.dlq", type=QueueType.QUORUM),
    ),
)


class _Site:
    """A broker with five dead-letter queues, and operations on it as often as a process starts."""

    def __init__(self, broker: EmbeddedBroker, journal: Journal, clock: LoopClock) -> None:
        self.broker = broker
        self.journal = journal
        self.clock = clock

    def operations(self, exports: Path | None = None) -> Operations:
        return Operations(
            ManagedBroker(
                self.broker, management=EmbeddedManagement(self.broker), clock=self.clock
            ),
            journal=self.journal,
            settings=Settings(exports=exports),
        )

    async def fail(self, queue: str, error: str, count: int) -> None:
        connection = await self.broker.connect("test")
        channel = await connection.open_channel()
        for _ in range(count):
            said = Properties(headers={"x-last-error": f"{error}: at 7"}, delivery_mode=2)
            await channel.publish(Message("", queue, b"{}", said))
        await connection.close()

    async def park(self, queue: str, error: str, *times: float) -> None:
        """Park a message with a failure at each of these times."""
        connection = await self.broker.connect("test")
        channel = await connection.open_channel()
        for at in times:
            failure = Failure(error, "no answer", fingerprint=error.lower(), last=at)
            said = Properties(headers={"hopback-failure": failure_json(failure) or ""})
            await channel.publish(Message("", queue, b"{}", said))
        await connection.close()


async def _site(journal: Journal, clock: LoopClock, broker: EmbeddedBroker | None = None) -> _Site:
    broker = broker or EmbeddedBroker()
    connection = await broker.connect("test")
    await declare(connection, _TOPOLOGY)
    return _Site(broker, journal, clock)


@in_virtual_time
async def test_errors_of_all_queues_are_grouped_and_survive_restart(tmp_path: Path) -> None:
    """The same error in two queues is one group. Errors since yesterday are marked as new."""
    clock = LoopClock(lambda: 1_800_000_000.0)
    async with open_journal(f"sqlite:///{tmp_path}/jobs.db", clock) as journal:
        site = await _site(journal, clock)
        await site.fail("orders.dlq", "TimeoutError", 5)
        await site.fail("billing.dlq", "TimeoutError", 3)
        await site.fail("mail.dlq", "Bounced", 2)
        async with site.operations() as first:
            site.broker.faults.latency = 1.0  # so that each step can be seen
            asked = asyncio.create_task(first.errors(survey=True))
            steps = set[tuple[str, int, int]]()
            while not asked.done():
                await asyncio.sleep(0.3)
                running = (await first.errors()).running
                steps |= (
                    set() if running is None else {(running.queue, running.seen, running.total)}
                )
            found = await asked
            site.broker.faults.latency = 0.0
            assert {total for _, _, total in steps} == {10}
            assert {queue for queue, _, _ in steps} & {"billing.dlq", "mail.dlq", "orders.dlq"}
            assert found.running is None
        assert [(one.error, one.count, one.is_new) for one in found.items] == [
            ("TimeoutError", 8, False),
            ("Bounced", 2, False),
        ]
        assert [(one.queue, one.count) for one in found.items[0].queues] == [
            ("billing.dlq", 3),
            ("orders.dlq", 5),
        ]
        await asyncio.sleep(2 * _DAY_S)
        await site.fail("mail.dlq", "Refused", 4)
        async with site.operations() as second:
            assert (await second.errors()).items[0].count == 8
            again = await second.errors(survey=True)
        told = {one.error: (one.count, one.is_new) for one in again.items}
        assert told == {"TimeoutError": (8, False), "Refused": (4, True), "Bounced": (2, False)}


@in_virtual_time
async def test_survey_counts_failures_by_hour_and_keeps_them_after_a_restart(
    tmp_path: Path,
) -> None:
    hour = 3600.0
    clock = LoopClock(lambda: 1_800_000_000.0)
    now = clock.now() // hour * hour
    async with open_journal(f"sqlite:///{tmp_path}/jobs.db", clock) as journal:
        site = await _site(journal, clock)
        outside = (now - 48 * hour, now + hour, 0.0)  # too old, in the future, unknown
        await site.park("orders.dlq", "TimeoutError", now, now - hour, now - hour + 59, *outside)
        await site.park("billing.dlq", "TimeoutError", now - 47 * hour)
        async with site.operations() as first:
            await first.errors(survey=True)
        async with site.operations() as second:
            (error,) = (await second.errors()).items
    assert {at.queue: [(one.at, one.count) for one in at.by_hour] for at in error.queues} == {
        "billing.dlq": [(now - 47 * hour, 1)],
        "orders.dlq": [(now - hour, 2), (now, 1)],
    }


@in_virtual_time
async def test_survey_skips_queues_with_consumers_jobs_sessions_or_limit(tmp_path: Path) -> None:
    """Each skipped queue has a reason."""
    clock = LoopClock(lambda: 1_800_000_000.0)
    async with open_journal(f"sqlite:///{tmp_path}/jobs.db", clock) as journal:
        site = await _site(journal, clock)
        for queue in ("orders.dlq", "billing.dlq", "mail.dlq", "busy.dlq", "ledger.dlq"):
            await site.fail(queue, "TimeoutError", 3)
        connection = await site.broker.connect("consumer")
        channel = await connection.open_channel()
        await channel.qos(1)
        await channel.consume("busy.dlq", lambda _: None)
        async with site.operations() as operations:
            session = await operations.open_session("mail.dlq", SessionRequest(limit=1, skip=1))
            job = await operations.start(
                RedriveRequest(
                    queue="billing.dlq", selection=Selection(), reason="x", pace=Pace(rate=0.001)
                )
            )
            await asyncio.sleep(6)  # until the numbers of the management API are new
            found = await operations.errors(survey=True)
            why = {one.queue: one.why_not for one in found.queues}
            assert why["orders.dlq"] == ""
            assert "consumers" in why["busy.dlq"]
            assert job.id in why["billing.dlq"]
            assert why["mail.dlq"].startswith(f"the browse session {session.id} of ")
            assert why["mail.dlq"].endswith(" holds its messages")
            assert "requeued 21 times" in why["ledger.dlq"]
            assert found.messages == 3
            await operations.cancel(job.id)
            await operations.wait(job.id)


@in_virtual_time
async def test_survey_includes_messages_held_by_sessions_of_its_process(tmp_path: Path) -> None:
    """A classic queue keeps its order although the others are read meanwhile."""
    clock = LoopClock(lambda: 1_800_000_000.0)
    async with open_journal(f"sqlite:///{tmp_path}/jobs.db", clock) as journal:
        site = await _site(journal, clock)
        await site.fail("orders.dlq", "TimeoutError", 3)
        await site.fail("mail.dlq", "ValueError", 2)
        async with site.operations() as operations:
            await operations.open_session("orders.dlq", SessionRequest(limit=2))
            whole = await operations.open_session("mail.dlq", SessionRequest(limit=2))
            await asyncio.sleep(6)  # until the numbers of the management API are new
            found = await operations.errors(survey=True)
            assert {one.error: one.count for one in found.items} == {
                "TimeoutError": 3,
                "ValueError": 2,
            }
            assert [one.held for one in found.queues if one.at] == [(), ()]
            await operations.release(whole.id)


@in_virtual_time
async def test_survey_reports_messages_held_by_another_process(tmp_path: Path) -> None:
    clock = LoopClock(lambda: 1_800_000_000.0)
    async with open_journal(f"sqlite:///{tmp_path}/jobs.db", clock) as journal:
        site = await _site(journal, clock)
        await site.fail("orders.dlq", "TimeoutError", 3)
        async with site.operations() as other, site.operations() as operations:
            await other.open_session("orders.dlq", SessionRequest(limit=2))
            await asyncio.sleep(6)
            found = await operations.errors(survey=True)
            (queue,) = (one for one in found.queues if one.at)
            (held,) = queue.held
            assert (queue.seen, held.queue, held.count) == (1, "orders.dlq", 2)
            assert held.holders[0].startswith("'hopback browse orders.dlq' (")


@in_virtual_time
async def test_depths_are_sampled_every_five_minutes_and_thinned(tmp_path: Path) -> None:
    """Surveys run at the configured interval."""
    clock = LoopClock(lambda: 1_800_000_000.0)
    async with open_journal(f"sqlite:///{tmp_path}/jobs.db", clock) as journal:
        site = await _site(journal, clock)
        await site.fail("orders.dlq", "TimeoutError", 5)
        async with site.operations() as operations:
            keeping = asyncio.create_task(operations.surveys.keep(600.0))
            await asyncio.sleep(1000)
            await site.fail("orders.dlq", "TimeoutError", 2)
            await asyncio.sleep(1000)
            assert (await operations.errors()).items[0].count == 7
            assert (await operations.errors()).survey_s == 600.0
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            day = operations.surveys.trends.recent["orders.dlq"]
            assert ([one.messages for one in day.samples][::3], day.arrived) == ([5, 5, 7], 2)
        async with site.operations() as later:
            trend = await later.trend("orders.dlq")
            assert [one.messages for one in trend.samples] == [5, 5, 5, 5, 7, 7, 7]
            assert trend.arrived == 2


@in_virtual_time
async def test_survey_counts_each_line_of_discard_files_once(tmp_path: Path) -> None:
    """A deleted file is forgotten."""
    clock, exports = LoopClock(lambda: 1_800_000_000.0), tmp_path / "exports"
    async with open_journal(f"sqlite:///{tmp_path}/jobs.db", clock) as journal:
        site = await _site(journal, clock)
        await site.fail("orders.dlq", "TimeoutError", 5)
        async with site.operations(exports) as operations:
            discard = DiscardRequest(
                queue="orders.dlq", selection=Selection(limit=3), reason="x", confirm="orders.dlq"
            )
            job = await operations.wait((await operations.start(discard)).id)
            written = Path(job.export_to)
            whole = written.read_bytes()  # noqa: ASYNC240  a small file of this machine
            _write(written, whole[:-1])  # as a crash in the middle of a line leaves it
            for count in (2, 2):
                found = await operations.errors(survey=True)
                (error,) = found.items
                assert [(one.queue, one.count) for one in error.queues] == [("orders.dlq", 2)]
                assert [(one.queue, one.count) for one in error.discarded] == [
                    ("orders.dlq", count)
                ]
            _write(written, whole)
            (more,) = (await operations.errors(survey=True)).archives
            assert (more.file, more.queue, more.seen) == (written.name, "orders.dlq", 3)
            _write(written, None)
            gone = await operations.errors(survey=True)
            assert (gone.archives, gone.items[0].discarded) == ((), ())


class _OtherBroker(EmbeddedBroker):
    """A second broker, which a journal distinguishes from the first by its address."""

    @property
    def address(self) -> str:
        return "other"


@in_virtual_time
async def test_survey_ignores_discards_of_other_brokers_and_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two brokers that share a folder count only their files.

    A host without a file does not remove another host's counts.
    """
    clock, exports = LoopClock(lambda: 1_800_000_000.0), tmp_path / "exports"
    async with open_journal(f"sqlite:///{tmp_path}/jobs.db", clock) as journal:
        site = await _site(journal, clock)
        other = await _site(journal, clock, _OtherBroker())
        for each in (site, other):
            await each.fail("orders.dlq", "TimeoutError", 5)
        async with site.operations(exports) as here, other.operations(exports) as there:
            discard = DiscardRequest(
                queue="orders.dlq", selection=Selection(limit=3), reason="x", confirm="orders.dlq"
            )
            job = await here.wait((await here.start(discard)).id)
            written = Path(job.export_to)
            whole = written.read_bytes()  # noqa: ASYNC240  a small file of this machine
            foreign = await there.errors(survey=True)
            assert (foreign.archives, foreign.items[0].discarded) == ((), ())
            own = await here.errors(survey=True)
            assert [(one.file, one.seen) for one in own.archives] == [(written.name, 3)]

            async with site.operations(tmp_path / "empty") as beside:
                assert [one.seen for one in (await beside.errors(survey=True)).archives] == [3]
            _write(written, None)
            monkeypatch.setattr(socket, "gethostname", lambda: "another-host")
            elsewhere = await here.errors(survey=True)
            assert [one.seen for one in elsewhere.archives] == [3]
            _write(written, whole)  # a folder that both have: read no second time
            assert [one.seen for one in (await here.errors(survey=True)).archives] == [3]
            _write(written, None)
            assert (await here.errors(survey=True)).archives == ()


def _write(path: Path, content: bytes | None) -> None:
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)
