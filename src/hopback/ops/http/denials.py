"""Refused changes in the audit: some as rows, the others counted."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.ops.contract.requests import Who

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from hopback.clock import Clock
    from hopback.ops.operations import Operations

_LOG = logging.getLogger("hopback.ops.http")

_WINDOW_S = 60.0  # seconds of one count: an attack shows in the audit while it lasts
_ROWS_OF_A_STRANGER = 1  # rows per window without authentication, which anyone can cause
_ROWS_OF_A_CALLER = 20  # rows per window of an authenticated caller
_MOST_WINDOWS = 100  # callers and addresses counted apart: at most 200 rows a minute
_ELSEWHERE = ""


@dataclass(frozen=True, slots=True)
class Denial:
    """One refused change."""

    caller: str
    """The id of the caller, empty if it is not authenticated."""
    name: str
    address: str
    queue: str
    details: Mapping[str, object]


@dataclass(slots=True)
class _DenialWindow:
    """The refusals of one caller, or of one address without authentication, since `begun`."""

    begun: float
    first: Denial
    rows: int = 0
    counted: int = 0


class Denials:
    """Decides which refusals become rows of the audit. `write` adds one."""

    def __init__(self, clock: Clock, write: Callable[[Denial], Awaitable[None]]) -> None:
        self._clock = clock
        self._write = write
        self._windows: dict[str, _DenialWindow] = {}

    async def add(self, denial: Denial) -> None:
        """Write the refusal to the audit, or count it."""
        await self.flush()
        known = bool(denial.caller)
        key = denial.caller or f"address {denial.address}"
        if key not in self._windows and len(self._windows) >= _MOST_WINDOWS:
            key = _ELSEWHERE
        window = self._windows.setdefault(key, _DenialWindow(self._clock.now(), denial))
        if window.rows < (_ROWS_OF_A_CALLER if known and key else _ROWS_OF_A_STRANGER):
            window.rows += 1
            await self._write(denial)
        else:
            window.counted += 1

    async def flush(self, *, everything: bool = False) -> None:
        """Write the counts of the windows that are over, or of all windows when the service ends."""
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


async def write_denial(operations: Operations, denial: Denial) -> None:
    """Write a refused change to the audit. A failure is only logged."""
    try:
        await operations.note(
            "access.denied",
            by=Who(denial.caller, denial.name),
            queue=denial.queue,
            result="refused",
            details={"address": denial.address, **denial.details},
        )
    except Exception as error:  # whatever keeps the audit from being written
        _LOG.warning("a refusal could not be written to the audit", exc_info=error)
