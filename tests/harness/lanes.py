"""Distribute tests to workers so that half of the workers run tests that wait.

Some tests wait for timers of a broker and hardly use the CPU. If all of them were started at once,
two cores would first be idle and later be overloaded. This is why half of the workers run the tests
that are marked with `waits`, longest first. The others run the remaining tests. The marks are only
known to the worker that collects the tests, but the tests are distributed by a process that only
knows their names. Therefore the mark is added to the name of the group, which pytest-xdist appends
to the name of the test.
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
    """Add the seconds of the mark `waits` to the group of each test that has it."""
    for item in items:
        mark = item.get_closest_marker("waits")
        if mark is None:
            continue
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(re.sub(r"\W+", "-", item.name)))
        item.add_marker(pytest.mark.xdist_group(f"waits-{mark.args[0]}"))


def _seconds(group: str) -> int:
    """Return how many seconds the tests of a group wait, or 0 if they don't."""
    found = _WAITS.search(group)
    return int(found[1]) if found else 0


def that_wait(groups: Iterable[str]) -> list[str]:
    """Return the groups that wait, longest first."""
    return sorted(filter(_seconds, groups), key=_seconds, reverse=True)


def chosen(groups: Iterable[str], waits: list[str], *, is_to_wait: bool) -> str:
    """Return the next group for a worker. If there is one of its kind, this is preferred."""
    if waits and is_to_wait:
        return waits[0]
    others = (group for group in groups if group not in waits)
    return next(others, None) or waits[0]


class Lanes(LoadGroupScheduling):  # type: ignore[misc]
    """The first half of the workers runs the tests that wait, and the second half the others."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        waits = [group for group in self._that_wait if group in self.workqueue]
        is_to_wait = self.nodes.index(node) < len(self.nodes) // 2
        self.workqueue.move_to_end(chosen(self.workqueue, waits, is_to_wait=is_to_wait), last=False)
        super()._assign_work_unit(node)

    @cached_property
    def _that_wait(self) -> list[str]:
        return that_wait(self.workqueue)  # all groups are in the queue when this is first used
