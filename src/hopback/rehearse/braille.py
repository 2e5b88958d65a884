"""Charts of dots in a terminal: two across and four down in every character."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["braille_chart"]

_BASE = 0x2800  # Unicode's braille pattern without a dot
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Unicode's braille patterns: the bit of each dot, by row and column of its character."""


def braille_chart(values: Sequence[float], *, width: int, height: int, top: float) -> list[str]:
    """Lines of characters: the area under a curve, resampled to the width; `top` is its full height."""
    columns, rows = width * 2, height * 4
    cells = [[0] * width for _ in range(height)]
    for column, value in enumerate(_resampled(values, columns)):
        filled = 0 if top <= 0 else round(value / top * rows)
        if value > 0:
            filled = max(1, filled)  # what is there is shown, however little
        for dot in range(min(filled, rows)):
            row = rows - 1 - dot
            cells[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
    return ["".join(chr(_BASE + cell) for cell in line) for line in cells]


def _resampled(values: Sequence[float], columns: int) -> list[float]:
    """The largest value within each column: a peak is never lost."""
    count = len(values)
    found = []
    for column in range(columns):
        begin = column * count // columns
        end = max(begin + 1, (column + 1) * count // columns)
        found.append(max(values[begin:end]))
    return found
