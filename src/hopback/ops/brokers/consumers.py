"""Describe the consumers of a queue, and name Hopback's consumers so that other processes recognise
them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hopback.text import one_line, whole_timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.broker.management.readings import ChannelReading, ConsumerReading
    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.brokers.snapshot import BrokerSnapshot


LOOK_TAG = "hopback-look-"
_NAMED = 5
"""Maximum number of other consumers listed in a warning. The rest are omitted."""
_OUR_CONNECTION = re.compile(r"hopback (?:job \S+|browse|look) (?P<queue>.+)", re.DOTALL)
_JOB_TAG = re.compile(r"hopback-(?P<store>[0-9a-f]+)-(?P<job>j-[0-9a-f]+)-\d{9}")


def job_tag(store: str, job: str) -> str:
    """Return the prefix of a job's consumer tags, by which processes with another store recognise
    the job.

    All consumers of a job have the same prefix. It is followed by increasing numbers.
    """
    return f"hopback-{store}-{job}-"


def job_connection_name(job: str, queue: str) -> str:
    """Return the name of the connection that a job uses to take messages."""
    return f"hopback job {job} {queue}"


def browse_connection_name(queue: str) -> str:
    """Return the name of the connection that holds the messages of a browse session."""
    return f"hopback browse {queue}"


def look_connection_name(queue: str) -> str:
    """Return the name of a connection that reads messages once and requeues them."""
    return f"hopback look {queue}"


async def find_other_consumers(
    broker: ManagedBroker,
    snapshot: BrokerSnapshot,
    queue: str,
    store: str,
    *,
    has_job: bool,
    has_session: bool,
) -> list[str]:
    """Describe the consumers of a dead-letter queue that are not jobs of this store.

    The number of consumers comes from the broker, because the management API may list consumers
    late or not at all. `has_job` is True if a job of this store is active on the queue.
    `has_session` is True if this process holds messages of the queue.
    """
    named = [_describe_consumer(each, store) for each in await broker.consumers_of(queue)]
    found = [each for each in named if each]
    if not has_job and snapshot.consumers > len(found):
        # A quorum queue also counts consumers that have ended but still hold messages. The
        # management API does not list those.
        names = await broker.connection_names() or ()
        others = [job for job in _jobs_on(queue, names) if job not in "".join(found)]
        if others:
            return [*found, *(f"job {job} of another store" for job in others)][:_NAMED]
    # For the same reason, a session that holds messages is counted even if its consumer has ended.
    if not has_job and (snapshot.is_classic(queue) or not has_session):
        unnamed = snapshot.consumers - len(found)
        why = "that management does not name yet" if broker.management else "without a name"
        found += [f"{unnamed} {why}"] if unnamed > 0 else []
    return found[:_NAMED]


def _jobs_on(queue: str, connection_names: Iterable[str]) -> list[str]:
    """Find the ids of the jobs that have a connection for this queue."""
    begin, end = "hopback job ", f" {queue}"
    return sorted(
        name[len(begin) : -len(end)]
        for name in connection_names
        if name.startswith(begin) and name.endswith(end) and " " not in name[len(begin) : -len(end)]
    )


def _describe_consumer(reading: ConsumerReading, store: str) -> str:
    """Describe the job and the connection of a consumer. Returns an empty string for a job of this
    store.
    """
    found = _JOB_TAG.fullmatch(reading.tag)
    if found is not None and found["store"] == store:
        return ""
    where = (
        f" (connection {reading.connection}, user {reading.user!r})" if reading.connection else ""
    )
    if found is not None:
        return f"job {found['job']} of another store{where}"
    if reading.tag.startswith(LOOK_TAG):
        return f"a browse session{where}"
    return f"consumer {one_line(reading.tag)!r}{where}"


def describe_holders(
    queue: str, channels: Iterable[ChannelReading], own: Iterable[int] = ()
) -> tuple[str, ...]:
    """Describe the channels that may hold messages of a queue, with the time they were connected.

    `own` contains the number of messages held by each browse session of this process. Their
    channels are omitted. A channel without a consumer may hold messages of any queue, unless its
    connection has a name given by Hopback.
    """
    ours, found = list(own), list[str]()
    for each in channels:
        tags = [tag for name, tag in each.consumers if name == queue]
        named = _OUR_CONNECTION.fullmatch(each.name)
        if not tags and (each.consumers or (named is not None and named["queue"] != queue)):
            continue
        if not tags and each.name == browse_connection_name(queue) and each.unacked in ours:
            ours.remove(each.unacked)
            continue
        found += [f"{tag} of {_describe_connection(each)}" for tag in tags]
        if not tags:
            found.append(f"{'' if named else 'perhaps '}{_describe_connection(each)}")
    return tuple(found)


def _describe_connection(reading: ChannelReading) -> str:
    called = repr(one_line(reading.name)) if reading.name else reading.connection
    facts = [reading.connection] if reading.name else []
    facts.append(f"user {reading.user!r}")
    if reading.since is not None:
        facts.append(f"connected since {whole_timestamp(reading.since)}")
    return f"{called} ({', '.join(facts)})"
