"""The names of Hopback's consumers and connections, by which other processes recognise them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hopback.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.broker.management.readings import ConsumerReading


LOOK_TAG = "hopback-look-"
_JOB_TAG = re.compile(r"hopback-(?P<store>[0-9a-f]+)-(?P<job>j-[0-9a-f]+)-\d{9}")


def job_tag(store: str, job: str) -> str:
    """Return the prefix of a job's consumer tags, by which other stores recognise the job.

    The prefix is the same for all consumers of a job, so the numbers after it give their order.
    """
    return f"hopback-{store}-{job}-"


def job_connection_name(job: str, queue: str) -> str:
    """Return the name of the connection on which a job takes messages."""
    return f"hopback job {job} {queue}"


def browse_connection_name(queue: str) -> str:
    """Return the name of the connection on which a browse session holds messages."""
    return f"hopback browse {queue}"


def look_connection_name(queue: str) -> str:
    """Return the name of the connection on which messages are read once and requeued."""
    return f"hopback look {queue}"


def jobs_on(queue: str, connection_names: Iterable[str]) -> list[str]:
    """Return the ids of the jobs whose connections work on the queue."""
    begin, end = "hopback job ", f" {queue}"
    return sorted(
        name[len(begin) : -len(end)]
        for name in connection_names
        if name.startswith(begin) and name.endswith(end) and " " not in name[len(begin) : -len(end)]
    )


def describe_consumer(reading: ConsumerReading, store: str) -> str:
    """Return a consumer's job and connection in words, empty for a job of this store."""
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
