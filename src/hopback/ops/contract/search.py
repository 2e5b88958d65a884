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
"""Messages that one search can read. If it read more, the broker's consumer timeout would requeue them."""


class SearchRequest(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A filter and the queues to search. Without `queues`, all queues are searched.

    At most `limit` hits are reported. If `by` is set, all matching messages are also counted in
    groups. `first` limits how many messages are read from each queue. `job` searches the queue of a
    re-drive for its messages that were dead-lettered again. The filter is optional if `by` or `job`
    is set.
    """

    where: Annotated[str, Meta(max_length=4096)] = field(default="", name="filter")
    queues: Annotated[tuple[str, ...], Meta(max_length=1000)] = ()
    limit: Annotated[int, Meta(ge=0, le=10_000)] = 100
    force: bool = False
    by: Annotated[str, Meta(max_length=512)] = ""
    first: Annotated[int, Meta(ge=1, le=MOST_WALKED)] | None = None
    job: Annotated[str, Meta(max_length=255)] = ""

    def of_job(self, queue: str) -> SearchRequest:
        """Return the request as a search in the queue of its job."""
        return replace(self, where=f"job:{self.job} {self.where}".strip(), queues=(queue,), job="")


class SearchHit(Struct, frozen=True, rename="camel"):
    """A matching message. `excerpt` is the part of its body around the first matching word.

    To open the message, create a session with `skip` one less than its `place`. If `session` is
    set, the message is already held by this browse session.
    """

    dead_letter: DeadLetter = field(name="letter")
    excerpt: str = ""
    session: str = ""


class SkippedQueue(Struct, frozen=True, rename="camel"):
    """A queue that was not searched, with the reason."""

    queue: str
    reason: str


class SearchProgress(Struct, frozen=True, rename="camel", kw_only=True):
    """The progress of a search. `hits` are new since the last report, while `matching` counts all
    of them.

    `seen` of `total` messages were read. The broker holds `held` messages of the current queue for
    the search. `not_looked_into` messages have bodies that exceed the limits of a search. The last
    report also contains the requested `groups`, largest first, the number of messages `beyond` the
    first ones, and the messages that were not read because other consumers hold them.
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
    """Group a whole queue, or its first `limit` messages, with one search."""
    request = SearchRequest(where, (queue,), 0, force, by, limit)
    return await collect_survey(request, dead_letters.search(request))


async def collect_survey(
    request: SearchRequest, progress: AsyncGenerator[SearchProgress, None]
) -> Survey:
    """Wait until a search of one queue has ended, and return its groups."""
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
