"""The checkers. Each one finds all accounts for which a certain promise was broken."""

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
"""Seconds. The clocks of two processes and the timer of the broker differ by less than this."""


class Promise(StrEnum):
    """A guarantee for all messages that the broker has confirmed to their producers."""

    LOST = "lost"
    """The message was handled, is in its dead-letter queue, or was discarded by an operator."""
    STUCK = "stuck"
    """At the end, no message is left in a main queue or a retry queue."""
    STRAYED = "strayed"
    """The message only reached the queues to which it was sent. It was only parked if its handler
    has failed.
    """
    DUPLICATED = "duplicated"
    """The message was handled twice only if there was a fault between its delivery and its
    settlement.
    """
    BEYOND = "beyond its plan"
    """The message was not handled more often than its plan allows, and all attempts were counted.
    """
    EARLY = "early"
    """The message did not return before its delay was over."""
    ORDER = "out of order"
    """Messages with the same key were handled one after another in the order in which they were
    sent.
    """
    ALTERED = "altered"
    """The body, properties and headers of the message are unchanged."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A promise that was broken, with the message and the queue."""

    promise: Promise
    message: str
    queue: str
    text: str

    def __str__(self) -> str:
        return f"{self.promise}: message {self.message} of {self.queue}: {self.text}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of the checkers. `duplicates` counts messages whose duplicates are explained by
    faults.
    """

    messages: int
    confirmed: int
    runs: int
    faults: dict[str, int]
    duplicates: int
    parked: int
    findings: tuple[Finding, ...]
    gone: int = 0
    """The number of accounts whose message was deleted with its queue by an operator."""

    def count(self, promise: Promise) -> int:
        """Return how often a promise was broken."""
        return sum(finding.promise is promise for finding in self.findings)

    def require(self) -> None:
        """Raise AssertionError with the first findings, if there are any."""
        shown = "\n".join(str(finding) for finding in self.findings[:10])
        if self.findings:
            raise AssertionError(f"{len(self.findings)} promises broken, the first:\n{shown}")


def check_books(books: Books) -> Verdict:
    """Run all checkers on all accounts."""
    findings: list[Finding] = []
    duplicates = parked = gone = 0
    for account in books.accounts.values():
        findings += _check(account, books)
        extra = _surplus(account, books)
        duplicates += extra > 0
        parked += account.expected and _is_parked(account, books)
        gone += account.expected and _is_gone(account) and books.went_along(account)
    findings += _find_disorder(books)
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
        yield _report(Promise.STRAYED, account, "it was never sent there")
        return
    yield from _find_lost(account, books)
    yield from _find_misplaced(account, books)
    yield from _find_duplicates(account, books)
    yield from _find_excess_runs(account, books)
    yield from _find_early(account, books)
    if account.altered:
        yield _report(Promise.ALTERED, account, f"{account.altered} deliveries differ")


def _report(promise: Promise, account: Account, text: str) -> Finding:
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
    """Return True if a confirmed message was not handled, parked or discarded and is not in any
    queue.
    """
    return account.confirmed and not (account.is_done or account.found or account.discarded)


def _find_lost(account: Account, books: Books) -> Iterator[Finding]:
    if _is_gone(account) and not books.went_along(account):
        yield _report(Promise.LOST, account, "confirmed, and nowhere")
    waiting = [q for q in account.found if books.family(account.queue).get(q) in ("main", "retry")]
    if waiting:
        yield _report(Promise.STUCK, account, f"left in {', '.join(waiting)}")


def _find_misplaced(account: Account, books: Books) -> Iterator[Finding]:
    family = books.family(account.queue)
    foreign = [queue for queue in account.found if queue not in family]
    if foreign:
        yield _report(Promise.STRAYED, account, f"found in {', '.join(foreign)}")
    asked = any(run.said in _FAILURES for run in account.runs) or account.fate is Fate.POISON
    if _is_parked(account, books) and not asked:
        yield _report(Promise.STRAYED, account, "parked though its handler never failed")


def _count_expected_runs(account: Account, books: Books) -> int:
    """Return how often a single copy of the message runs if there are no faults."""
    match account.fate:
        case Fate.DOOMED:
            first = books.plans[account.queue].attempts
        case Fate.SNOOZE:
            first = 2
        case fate:
            first = fate.failures + 1
    return first + account.redriven


def _surplus(account: Account, books: Books) -> int:
    """Return how many runs or copies in queues there are in addition to the expected ones."""
    if not account.expected:
        return 0
    resting = len(account.found) + account.is_done * account.fate.is_parked * (not account.redriven)
    return max(0, len(account.runs) - _count_expected_runs(account, books), resting - 1)


def _find_duplicates(account: Account, books: Books) -> Iterator[Finding]:
    extra = _surplus(account, books)
    if extra and not books.is_explained(account):
        promise = Promise.BEYOND if account.fate is Fate.DOOMED else Promise.DUPLICATED
        yield _report(promise, account, f"{extra} too many, and no fault explains it")


def _find_excess_runs(account: Account, books: Books) -> Iterator[Finding]:
    plan = books.plans[account.queue]
    runs = len(account.runs)
    if runs > plan.attempts and runs > (promised := _count_promised_runs(account, books)):
        yield _report(Promise.BEYOND, account, f"{runs} runs of at most {promised}")
    failed = 0
    moments = sorted(
        [(run.begun, 1, run) for run in account.runs]
        + [(run.ended, 0, run) for run in account.runs if run.said in _FAILURES],
        key=lambda moment: moment[:2],
    )
    for _, begins, run in moments:
        # If a re-drive does not reset the attempts, it allows one more.
        allowed = plan.attempts + (0 if plan.redrive.reset else run.redrives)
        if not begins:
            failed += 1
        elif run.attempt > allowed:
            yield _report(Promise.BEYOND, account, f"attempt {run.attempt} of {allowed}")
        elif run.attempt > failed + 1:
            text = f"attempt {run.attempt} after {failed} failures"
            yield _report(Promise.BEYOND, account, text)


def _count_promised_runs(account: Account, books: Books) -> int:
    """Return the maximum number of runs.

    Each copy may run as often as its plan allows, and once more if it was snoozed. There may be one
    more copy for each additional publish, each re-drive, and each delivery that was affected by a
    fault.
    """
    copies = max(1, account.sent) * (1 + account.redriven) + books.copies(account)
    return copies * (books.plans[account.queue].attempts + (account.fate is Fate.SNOOZE))


def _find_early(account: Account, books: Books) -> Iterator[Finding]:
    """Find retries that started before the first failure of the previous attempt plus the delay."""
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
                yield _report(Promise.EARLY, account, text)


def _find_disorder(books: Books) -> Iterator[Finding]:
    """Find first runs with the same key in the same process that are out of order.

    Messages that a fault may have reordered are skipped.
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
                yield _report(Promise.ORDER, second, f"begun after {first.message}")
            elif after.begun < before.ended and before.said is not None:
                yield _report(Promise.ORDER, second, f"begun while {first.message} was handled")
