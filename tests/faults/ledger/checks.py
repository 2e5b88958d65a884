"""The checkers: each reads the books and names every account in which one promise was broken."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.faults.ledger.entry import Kind
from tests.faults.ledger.order import Fate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faults.ledger.books import Account, Books, Run

__all__ = ["Finding", "Promise", "Verdict", "check_books"]

_FAILURES = (Kind.FAILED, Kind.HOPELESS)
_EARLY_S = 0.005
"""Two processes' clocks and a broker's timer agree to this much."""


class Promise(StrEnum):
    """A guarantee for every message that the broker confirmed to its producer."""

    LOST = "lost"
    """It was handled, is in its dead-letter queue, or was discarded on purpose."""
    STUCK = "stuck"
    """At the end no message is left in a main or retry queue."""
    STRAYED = "strayed"
    """It reached no queue but those it was sent to, and was parked only if its handler failed."""
    DUPLICATED = "duplicated"
    """It was handled twice only where a fault fell between its delivery and its settlement."""
    BEYOND = "beyond its plan"
    """It was handled no more often than its plan allows, and every attempt was counted."""
    EARLY = "early"
    """It did not return before its delay was over."""
    ORDER = "out of order"
    """Messages of one key came one after another, in the order in which they were sent."""
    ALTERED = "altered"
    """Its body, properties and headers are unchanged."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A promise that was broken, and where."""

    promise: Promise
    message: str
    queue: str
    text: str

    def __str__(self) -> str:
        return f"{self.promise}: message {self.message} of {self.queue}: {self.text}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of the checkers. `duplicates` are those explained by faults."""

    messages: int
    confirmed: int
    runs: int
    faults: dict[str, int]
    duplicates: int
    parked: int
    findings: tuple[Finding, ...]
    gone: int = 0
    """Accounts whose message went with a queue that an operator deleted."""

    def count(self, promise: Promise) -> int:
        """How often a promise was broken."""
        return sum(finding.promise is promise for finding in self.findings)

    def require(self) -> None:
        """AssertionError with the first findings, if there are any."""
        shown = "\n".join(str(finding) for finding in self.findings[:10])
        if self.findings:
            raise AssertionError(f"{len(self.findings)} promises broken, the first:\n{shown}")


def check_books(books: Books) -> Verdict:
    """Every checker on every account."""
    findings: list[Finding] = []
    duplicates = parked = gone = 0
    for account in books.accounts.values():
        findings += _check(account, books)
        extra = _surplus(account, books)
        duplicates += extra > 0
        parked += account.expected and _is_parked(account, books)
        gone += account.expected and _is_gone(account) and books.went_along(account)
    findings += _out_of_order(books)
    return Verdict(
        books.sent,
        books.confirmed,
        books.runs,
        dict(Counter(fault.name for fault in books.faults)),
        duplicates,
        parked,
        tuple(findings),
        gone,
    )


def _check(account: Account, books: Books) -> Iterator[Finding]:
    if not account.expected:
        yield _finding(Promise.STRAYED, account, "it was never sent there")
        return
    yield from _lost(account, books)
    yield from _misplaced(account, books)
    yield from _duplicated(account, books)
    yield from _beyond(account, books)
    yield from _early(account, books)
    if account.altered:
        yield _finding(Promise.ALTERED, account, f"{account.altered} deliveries differ")


def _finding(promise: Promise, account: Account, text: str) -> Finding:
    runs = ", ".join(
        f"{run.who}#{run.attempt}{'r' if run.again else ''}:{run.said or 'cut short'}"
        for run in account.runs[:8]
    )
    return Finding(
        promise, account.message, account.queue, f"{text} ({account.fate}; runs: {runs or 'none'})"
    )


def _is_parked(account: Account, books: Books) -> bool:
    return books.plans[account.queue].parking.queue in account.found


def _is_gone(account: Account) -> bool:
    """Confirmed, and neither handled nor parked nor discarded nor anywhere to be found."""
    return account.confirmed and not (account.is_done or account.found or account.discarded)


def _lost(account: Account, books: Books) -> Iterator[Finding]:
    if _is_gone(account) and not books.went_along(account):
        yield _finding(Promise.LOST, account, "confirmed, and nowhere")
    waiting = [q for q in account.found if books.family(account.queue).get(q) in ("main", "retry")]
    if waiting:
        yield _finding(Promise.STUCK, account, f"left in {', '.join(waiting)}")


def _misplaced(account: Account, books: Books) -> Iterator[Finding]:
    family = books.family(account.queue)
    foreign = [queue for queue in account.found if queue not in family]
    if foreign:
        yield _finding(Promise.STRAYED, account, f"found in {', '.join(foreign)}")
    asked = any(run.said in _FAILURES for run in account.runs) or account.fate is Fate.POISON
    if _is_parked(account, books) and not asked:
        yield _finding(Promise.STRAYED, account, "parked though its handler never failed")


def _expected_runs(account: Account, books: Books) -> int:
    """Number of runs of one copy of the message without faults."""
    match account.fate:
        case Fate.DOOMED:
            first = books.plans[account.queue].attempts
        case Fate.SNOOZE:
            first = 2
        case fate:
            first = fate.failures + 1
    return first + account.redriven


def _surplus(account: Account, books: Books) -> int:
    """How many runs, or resting copies, there are beyond one life."""
    if not account.expected:
        return 0
    resting = len(account.found) + account.is_done * account.fate.is_parked * (not account.redriven)
    return max(0, len(account.runs) - _expected_runs(account, books), resting - 1)


def _duplicated(account: Account, books: Books) -> Iterator[Finding]:
    extra = _surplus(account, books)
    if extra and not books.explained(account):
        promise = Promise.BEYOND if account.fate is Fate.DOOMED else Promise.DUPLICATED
        yield _finding(promise, account, f"{extra} too many, and no fault explains it")


def _beyond(account: Account, books: Books) -> Iterator[Finding]:
    plan = books.plans[account.queue]
    runs = len(account.runs)
    if runs > plan.attempts and runs > (promised := _promised_runs(account, books)):
        yield _finding(Promise.BEYOND, account, f"{runs} runs of at most {promised}")
    failed = 0
    moments = sorted(
        [(run.begun, 1, run) for run in account.runs]
        + [(run.ended, 0, run) for run in account.runs if run.said in _FAILURES],
        key=lambda moment: moment[:2],
    )
    for _, begins, run in moments:
        # Where a re-drive does not begin anew, it gives one attempt more.
        allowed = plan.attempts + (0 if plan.redrive.reset else run.redrives)
        if not begins:
            failed += 1
        elif run.attempt > allowed:
            yield _finding(Promise.BEYOND, account, f"attempt {run.attempt} of {allowed}")
        elif run.attempt > failed + 1:
            text = f"attempt {run.attempt} after {failed} failures"
            yield _finding(Promise.BEYOND, account, text)


def _promised_runs(account: Account, books: Books) -> int:
    """How often it may be handled: each copy as often as its plan allows, and once more if it is put off.

    A copy more for each time that it was sent again or re-driven, and for each delivery that met a fault.
    """
    copies = max(1, account.sent) * (1 + account.redriven) + books.copies(account)
    return copies * (books.plans[account.queue].attempts + (account.fate is Fate.SNOOZE))


def _early(account: Account, books: Books) -> Iterator[Finding]:
    """A retry begins no sooner than the first failure of the attempt before it plus its delay."""
    if account.redriven or len(account.runs) < 2:
        return
    tiers = books.plans[account.queue].tiers
    failed: dict[int, float] = {}
    for run in account.runs:
        if run.said is Kind.FAILED:
            failed[run.attempt] = min(run.ended, failed.get(run.attempt, run.ended))
    for run in account.runs:
        since = failed.get(run.attempt - 1)
        if since is not None:
            delay = tiers[min(run.attempt - 1, len(tiers)) - 1].delay_ms / 1000
            if run.begun < since + delay - _EARLY_S:
                text = f"attempt {run.attempt} after {run.begun - since:.3f} s of {delay:g}"
                yield _finding(Promise.EARLY, account, text)


def _out_of_order(books: Books) -> Iterator[Finding]:
    """First runs of one key in one process that are out of order.

    Messages that a fault may have reordered are omitted.
    """
    lanes: dict[tuple[str, str, str], list[tuple[Run, Account]]] = {}
    for account in books.accounts.values():
        if account.key == "-" or account.sent != 1:
            continue
        for run in account.runs[:1]:
            if run.attempt == 1 and not run.again:
                lanes.setdefault((account.queue, account.key, run.who), []).append((run, account))
    for lane in lanes.values():
        lane.sort(key=lambda pair: pair[0].begun)
        for (before, first), (after, second) in pairwise(lane):
            if int(first.message) > int(second.message):
                yield _finding(Promise.ORDER, second, f"begun after {first.message}")
            elif after.begun < before.ended and before.said is not None:
                yield _finding(Promise.ORDER, second, f"begun while {first.message} was handled")
