"""A ledger of message copies from the journal of the embedded broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.broker.embedded import EventKind, Loss

if TYPE_CHECKING:
    from hopback.broker.embedded import Event, NodeSnapshot

__all__ = ["Ledger"]


class Ledger:
    """Records every event. An unexpected event is an AssertionError."""

    def __init__(self) -> None:
        self.living: dict[int, str] = {}
        """Each copy that the broker should contain, with its queue."""
        self.done: list[int] = []
        self.losses: list[Loss] = []
        self._dying: set[int] = set()
        self._moved: set[int] = set()
        self._unsettled_publishes: set[int] = set()

    def book(self, event: Event) -> None:
        match event.kind:
            case EventKind.PUBLISHED:
                self._unsettled_publishes.add(event.origin)
            case EventKind.ENQUEUED:
                assert event.copy not in self.living
                self.living[event.copy] = event.queue
                self._moved.add(event.parent)
                self._dying.discard(event.parent)
                self._unsettled_publishes.discard(event.origin)
            case EventKind.RETURNED | EventKind.REFUSED:
                self._unsettled_publishes.discard(event.origin)
            case EventKind.DELIVERED | EventKind.DELAYED:
                assert self.living[event.copy] == event.queue
            case EventKind.REQUEUED | EventKind.HELD:
                self.living.setdefault(event.copy, event.queue)
                self._dying.discard(event.copy)
            case EventKind.ACKED:
                del self.living[event.copy]
                self.done.append(event.origin)
            case EventKind.DIED:
                del self.living[event.copy]
                self._dying.add(event.copy)
            case EventKind.FORWARDED:
                del self.living[event.copy]
                assert event.copy in self._moved
            case EventKind.DROPPED:
                self._drop(event)

    def _drop(self, event: Event) -> None:
        self.losses.append(Loss(event.reason))
        if event.copy:
            # A dead letter with several targets may be dropped for each of them.
            known = event.copy in self._dying or event.reason in (Loss.CYCLE, Loss.FULL)
            assert self.living.pop(event.copy, None) is not None or known
            self._dying.discard(event.copy)
        self._unsettled_publishes.discard(event.origin)

    def balance(self, found: NodeSnapshot) -> None:
        """Compare the ledger with the queues of the node."""
        assert self._unsettled_publishes == set()
        assert self._dying == set()
        there = {message.copy: queue.name for queue in found.queues for message in queue.messages}
        assert there == self.living
        assert len(there) == sum(len(queue.messages) for queue in found.queues)
