"""Two stores that work on one queue notice each other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from hopback.broker.embedded import EmbeddedManagement
from hopback.broker.management.readings import ChannelReading
from hopback.clock import SystemClock
from hopback.ops.brokers.consumers import describe_holders
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.contract.requests import (
    AuditQuery,
    Pace,
    RedriveRequest,
    Selection,
    Target,
    TargetKind,
)
from hopback.ops.jobs.journal import MemoryJournal, open_journal
from hopback.ops.operations import Operations
from hopback.testing import in_virtual_time
from tests.unit.ops.cli.raffle import DLQ, MAIN, TOPOLOGY, raffle

if TYPE_CHECKING:
    from pathlib import Path

    from hopback.ops.jobs.journal import Journal
    from tests.unit.ops.cli.raffle import Raffle


def _redrive(**more: object) -> RedriveRequest:
    return RedriveRequest(
        queue=DLQ,
        selection=Selection(),
        reason="repaired",
        target=Target(TargetKind.QUEUE, routing_key=MAIN),
        **more,  # type: ignore[arg-type]
    )


def _other(found: Raffle, journal: Journal, *, managed: bool = True) -> Operations:
    return Operations(
        ManagedBroker(
            found.broker,
            management=EmbeddedManagement(found.broker) if managed else None,
            topologies=(TOPOLOGY,),
        ),
        journal=journal,
    )


@in_virtual_time
@pytest.mark.parametrize("managed", [True, False])
async def test_plan_warns_of_a_job_of_another_store(managed: bool) -> None:
    async with raffle() as found, _other(found, MemoryJournal(), managed=managed) as second:
        await found.park(400)
        job = await found.operations.start(_redrive(pace=Pace(rate=1, in_flight=1)))
        await asyncio.sleep(5)
        (warning, *_) = (await second.plan(_redrive())).warnings
        await found.operations.cancel(job.id)
        await found.operations.wait(job.id)
        after = (await second.plan(_redrive())).warnings
    assert warning.startswith(f"{DLQ} has other consumers, which also remove messages: ")
    named = f"job {job.id} of another store" in warning
    assert (named, "1 without a name" in warning) == (managed, not managed)
    assert not any("other consumers" in each for each in after)


@in_virtual_time
async def test_audit_of_a_started_job_names_other_consumers() -> None:
    async with raffle() as found, _other(found, MemoryJournal()) as second:
        await found.park(400)
        connection = await found.broker.connect("a foreign consumer")
        channel = await connection.open_channel()
        await channel.qos(1)
        await channel.consume(DLQ, lambda _: None, tag="raffle-1")
        job = await second.start(_redrive())
        await second.wait(job.id)
        (entry,) = await second.audit(AuditQuery(action="job.start"))
        await connection.close()
    (other,) = entry.details["otherConsumers"]
    assert other.startswith("consumer 'raffle-1' (connection 'a foreign consumer'")


@in_virtual_time
async def test_own_session_is_not_another_consumer() -> None:
    async with raffle() as found:
        await found.park(40)
        await found.operations.open_session(DLQ)
        plan = await found.operations.plan(_redrive())
    assert not any("other consumers" in each for each in plan.warnings)


async def test_store_id_is_the_same_for_every_process_of_a_store(tmp_path: Path) -> None:
    clock, url = SystemClock(), f"sqlite:///{tmp_path}/jobs.db"
    async with open_journal(url, clock) as one, open_journal(url, clock) as two:
        assert await one.store_id() == await two.store_id()
    async with open_journal(f"sqlite:///{tmp_path}/other.db", clock) as other:
        assert await other.store_id() != await one.store_id()


def test_holders_of_a_queue_are_consumers_and_channels_without_another_queue() -> None:
    def channel(name: str, unacked: int, *consumers: tuple[str, str]) -> ChannelReading:
        return ChannelReading("1 -> 2", name, "ann", unacked, 1_800_000_000.0, consumers)

    where = "(1 -> 2, user 'ann', connected since 2027-01-15T08:00:00Z)"
    channels = (
        channel("shop", 0, ("orders.dlq", "w-1"), ("other", "w-2")),
        channel("shop", 9, ("other", "w-2")),
        channel(f"hopback browse {DLQ}", 4),
        channel("hopback browse orders.dlq", 5),
        channel("hopback browse orders.dlq", 7),
        channel("hopback job j-1 orders.dlq", 3),
        channel("", 2),
    )
    assert describe_holders("orders.dlq", channels, own=(5,)) == (
        f"w-1 of 'shop' {where}",
        f"'hopback browse orders.dlq' {where}",
        f"'hopback job j-1 orders.dlq' {where}",
        "perhaps 1 -> 2 (user 'ann', connected since 2027-01-15T08:00:00Z)",
    )
