"""The results of blocks. They are stored when a block ends, so that an interrupted run can
continue.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tests.faults.tally import Part, Tally

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["Result", "Results"]


@dataclass
class Result:
    """The result of a block. `error` is set if the block did not finish."""

    block: str
    parts: list[Part] = field(default_factory=list)
    checks: list[tuple[str, str, str]] = field(default_factory=list)
    error: str = ""
    day: str = field(default_factory=lambda: f"{datetime.now(UTC):%Y-%m-%d}")


class Results:
    """A file with one result per line. If a block has several results, the last one counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def append(self, result: Result) -> None:
        """Append a result. It is on the disk when this returns."""
        with self._path.open("ab") as lines:
            # Start a new line first, because the last one may be incomplete.
            lines.write(b"\n" + json.dumps(asdict(result)).encode() + b"\n")
            lines.flush()
            os.fsync(lines.fileno())

    def read(self) -> dict[str, Result]:
        """Return the last result of each block. Incomplete lines are ignored."""
        found: dict[str, Result] = {}
        lines = self._path.read_bytes().splitlines() if self._path.exists() else []
        for line in lines:
            try:
                kept: dict[str, Any] = json.loads(line)
            except ValueError:
                continue
            parts = [Part(**part) for part in kept.pop("parts")]
            checks = [(what, much, verdict) for what, much, verdict in kept.pop("checks")]
            found[kept["block"]] = Result(**kept, parts=parts, checks=checks)
        return found

    def done(self) -> set[str]:
        """Return the names of the blocks that have finished."""
        return {block for block, result in self.read().items() if not result.error}

    def tally(self, order: Iterable[str]) -> Tally:
        """Sum up the results. The parts are sorted in the given order."""
        tally = Tally()
        ranks = {part: rank for rank, part in enumerate(order)}
        found = self.read().values()
        for result in sorted(found, key=lambda one: ranks.get(one.block.split()[0], len(ranks))):
            tally.days.add(result.day)
            for part in result.parts:
                tally.add(part)
            tally.checks += result.checks
            if result.error:
                tally.checks.append((result.block, result.error, "failed: did not finish"))
        return tally
