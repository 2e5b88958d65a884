"""One batch: called whole, and in ever smaller halves where some of its rows are bad.

When a batch fails because of some of its rows, they are found by bisection: each half is tried alone,
down to single messages, and only those that fail alone have failed. A failure that says nothing
about the rows (the database is away) fails all that are left at once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hopback.policy.batching import halves
from hopback.policy.outcome import Park
from hopback.policy.rules import MENU, outcome_of
from hopback.runtime.answer import DONE, Answer
from hopback.runtime.running import answer_for, is_being_cancelled

if TYPE_CHECKING:
    from hopback.runtime.batch import BatchHandler

__all__ = ["Isolating"]


@dataclass(slots=True)
class Isolating:
    """Calls a batch handler and finds an answer for each payload; `splits` tells how many halvings."""

    handler: BatchHandler
    splits: int = field(default=0, init=False)

    async def answers(self, payloads: list[Any]) -> list[Answer]:
        """An answer for each payload, in order."""
        if not payloads:
            return []
        try:
            # A copy: what the handler does to its list must not reach the halves.
            async with asyncio.timeout(self.handler.options.deadline):
                returned = await self.handler.call(list(payloads))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                raise
            return await self._after_failure(payloads, error)
        return self._matched(returned, len(payloads))

    async def _after_failure(self, payloads: list[Any], error: BaseException) -> list[Answer]:
        if len(payloads) == 1 or not self._isolates(error):
            return [answer_for(error, self.handler.options.rules)] * len(payloads)
        self.splits += 1
        first, second = halves(payloads)
        return await self.answers(list(first)) + await self.answers(list(second))

    def _isolates(self, error: BaseException) -> bool:
        """Whether to look for bad rows; a predicate that raises has said nothing."""
        try:
            return isinstance(error, Exception) and bool(self.handler.options.isolates(error))
        except Exception:
            return False

    def _matched(self, returned: object, size: int) -> list[Answer]:
        """Nothing means all done; otherwise one outcome for each message, in order."""
        if returned is None:
            return [DONE] * size
        if not isinstance(returned, list | tuple) or len(returned) != size:
            expected = f"nothing, or a list of {size} of: {MENU}"
            reason = f"the batch handler returned {_told(returned)}; expected {expected}"
            return [Answer(Park(reason))] * size
        return [self._answer(one) for one in returned]

    def _answer(self, one: object) -> Answer:
        """An exception in the list stands for itself."""
        if one is None:
            return DONE
        if isinstance(one, Exception):
            return answer_for(one, self.handler.options.rules)
        return Answer(outcome_of(one))


def _told(returned: object) -> str:
    name = type(returned).__name__
    return f"a {name} of {len(returned)}" if isinstance(returned, list | tuple) else name
