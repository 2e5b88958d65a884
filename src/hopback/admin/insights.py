"""What was seen when somebody last looked into a queue, so that the list can tell without looking."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.deadletters.sessions import GroupBy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopback.deadletters.browsing import SessionView
    from hopback.deadletters.operations import Operations

__all__ = ["Insight", "Insights"]

_MOST = 1000


@dataclass(frozen=True, slots=True)
class Insight:
    """The most frequent failure among the messages that were held, and when that was."""

    error: str
    count: int
    seen: int
    oldest: float | None
    at: float


class Insights:
    """The last insight of each queue."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Insight] = OrderedDict()

    @property
    def known(self) -> Mapping[str, Insight]:
        """By queue."""
        return self._known

    async def remember(self, operations: Operations, view: SessionView) -> None:
        """Keep what a session shows of its queue."""
        groups = (await operations.groups(view.id, GroupBy.FINGERPRINT)).items
        if not groups:
            self._known.pop(view.queue, None)
            return
        top = groups[0]
        times = [group.first for group in groups if group.first is not None]
        error = top.sample.error or top.sample.error_message or top.sample.reason
        self._known[view.queue] = Insight(
            error, top.count, view.held, min(times, default=None), view.opened_at
        )
        self._known.move_to_end(view.queue)
        if len(self._known) > _MOST:
            self._known.popitem(last=False)
