"""Distribute tests to workers: half of the workers take tests that wait.

Some tests wait for timers of a broker and use little CPU. If they all started at once, two cores
would be idle first and overloaded at the end. Therefore half of the workers take tests marked
`waits`, longest first, while there are any, and the others take the remaining tests. The worker
that collects the tests knows their marks, but the distributing process knows only their names. The
mark is therefore part of the group name, which pytest-xdist appends to the name of a test.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

__all__ = ["Lanes", "chosen", "hand_on_waits", "that_wait"]

_WAITS = re.compile(r"waits-(\d+)")


def hand_on_waits(items: Iterable[pytest.Item]) -> None:
    """Name the group of each test that is marked `waits`, with its seconds."""
    for item in items:
        mark = item.get_closest_marker("waits")
        if mark is None:
            continue
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(re.sub(r"\W+", "-", item.name)))
        item.add_marker(pytest.mark.xdist_group(f"waits-{mark.args[0]}"))


def _seconds(group: str) -> int:
    """How long the tests of a group wait in seconds, 0 if they compute."""
    found = _WAITS.search(group)
    return int(found[1]) if found else 0


def that_wait(groups: Iterable[str]) -> list[str]:
    """Those of the groups that wait, the longest first."""
    return sorted(filter(_seconds, groups), key=_seconds, reverse=True)


def chosen(groups: Iterable[str], waits: list[str], *, is_to_wait: bool) -> str:
    """The next group of a worker: one of its kind while there is any."""
    if waits and is_to_wait:
        return waits[0]
    others = (group for group in groups if group not in waits)
    return next(others, None) or waits[0]


class Lanes(LoadGroupScheduling):  # type: ignore[misc]
    """The first half of the workers takes waiting tests, the others compute."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        waits = [group for group in self._that_wait if group in self.workqueue]
        is_to_wait = self.nodes.index(node) < len(self.nodes) // 2
        self.workqueue.move_to_end(chosen(self.workqueue, waits, is_to_wait=is_to_wait), last=False)
        super()._assign_work_unit(node)

    @cached_property
    def _that_wait(self) -> list[str]:
        return that_wait(self.workqueue)  # asked first when all of them are there
