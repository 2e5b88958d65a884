"""The books. All entries are sorted into accounts. There is one account for each message in each
queue that should receive it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hopback.topology.expand import retry_queues
from tests.faults.ledger.entry import Kind
from tests.faults.ledger.order import Fate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from hopback.topology import Topology
    from hopback.topology.plan import Plan
    from tests.faults.ledger.entry import Entry

__all__ = [
    "BROKER",
    "CONNECTION",
    "OPERATOR",
    "PROCESS",
    "Account",
    "Books",
    "Broken",
    "Run",
    "keep_books",
]

PROCESS, CONNECTION, BROKER, OPERATOR = "process", "connection", "broker", "operator"
"""The scopes of a fault. They determine which deliveries it may duplicate."""

_FOREVER = float("inf")
_SAID = {Kind.DONE, Kind.FAILED, Kind.HOPELESS, Kind.SNOOZED}
_SETTLED = {Kind.RETRIED, Kind.PARKED}
_LEFT = {Kind.FAILED, Kind.HOPELESS, Kind.SNOOZED}


@dataclass(slots=True)
class Run:
    """A call of a handler."""

    who: str
    begun: float
    attempt: int
    again: bool
    redrives: int = 0
    ended: float = _FOREVER
    said: Kind | None = None
    settled: float = _FOREVER

    @property
    def open_until(self) -> float:
        """The time after which a fault can't cause a redelivery any more."""
        return self.ended if self.said is Kind.DONE else self.settled


@dataclass(slots=True)
class Account:
    """The history of a message in a queue."""

    message: str
    queue: str
    fate: Fate = Fate.DONE
    key: str = "-"
    sent: int = 0
    first_sent: float = _FOREVER
    confirmed: bool = False
    expected: bool = False
    runs: list[Run] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    discarded: int = 0
    altered: int = 0

    @property
    def is_done(self) -> bool:
        """Whether a handler has succeeded."""
        return any(run.said is Kind.DONE for run in self.runs)

    @property
    def redriven(self) -> int:
        """The number of re-drives according to the header."""
        return max((run.redrives for run in self.runs), default=0)


@dataclass(slots=True)
class Broken:
    """A fault with its start and end."""

    begin: float
    end: float
    scope: str
    who: str
    name: str

    def touches(self, account: Account, slack: float) -> bool:
        """Return True if the fault may have duplicated the message of the account."""
        if self.scope == BROKER:
            last = max((run.begun for run in account.runs), default=_FOREVER)
            return account.first_sent <= self.end + slack and self.begin <= last + slack
        if self.scope == OPERATOR:
            return account.redriven > 0
        return any(self._meets(run, slack) for run in account.runs)

    def met(self, account: Account, slack: float) -> int:
        """Return how many deliveries of the account were unsettled during the fault."""
        return sum(self._meets(run, slack) for run in account.runs)

    def _meets(self, run: Run, slack: float) -> bool:
        mine = self.who in ("*", run.who) or run.who.startswith(f"{self.who}.")
        return mine and run.begun <= self.end + slack and self.begin <= run.open_until + slack


@dataclass(slots=True)
class Books:
    """All accounts, and all faults that happened."""

    plans: dict[str, Plan]
    accounts: dict[tuple[str, str], Account] = field(default_factory=dict)
    faults: list[Broken] = field(default_factory=list)
    deleted: list[tuple[float, str]] = field(default_factory=list)
    """The times and names of queues that an operator has deleted."""
    samples: list[Entry] = field(default_factory=list)
    slack: float = 1.0
    """The time that an ack may need to reach the broker's disk, in seconds."""

    def account(self, message: str, queue: str) -> Account:
        """Return the account of a message in a queue. It is created if it does not exist."""
        found = self.accounts.get((message, queue))
        if found is None:
            found = self.accounts[message, queue] = Account(message, queue)
        return found

    def family(self, queue: str) -> dict[str, str]:
        """Return the queues that a message of this queue may be in, with their roles."""
        plan = self.plans[queue]
        waiting = {name: "retry" for name, _ in retry_queues(plan)}
        return {queue: "main", plan.parking.queue: "parked", **waiting}

    def went_along(self, account: Account) -> bool:
        """Return True if the message may have been deleted with a queue by an operator."""
        family = self.family(account.queue)
        return any(
            _was_in(account, family[queue], at + self.slack)
            for at, queue in self.deleted
            if queue in family
        )

    def is_explained(self, account: Account) -> bool:
        """Return True if a fault or a repeated publish explains why there are copies of the
        message.
        """
        return account.sent > 1 or any(f.touches(account, self.slack) for f in self.faults)

    def copies(self, account: Account) -> int:
        """Return how many copies faults may have created, which is one for each delivery that they
        affected.
        """
        met = (
            max(1, fault.met(account, self.slack))
            for fault in self.faults
            if fault.touches(account, self.slack)
        )
        return sum(met)

    @property
    def sent(self) -> int:
        """The number of messages that producers have published."""
        return len({a.message for a in self.accounts.values() if a.sent})

    @property
    def confirmed(self) -> int:
        """The number of messages that the broker has confirmed to their producers."""
        return len({a.message for a in self.accounts.values() if a.confirmed})

    @property
    def runs(self) -> int:
        """The number of calls of handlers."""
        return sum(len(account.runs) for account in self.accounts.values())


def keep_books(entries: Iterable[Entry], topology: Topology, *, slack: float = 1.0) -> Books:
    """Create the books from entries, which are sorted by their time."""
    books = Books({plan.queue: plan for plan in topology.plans}, slack=slack)
    destinations: dict[str, list[str]] = {}
    confirmed: set[str] = set()
    for entry in sorted(entries, key=_when):
        match entry.kind:
            case Kind.SENT:
                destinations.setdefault(entry.message, _open_accounts(books, entry))
            case Kind.CONFIRMED:
                confirmed.add(entry.message)
            case Kind.FAULT:
                books.faults.append(Broken(entry.at, entry.at, entry.queue, entry.who, entry.note))
            case Kind.HEALED:
                _heal(books, entry)
            case Kind.GONE:
                books.deleted.append((entry.at, entry.queue))
            case Kind.SAMPLE:
                books.samples.append(entry)
            case Kind.FOUND:
                _place(books, entry, destinations)
            case _:
                _book(books.account(entry.message, entry.queue), entry)
    for message in confirmed:
        for queue in destinations.get(message, ()):
            books.account(message, queue).confirmed = True
    return books


def _was_in(account: Account, kind: str, at: float) -> bool:
    """Return True if the message may have been in its queue of this role at this time.

    All messages may have been in the main queue, but only failed ones in the others.
    """
    if kind == "main":
        return account.first_sent <= at
    return any(run.said in _LEFT and run.ended <= at for run in account.runs)


def _when(entry: Entry) -> float:
    return entry.at


def _open_accounts(books: Books, entry: Entry) -> list[str]:
    to, _, key = entry.note.partition(";")
    queues = to.split(",")
    for at, queue in enumerate(queues):
        account = books.account(entry.message, queue)
        account.expected = True
        account.sent += 1
        account.first_sent = min(account.first_sent, entry.at)
        account.fate = Fate(entry.queue) if at == 0 else Fate.DONE
        account.key = key
    return queues


def _heal(books: Books, entry: Entry) -> None:
    for fault in reversed(books.faults):
        if fault.name == entry.note and fault.who == entry.who:
            fault.end = entry.at
            return


def _place(books: Books, entry: Entry, destinations: dict[str, list[str]]) -> None:
    """Assign a message that was found at the end to the account that may have it in this queue."""
    mine = (q for q in destinations.get(entry.message, ()) if entry.queue in books.family(q))
    queue = next(mine, None)
    account = books.account(entry.message, entry.queue if queue is None else queue)
    account.found.append(entry.queue)


def _book(account: Account, entry: Entry) -> None:
    if entry.kind is Kind.BEGUN:
        again, _, redrives = entry.note.partition(";")
        run = Run(entry.who, entry.at, entry.attempt, again == "again", int(redrives or 0))
        account.runs.append(run)
    elif entry.kind in _SAID:
        for run in _latest(account, entry, lambda one: one.said is None):
            run.said, run.ended = entry.kind, entry.at
    elif entry.kind in _SETTLED:
        for run in _latest(account, entry, lambda one: one.settled == _FOREVER):
            run.settled = entry.at
    elif entry.kind is Kind.DISCARDED:
        account.discarded += 1
    elif entry.kind is Kind.ALTERED:
        account.altered += 1


def _latest(account: Account, entry: Entry, wanted: Callable[[Run], bool]) -> Iterator[Run]:
    """Yield the last run of this process and attempt that does not have the entry yet."""
    for run in reversed(account.runs):
        if run.who == entry.who and run.attempt == entry.attempt and wanted(run):
            yield run
            return
