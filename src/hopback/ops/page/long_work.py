"""Run slow requests of a page, and show their progress until the response is ready."""

from __future__ import annotations

import asyncio
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any

from hopback.ops.contract.queue_rules import NO_QUEUE
from hopback.ops.http.events import AT_ONCE_S, LongWork, page_work_events
from hopback.ops.http.problems import Refused
from hopback.ops.page.pages import Pages, Visit, see_other

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from starlette.responses import Response

    from hopback.ops.contract.values import OnProgress

WORK_PAGES = Pages()
"""The pages that show the progress of slow requests."""

_MOST_WAITING = 4
"""Maximum number of slow requests per visitor, because each of them can hold messages. Further ones
are refused.
"""
_UNATTENDED_S = 20.0
"""Seconds without a request from the waiting page after which the operation is cancelled. The page
sends one every 2 s.
"""


class PageWork:
    """A slow request of a visitor. `words` describes it, and `back` is the page with its form.

    It is ended if the waiting page no longer sends requests. `forget` is called when it ends.
    """

    def __init__(
        self,
        work: LongWork[Response],
        by: str,
        words: str,
        back: str,
        forget: Callable[[], object],
    ) -> None:
        self.work = work
        self.by = by
        self.words = words
        self.back = back
        self._forget = forget
        self._asked_at = asyncio.get_running_loop().time()
        self._watching = asyncio.create_task(self._watch(), name="long work of a page")

    def attend(self) -> None:
        """Record that the page is still waiting."""
        self._asked_at = asyncio.get_running_loop().time()

    async def end(self) -> None:
        """End the operation after its result was shown, or cancel it so that it requeues its messages."""
        self._watching.cancel()
        self._forget()
        await self.work.end()

    async def _watch(self) -> None:
        loop, left = asyncio.get_running_loop(), _UNATTENDED_S
        while left > 0:
            await asyncio.sleep(left)
            left = self._asked_at + _UNATTENDED_S - loop.time()
        self._forget()
        await self.work.end()


async def in_time(
    visit: Visit,
    work: Callable[[OnProgress], Coroutine[Any, Any, Response]],
    words: str,
    back: str,
) -> Response:
    """Return the response if it is ready within a short time. Otherwise redirect to a progress page."""
    known, own = visit.services.working, visit.principal.id
    if sum(each.by == own for each in known.values()) >= _MOST_WAITING:
        raise Refused(
            429,
            "too-many-heavy-requests",
            f"You have {_MOST_WAITING} running requests. Wait until one ends, or cancel one.",
        )
    begun = LongWork(work)
    if await begun.wait(visit.request, AT_ONCE_S):
        return begun.task.result()
    name = secrets.token_hex(8)
    forget = partial(known.pop, name, None)
    known[name] = PageWork(begun, own, words, back, forget)
    return see_other(f"/working/{name}")


def _find_work(visit: Visit) -> PageWork:
    """Return the slow request in the path. Raises Refused if it belongs to another visitor."""
    found = visit.services.working.get(visit.path["work"])
    if found is None or found.by != visit.principal.id:
        raise Refused(404, "not-found", "This operation has finished or was cancelled.")
    found.attend()
    return found


@WORK_PAGES.get("/working/{work}", None, NO_QUEUE)
async def _show_work(visit: Visit) -> Response:
    """Show the progress of a slow request, or its response if it has ended."""
    waiting = _find_work(visit)
    if waiting.work.task.done():
        await waiting.end()
        return waiting.work.task.result()
    return visit.page("working.html", waiting=waiting, name=visit.path["work"])


@WORK_PAGES.get("/working/{work}/events", None, NO_QUEUE)
async def _stream_work(visit: Visit) -> Response:
    waiting = _find_work(visit)
    events = page_work_events(waiting.work)
    return visit.services.shared.streams.open(events, visit.principal, on_event=waiting.attend)


@WORK_PAGES.post("/working/{work}/cancel", None, NO_QUEUE)
async def _cancel_work(visit: Visit) -> Response:
    waiting = _find_work(visit)
    await waiting.end()
    return see_other(waiting.back)
