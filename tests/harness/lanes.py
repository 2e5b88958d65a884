"""Which worker of a test run takes which tests: half of them wait while the others compute.

Some tests spend their time waiting for what a broker does by the clock, and hardly compute. Were they
all begun at once, two cores would stand idle, and at the end everybody would want to compute. So half
of the workers take tests marked `waits`, the longest first, as long as there are any, and the other
half take the rest.

The worker that collects the tests knows their marks, and the process that distributes them only their
names: the mark is handed on in the name of the group, which pytest-xdist appends to the name of a test.
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

__all__ = ["Lanes", "hand_on_waits"]

_WAITS = re.compile(r"waits-(\d+)")


def hand_on_waits(items: Iterable[pytest.Item]) -> None:
    """Name the group of each test that is marked `waits`, with its seconds."""
    for item in items:
        mark = item.get_closest_marker("waits")
        if mark is None:
            continue
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(re.sub(r"\W+", "-", item.nodeid)))
        item.add_marker(pytest.mark.xdist_group(f"waits-{mark.args[0]}"))


def _seconds(group: str) -> int:
    """For how long the tests of a group wait; 0 if they compute."""
    found = _WAITS.search(group)
    return int(found[1]) if found else 0


class Lanes(LoadGroupScheduling):  # type: ignore[misc]
    """Gives a worker of each half what it is there for, and anything when there is no more of that."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        waits = [group for group in self._that_wait if group in self.workqueue]
        is_to_wait = self.nodes.index(node) < len(self.nodes) // 2
        others = (group for group in self.workqueue if group not in waits)
        chosen = waits[0] if waits and is_to_wait else next(others, waits[0] if waits else None)
        if chosen is not None:
            self.workqueue.move_to_end(chosen, last=False)
        super()._assign_work_unit(node)

    @cached_property
    def _that_wait(self) -> list[str]:
        """The groups that wait, the longest first. Asked when all of them are still there."""
        return sorted(filter(_seconds, self.workqueue), key=_seconds, reverse=True)
