"""Record refused changes in the audit. Some of them are written as entries, and the others are counted."""

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

# seconds after which a count is written, so that an attack appears in the audit while it happens
_PERIOD_S = 60.0
_ROWS_OF_A_STRANGER = 1  # entries per period for unauthenticated requests
_ROWS_OF_A_CALLER = 20  # entries per period for an authenticated caller
# callers and addresses with their own count, which results in up to 200 entries per minute
_MOST_PERIODS = 100
_ELSEWHERE = ""


@dataclass(frozen=True, slots=True)
class Denial:
    """A change that was refused."""

    caller: str
    """The id of the caller. It is empty if the caller is not authenticated."""
    name: str
    address: str
    queue: str
    details: Mapping[str, object]


@dataclass(slots=True)
class _DenialPeriod:
    """The refusals for a caller since `begun`. Unauthenticated callers are identified by their address."""

    begun: float
    first: Denial
    rows: int = 0
    counted: int = 0


class Denials:
    """Write refusals to the audit by calling `write`, or count them if there are too many."""

    def __init__(self, clock: Clock, write: Callable[[Denial], Awaitable[None]]) -> None:
        self._clock = clock
        self._write = write
        self._periods: dict[str, _DenialPeriod] = {}

    async def add(self, denial: Denial) -> None:
        """Write a refusal to the audit, or count it."""
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
        """Write the counts of all periods that have ended, or of all periods if `everything` is True."""
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
    """Write a refused change to the audit. If this fails, the failure is only logged."""
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
