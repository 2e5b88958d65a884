"""`tx`: publishes and settlements that wait for a commit. Batching, as in RabbitMQ, not atomic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.broker.embedded.refusal import Refusal
from hopback.renamed import OldNameLookup, old_names

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ChannelTransaction"]

_MOST_BYTES = 64 * 1024 * 1024
"""Of one open transaction; it stands in memory beside the queues, which have a limit of their own."""
_STEP_BYTES = 1000
"""What a step takes beside its body, so that empty messages and acks count too."""


class ChannelTransaction:
    """What a channel has said since its last commit."""

    __slots__ = ("_bytes", "_steps")

    def __init__(self) -> None:
        self._steps: list[Callable[[], None]] = []
        self._bytes = 0

    def add(self, step: Callable[[], None], size: int = 0) -> Refusal | None:
        """Do it at the commit; a refusal where too much waits for one already."""
        self._bytes += size + _STEP_BYTES
        if self._bytes > _MOST_BYTES:
            return Refusal(506, "RESOURCE_ERROR - too much in one transaction; commit more often")
        self._steps.append(step)
        return None

    def commit(self) -> None:
        """Do all of it, in order."""
        steps, self._steps, self._bytes = self._steps, [], 0
        for step in steps:
            step()

    def roll_back(self) -> None:
        """Forget it; deliveries stay unsettled."""
        self._steps, self._bytes = [], 0


__getattr__: OldNameLookup = old_names(__name__, {"Transaction": "ChannelTransaction"})
