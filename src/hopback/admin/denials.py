"""Refused changes in the audit: one row at once, then a count, so that nobody can fill it.

Within a window of a minute an address of strangers gets one row, somebody known gets a few. What comes
after that is counted, and the count is one more row when the window is over. The audit stays
append-only: no row is ever changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from hopback.clock import Clock

__all__ = ["Denial", "Denials"]

_WINDOW_S = 60.0  # short enough that an attack is seen while it goes on
_ROWS_OF_A_STRANGER = 1
_ROWS_OF_A_CALLER = 20  # somebody known who tries several things is worth reading in full
_MOST_WINDOWS = 100  # at most 200 rows a minute, from however many addresses
_ELSEWHERE = ""


@dataclass(frozen=True, slots=True)
class Denial:
    """One refused change: who was refused from which address, of which queue, and the rest."""

    caller: str
    """The id of somebody known; empty for a stranger."""
    name: str
    address: str
    queue: str
    details: Mapping[str, object]


@dataclass(slots=True)
class _Window:
    """What one caller, or one address of strangers, was refused since it began."""

    begun: float
    first: Denial
    rows: int = 0
    counted: int = 0


class Denials:
    """Decides which refusals are rows; `write` puts one into the audit."""

    def __init__(self, clock: Clock, write: Callable[[Denial], Awaitable[None]]) -> None:
        self._clock = clock
        self._write = write
        self._windows: dict[str, _Window] = {}

    async def add(self, denial: Denial) -> None:
        """Write it down, or count it."""
        await self.flush()
        known = bool(denial.caller)
        key = denial.caller or f"address {denial.address}"
        if key not in self._windows and len(self._windows) >= _MOST_WINDOWS:
            key = _ELSEWHERE
        window = self._windows.setdefault(key, _Window(self._clock.now(), denial))
        if window.rows < (_ROWS_OF_A_CALLER if known and key else _ROWS_OF_A_STRANGER):
            window.rows += 1
            await self._write(denial)
        else:
            window.counted += 1

    async def flush(self, *, everything: bool = False) -> None:
        """Write the counts of the windows that are over, or of all when the service ends."""
        now = self._clock.now()
        over = [
            key
            for key, window in self._windows.items()
            if everything or not 0 <= now - window.begun < _WINDOW_S
        ]
        for key in over:
            window = self._windows.pop(key)
            if window.counted:
                first = window.first
                details = {"times": window.counted, "seconds": round(now - window.begun)}
                several = key == _ELSEWHERE
                await self._write(
                    Denial(
                        first.caller if not several else "",
                        first.name if not several else "nobody",
                        first.address if not several else "several addresses",
                        "",
                        {**details, "code": "repeated"},
                    )
                )
