"""What stands in a queue of the fluid model: slices in order of arrival, each with its mixture."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.rehearse.stream import SAME, TINY

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Backlog"]


@dataclass(slots=True)
class _Slice:
    """A part of a backlog: its amount, its mixture of classes, and when its ends came in."""

    amount: float
    parts: list[float]
    first_in: float
    last_in: float


class Backlog:
    """A queue's messages, the oldest first; `amount` is how many they are."""

    __slots__ = ("_slices", "amount")

    def __init__(self) -> None:
        self._slices: deque[_Slice] = deque()
        self.amount: float = 0.0

    @property
    def head(self) -> float:
        """How many are alike at its head: so many can leave before the mixture changes."""
        return self._slices[0].amount

    def oldest(self, now: float) -> float:
        """How long (seconds) the foremost has stood here."""
        return max(0.0, now - self._slices[0].first_in) if self._slices else 0.0

    def clear(self) -> None:
        """Nothing waits any more."""
        self.amount = 0.0
        self._slices.clear()

    def take_in(self, rates: Sequence[float], inflow: float, begin: float, span: float) -> None:
        """Messages join its end at these rates, whose sum is `inflow`, for a span from `begin` on."""
        amount, end = inflow * span, begin + span
        parts = [rate / inflow for rate in rates]
        last = self._slices[-1] if self._slices else None
        self.amount += amount
        if last is None or any(abs(a - b) > SAME for a, b in zip(last.parts, parts, strict=True)):
            self._slices.append(_Slice(amount, parts, begin, end))
            return
        whole = last.amount + amount
        last.parts = [
            (a * last.amount + b * amount) / whole for a, b in zip(last.parts, parts, strict=True)
        ]
        last.amount, last.last_in = whole, end

    def take_out(self, wanted: float, out: list[float]) -> float:
        """Move so much from its head into `out`, by class; how much it was."""
        left = wanted
        while left > 0 and self._slices:
            head = self._slices[0]
            taken = min(left, head.amount)
            for one, part in enumerate(head.parts):
                out[one] += part * taken
            if head.amount - taken <= TINY:
                self._slices.popleft()
            else:
                gone = taken / head.amount
                head.first_in += (head.last_in - head.first_in) * gone
                head.amount -= taken
            left -= taken
        # Of millions that came in and left, the sum is off by more than TINY; no slice means none.
        self.amount = max(0.0, self.amount - (wanted - left)) if self._slices else 0.0
        return wanted - left
