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

_PERIOD_S = 60.0  # seconds per count, so that the audit shows an attack while it lasts
_ROWS_OF_A_STRANGER = 1  # rows per period for unauthenticated requests
_ROWS_OF_A_CALLER = 20  # rows per period of an authenticated caller
_MOST_PERIODS = 100  # callers and addresses counted separately: at most 200 rows per minute
_ELSEWHERE = ""


@dataclass(frozen=True, slots=True)
class Denial:
    """One refused change."""

    caller: str
    """The id of the caller, or an empty string if it is not authenticated."""
    name: str
    address: str
    queue: str
    details: Mapping[str, object]


@dataclass(slots=True)
class _DenialPeriod:
    """A caller's refusals since `begun`. Unauthenticated callers are counted by address."""

    begun: float
    first: Denial
    rows: int = 0
    counted: int = 0


class Denials:
    """Decides which refusals become rows of the audit. `write` adds one."""

    def __init__(self, clock: Clock, write: Callable[[Denial], Awaitable[None]]) -> None:
        self._clock = clock
        self._write = write
        self._periods: dict[str, _DenialPeriod] = {}

    async def add(self, denial: Denial) -> None:
        """Write the refusal to the audit, or count it."""
        await self.flush()
        known = bool(denial.caller)
        key = denial.caller or f"address {denial.address}"
        if key not in self._periods and len(self._periods) >= _MOST_PERIODS:
            key = _ELSEWHERE
        period = self._periods.setdefault(key, _DenialPeriod(self._clock.now(), denial))
        if period.rows < (_ROWS_OF_A_CALLER if known and key else _ROWS_OF_A_STRANGER):
            period.rows += 1
            await self._write(denial)
        else:
            period.counted += 1

    async def flush(self, *, everything: bool = False) -> None:
        """Write the counts of the periods that are over, or of all periods when the service ends."""
        now = self._clock.now()
        over = [
            key
            for key, period in self._periods.items()
            if everything or not 0 <= now - period.begun < _PERIOD_S
        ]
        for key in over:
            period = self._periods.pop(key)
            if period.counted:
                first = period.first
                details = {"times": period.counted, "seconds": round(now - period.begun)}
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
    except Exception as error:  # any failure to write the audit
        _LOG.warning("a refusal could not be written to the audit", exc_info=error)
