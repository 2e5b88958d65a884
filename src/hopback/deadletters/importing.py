"""Publishing exported messages again, each confirmed."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Imported"]


@dataclass(frozen=True, slots=True)
class Imported:
    """How far an import came.

    `lines` is how many lines from the beginning are confirmed or empty, without a gap: to go on,
    skip as many. `problem` says what stopped it; empty if nothing did.
    """

    lines: int
    published: int
    problem: str = ""
