"""Wait until a job can run. The broker must be available, and connections of an earlier run closed.

A job is resumed after a lost connection, a killed process or a failure. The broker requeues its
unsettled messages when it has closed the connection that held them. `cursor_choice` then finds the
rest of the selection.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import replace
from typing import TYPE_CHECKING

from hopback.broker.supervise import Backoff
from hopback.errors import BrokerError, HopbackError, UnsafeOperation
from hopback.ops.brokers.consumers import (
    LOOK_TAG,
    browse_connection_name,
    job_connection_name,
    look_connection_name,
)
from hopback.ops.contract.values import JobState
from hopback.ops.jobs.publish_failure import is_away
from hopback.ops.jobs.spec_builder import snapshot_for
from hopback.text import span_text

if TYPE_CHECKING:
    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.brokers.snapshot import BrokerSnapshot
    from hopback.ops.jobs.job_record import JobRecord
    from hopback.ops.jobs.leased_job import LeasedJob

_RECONNECT = Backoff(first=0.5, most=15.0)
"""Seconds between attempts to connect to an unavailable broker."""
_HOLDERS_S = 300.0
"""Seconds for which a resumed job waits for stale connections. RabbitMQ closes them after 180 s."""
_ASK_HOLDERS_S = 1.0
"""Seconds between checks for stale connections."""


async def wait_for_broker(
    broker: ManagedBroker, leased: LeasedJob, away: BrokerError, patience_s: float
) -> BrokerSnapshot:
    """Wait up to `patience_s` seconds until the broker responds, and start the next run of the job.

    The job keeps its lease, so that no other job can start for the queue. Raises HopbackError if
    the broker stays unavailable or refuses the connection, and EndJob if the job is cancelled.
    """
    reason = f"waiting for the broker, up to {span_text(patience_s)}: {away}"
    await leased.give_reason(reason)
    until = asyncio.get_running_loop().time() + patience_s
    for failures in itertools.count(1):
        await leased.control.sleep(_RECONNECT.delay(failures, random.random()))
        if leased.control.is_paused:
            await leased.give_reason(reason, JobState.PAUSED)
            await leased.control.wait_while_paused()
            await leased.give_reason(reason, JobState.RUNNING)
        leased.control.check()
        try:
            snapshot = await snapshot_for(broker, leased.job.spec)
        except HopbackError as failed:
            if not is_away(failed) or asyncio.get_running_loop().time() >= until:
                raise
        else:
            break
    leased.show(replace(leased.job, run=leased.job.run + 1))
    await leased.give_reason("")
    return snapshot


async def wait_for_holders(broker: ManagedBroker, leased: LeasedJob) -> None:
    """Wait until no connection of an earlier run holds messages, which the job would count as
    finished.

    If the host of the earlier run has failed, the broker keeps its connection until heartbeats are
    missing. Raises UnsafeOperation if this takes too long, and EndJob if the job is cancelled.
    """
    if leased.job.run == 1:
        return
    until = asyncio.get_running_loop().time() + _HOLDERS_S
    reason = ""
    while holder := await _holder(broker, leased.job):
        reason = f"waiting until {holder} has ended: it may hold messages of this job"
        if asyncio.get_running_loop().time() >= until:
            raise UnsafeOperation(
                f"{holder} may hold messages of {leased.job.queue!r}, which the job would count as done:"
                " end it, then resume the job"
            )
        if leased.job.state_reason != reason:
            await leased.give_reason(reason)
        await leased.control.sleep(_ASK_HOLDERS_S)
        leased.control.check()
    if reason:
        await leased.give_reason("")


async def _holder(broker: ManagedBroker, job: JobRecord) -> str:
    """Describe a connection that may hold messages of the job. It is empty if there is none."""
    names = await broker.connection_names()
    if names is None:
        _, consumer_count = await broker.count_ready(job.queue)
        return f"the consumer of {job.queue!r}" if consumer_count else ""
    ours = (
        job_connection_name(job.id, job.queue),
        browse_connection_name(job.queue),
        look_connection_name(job.queue),
    )
    found = next((f"the connection {name!r}" for name in ours if name in names), "")
    # A dry run in another process uses a connection with a different name.
    consumers = () if found else await broker.consumers_of(job.queue)
    looks = any(each.tag.startswith(LOOK_TAG) for each in consumers)
    return f"a reader of {job.queue!r}" if looks else found
