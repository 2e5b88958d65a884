"""The request and the progress of a search."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from hopback.ops.contract.requests import GroupBy
from hopback.ops.contract.values import DeadLetter, Group, HeldMessages, Survey

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from hopback.ops.contract.interface import DeadLetters


MOST_WALKED = 5_000_000
"""Largest number of messages that one search reads. With more, the broker's timeout would requeue them."""


class SearchRequest(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A filter and the queues to search, all without a list. At most `limit` hits are reported.

    With `by`, all matching messages are also counted in groups. `first` limits the number of messages that
    are read from each queue. `job` searches the queue of a re-drive for its messages that died again. A
    request with `by` or `job` does not need a filter.
    """

    where: Annotated[str, Meta(max_length=4096)] = field(default="", name="filter")
    queues: Annotated[tuple[str, ...], Meta(max_length=1000)] = ()
    limit: Annotated[int, Meta(ge=0, le=10_000)] = 100
    force: bool = False
    by: Annotated[str, Meta(max_length=512)] = ""
    first: Annotated[int, Meta(ge=1, le=MOST_WALKED)] | None = None
    job: Annotated[str, Meta(max_length=255)] = ""

    def of_job(self, queue: str) -> SearchRequest:
        """Return the request as a search of the job's queue."""
        return replace(self, where=f"job:{self.job} {self.where}".strip(), queues=(queue,), job="")


class SearchHit(Struct, frozen=True, rename="camel"):
    """A matching message. `excerpt` is the part of its body around the first searched word.

    A session with `skip` one less than its `place` opens it. If `session` is set, that browse session holds
    it already.
    """

    dead_letter: DeadLetter = field(name="letter")
    excerpt: str = ""
    session: str = ""


class SkippedQueue(Struct, frozen=True, rename="camel"):
    """A queue that was not searched, and the reason."""

    queue: str
    reason: str


class SearchProgress(Struct, frozen=True, rename="camel", kw_only=True):
    """The progress of a search. `hits` are new since the last report, `matching` counts all of them.

    `seen` of `total` messages were read. The broker holds `held` messages of the present queue for the
    search. `not_looked_into` messages have bodies beyond the limits of a search. The last report contains
    the requested `groups`, the largest first, the number of messages `beyond` the first ones, and the
    messages that could not be read because other consumers hold them.
    """

    queue: str = ""
    seen: int = 0
    total: int = 0
    held: int = 0
    matching: int = 0
    not_looked_into: int = 0
    hits: tuple[SearchHit, ...] = ()
    skipped: tuple[SkippedQueue, ...] = ()
    groups: tuple[Group, ...] = ()
    beyond: int = 0
    held_by_others: tuple[HeldMessages, ...] = ()
    is_over: bool = False


async def survey_queue(
    dead_letters: DeadLetters,
    queue: str,
    by: str = GroupBy.FINGERPRINT,
    where: str = "",
    *,
    limit: int | None = None,
    force: bool = False,
) -> Survey:
    """Group a whole queue, or its first `limit` messages, in one search."""
    request = SearchRequest(where, (queue,), 0, force, by, limit)
    return await collect_survey(request, dead_letters.search(request))


async def collect_survey(
    request: SearchRequest, progress: AsyncGenerator[SearchProgress, None]
) -> Survey:
    """Wait for the end of a search of one queue and return its groups."""
    last = SearchProgress()
    async with aclosing(progress):
        async for report in progress:
            last = report
    whole = last.is_over and not last.beyond and last.seen >= last.total
    (queue,) = request.queues
    return Survey(
        queue,
        request.by,
        last.groups,
        last.seen,
        last.matching,
        whole and not last.held_by_others,
        last.not_looked_into,
        last.held_by_others,
    )
