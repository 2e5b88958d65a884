"""The request and the answers of a search."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from hopback.ops.contract.values import DeadLetter, Group, HeldMessages, Survey

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


MOST_WALKED = 5_000_000
"""Messages that are read at a time: at some thousands a second a broker would soon take them back."""


class SearchRequest(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What to look for, in these queues, or in all; at most `limit` of what is found is told.

    With `by` all that match are also counted in groups at the end. `first` reads so many of each queue
    and no more. `job` looks in the queue of a re-drive for what it had sent and what is there again. Either
    of `by` and `job` does without a filter.
    """

    where: Annotated[str, Meta(max_length=4096)] = field(default="", name="filter")
    queues: Annotated[tuple[str, ...], Meta(max_length=1000)] = ()
    limit: Annotated[int, Meta(ge=0, le=10_000)] = 100
    force: bool = False
    by: Annotated[str, Meta(max_length=512)] = ""
    first: Annotated[int, Meta(ge=1, le=MOST_WALKED)] | None = None
    job: Annotated[str, Meta(max_length=255)] = ""

    def of_job(self, queue: str) -> SearchRequest:
        """The same as a search of that queue, which is the job's."""
        return replace(self, where=f"job:{self.job} {self.where}".strip(), queues=(queue,), job="")


class SearchHit(Struct, frozen=True, rename="camel"):
    """A message that matches; `excerpt` is the part of its body around the first searched word.

    To open it, hold the messages from its `place` on: a session with `skip` one less than that. If `session`
    is set, that browse session holds it already.
    """

    dead_letter: DeadLetter = field(name="letter")
    excerpt: str = ""
    session: str = ""


class SkippedQueue(Struct, frozen=True, rename="camel"):
    """A queue that was not looked into, and why."""

    queue: str
    reason: str


class SearchProgress(Struct, frozen=True, rename="camel", kw_only=True):
    """How far a search is. `hits` are those found since the last time, `matching` counts all of them.

    `total` is how many messages there are to look at, `held` how many of the present queue the broker
    holds for it meanwhile. `not_looked_into` have bodies too large to be searched to their end. At the end
    come the `groups` that were asked for, the largest first, how many messages stood `beyond` the first, and
    the messages that could not be read because other consumers hold them.
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


async def survey_of(
    request: SearchRequest, progress: AsyncGenerator[SearchProgress, None]
) -> Survey:
    """The groups of the one queue that is searched, when the search is over."""
    last = SearchProgress()
    async with aclosing(progress):
        async for told in progress:
            last = told
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
