"""Where alerts and the messages about them are kept: the protocol, and a book for one process.

`hopback.store.admin.AlertTable` is one in SQL. Alerts and notices are documents; `read_alerts` reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from hopback.ops.alerts.rules import Alert, AlertList, AlertState, AlertTargetView
from hopback.ops.contract.codec import from_json
from hopback.ops.contract.values import Moment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WaitingNotice: TypeAlias = "tuple[int, str, str, float, int]"
"""A notice that is to be sent: its number, target, document, when it was made, attempts so far."""


class AlertBook(Protocol):
    """Alerts, and an outbox of what is to be told of them.

    Only who has the lease changes anything: LeaseLost tells everybody else. What `save` writes, it writes
    wholly or not at all.
    """

    async def lead(self, owner: str, now: float, seconds: float) -> bool:
        """Take the lease, or renew it; False if somebody else has it."""

    async def step_down(self, owner: str) -> None:
        """Give the lease back, so that another need not wait for its end."""

    async def all(self) -> dict[str, str]:
        """Every document, by the id of its alert."""

    async def save(
        self,
        owner: str,
        now: float,
        *,
        documents: Mapping[str, str],
        forgotten: Sequence[str] = (),
        notices: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Write documents by id, delete ids, put notices (target, document) into the outbox."""

    async def next_notices(self, now: float) -> tuple[WaitingNotice, ...]:
        """The first that waits of each target, if its time has come."""

    async def ended(self, owner: str, number: int, now: float, error: str = "") -> None:
        """A notice was taken, or is given up with this error."""

    async def failed(self, owner: str, number: int, now: float, due_at: float, error: str) -> None:
        """A notice was not taken; to be tried again then."""

    async def outboxes(self) -> dict[str, tuple[int, float | None, str]]:
        """By target: how many wait, when one was last taken, what went wrong since."""

    async def forget(self, before: float) -> None:
        """Delete notices that ended before then."""


class MemoryAlertBook:
    """A book for one process; it ends with it, and nobody else can lead."""

    def __init__(self) -> None:
        self._documents: dict[str, str] = {}
        self._waiting: dict[int, tuple[WaitingNotice, float]] = {}
        self._outboxes: dict[str, tuple[float | None, str]] = {}
        self._numbers = 0

    async def lead(self, owner: str, now: float, seconds: float) -> bool:
        """Nobody else can."""
        return True

    async def step_down(self, owner: str) -> None:
        """Nobody waits for it."""

    async def all(self) -> dict[str, str]:
        """Every document, by the id of its alert."""
        return dict(self._documents)

    async def save(
        self,
        owner: str,
        now: float,
        *,
        documents: Mapping[str, str],
        forgotten: Sequence[str] = (),
        notices: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Write documents by id, delete ids, put notices (target, document) into the outbox."""
        self._documents |= documents
        for each in forgotten:
            self._documents.pop(each, None)
        for target, document in notices:
            self._numbers += 1
            self._waiting[self._numbers] = (self._numbers, target, document, now, 0), now

    async def next_notices(self, now: float) -> tuple[WaitingNotice, ...]:
        """The first that waits of each target, if its time has come."""
        first: dict[str, tuple[WaitingNotice, float]] = {}
        for notice, due_at in self._waiting.values():
            first.setdefault(notice[1], (notice, due_at))
        return tuple(notice for notice, due_at in first.values() if due_at <= now)

    async def ended(self, owner: str, number: int, now: float, error: str = "") -> None:
        """A notice was taken, or is given up with this error."""
        (_, target, *_), _ = self._waiting.pop(number)
        sent_at, _ = self._outboxes.get(target, (None, ""))
        self._outboxes[target] = (sent_at if error else now, error)

    async def failed(self, owner: str, number: int, now: float, due_at: float, error: str) -> None:
        """A notice was not taken; to be tried again then."""
        (number, target, document, made_at, attempts), _ = self._waiting[number]
        self._waiting[number] = (number, target, document, made_at, attempts + 1), due_at
        self._outboxes[target] = (self._outboxes.get(target, (None, ""))[0], error)

    async def outboxes(self) -> dict[str, tuple[int, float | None, str]]:
        """By target: how many wait, when one was last taken, what went wrong since."""
        targets = [notice[1] for notice, _ in self._waiting.values()]
        return {
            name: (targets.count(name), *self._outboxes.get(name, (None, "")))
            for name in {*targets, *self._outboxes}
        }

    async def forget(self, before: float) -> None:
        """What ended is not kept here anyway."""


async def read_alerts(book: AlertBook) -> tuple[Alert, ...]:
    """Every alert that is known."""
    return tuple(from_json(Alert, text) for text in (await book.all()).values())


_ORDER = (AlertState.FIRING, AlertState.PENDING, AlertState.RESOLVED)


async def list_alerts(book: AlertBook, kinds: Mapping[str, str] | None = None) -> AlertList:
    """What operators see: those that fire first, the newest first; `kinds` names the targets there are."""
    found = sorted(
        await read_alerts(book),
        key=lambda one: (_ORDER.index(one.state), -(one.resolved_at or one.fired_at or one.since)),
    )
    outboxes = await book.outboxes()
    targets = tuple(
        AlertTargetView(name, (kinds or {}).get(name, ""), waiting, Moment.known(sent_at), problem)
        for name in (outboxes if kinds is None else kinds)
        for waiting, sent_at, problem in (outboxes.get(name, (0, None, "")),)
    )
    return AlertList(tuple(found), len(found), targets=targets)
