"""Order per key: messages of one key are handled one after another, others beside them."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

__all__ = ["Lanes"]

T = TypeVar("T")


class Lanes(Generic[T]):
    """Items wait behind a running item of the same key; an item without key (None) never waits."""

    __slots__ = ("_busy", "_ready")

    def __init__(self) -> None:
        self._ready: deque[tuple[str | None, T]] = deque()
        self._busy: dict[str, deque[T]] = {}

    def __len__(self) -> int:
        return len(self._ready) + sum(map(len, self._busy.values()))

    @property
    def has_ready(self) -> bool:
        """Whether an item can be taken now."""
        return bool(self._ready)

    def offer(self, key: str | None, item: T) -> bool:
        """Add an item; True if it is ready to be taken, False if it waits behind its key."""
        if key is not None:
            waiting = self._busy.get(key)
            if waiting is not None:
                waiting.append(item)
                return False
            self._busy[key] = deque()
        self._ready.append((key, item))
        return True

    def take(self) -> tuple[str | None, T]:
        """The next item and its key; IndexError if none is ready."""
        return self._ready.popleft()

    def finished(self, key: str | None) -> bool:
        """An item of this key is finished; True if that made another one ready."""
        if key is None:
            return False
        waiting = self._busy[key]
        if not waiting:
            del self._busy[key]
            return False
        self._ready.append((key, waiting.popleft()))
        return True

    def clear(self) -> list[T]:
        """Take out everything that has not been taken, in order of arrival within each key."""
        left = [item for _, item in self._ready]
        for key, _ in self._ready:
            if key is not None:
                left.extend(self._busy.pop(key))
        for waiting in self._busy.values():
            left.extend(waiting)
            waiting.clear()
        self._ready.clear()
        return left
