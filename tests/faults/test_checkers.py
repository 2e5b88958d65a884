"""Tests of the checkers. They must find each promise that is broken in a history or by a saboteur."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults.ledger.application import two_queues
from tests.faults.ledger.books import BROKER, CONNECTION, OPERATOR, PROCESS, keep_books
from tests.faults.ledger.checks import Promise, check_books
from tests.faults.ledger.entry import Entry, FilePen, Kind, read_entries
from tests.faults.ledger.order import Fate, Order, fates
from tests.faults.saboteurs import SABOTEURS, sabotage
from tests.faults.simulation import play

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

TOPOLOGY = two_queues(("1s", "3s"))


@dataclass
class _Story:
    """A history that is written step by step. Each entry is 10 ms later than the one before."""

    now: float = 0.0

    def __post_init__(self) -> None:
        self.entries: list[Entry] = []

    def sent(self, number: int, fate: Fate = Fate.DONE, to: str = "left", key: str = "-") -> None:
        """Record that a message was published and confirmed."""
        note = f"{to};{key}"
        self.note(Kind.SENT, str(number), fate.value, who="producer", note=note)
        self.note(Kind.CONFIRMED, str(number), who="producer")

    def run(
        self,
        number: int,
        said: Kind | None = Kind.DONE,
        *,
        queue: str = "left",
        attempt: int = 1,
        who: str = "c1",
        redrives: int = 0,
    ) -> None:
        """Record a run with its outcome. If it is None, the run never ended."""
        self.note(Kind.BEGUN, str(number), queue, attempt, who=who, note=f"-;{redrives}")
        if said is not None:
            self.note(said, str(number), queue, attempt, who=who)
        settled = {Kind.FAILED: Kind.RETRIED, Kind.HOPELESS: Kind.PARKED}.get(said or Kind.DONE)
        if settled is not None:
            self.note(settled, str(number), queue, attempt, who=who)

    def note(
        self,
        kind: Kind,
        message: str = "-",
        queue: str = "-",
        attempt: int = 0,
        *,
        who: str = "*",
        note: str = "-",
    ) -> None:
        """Record an entry."""
        self.now += 0.01
        self.entries.append(Entry(self.now, kind, who, message, queue, attempt, note))


def _broken(entries: Iterable[Entry]) -> set[Promise]:
    verdict = check_books(keep_books(entries, TOPOLOGY))
    return {finding.promise for finding in verdict.findings}


def _retry_story() -> _Story:
    story = _Story()
    story.sent(1, Fate.FAIL_ONCE)
    story.run(1, Kind.FAILED)
    story.now += 1.0
    story.run(1, attempt=2)
    return story


def test_complete_history_has_no_findings() -> None:
    """The history contains messages that were handled, retried, parked, snoozed, re-driven and
    discarded.
    """
    story = _retry_story()
    story.sent(2)
    story.run(2)
    story.sent(3, Fate.HOPELESS)
    story.run(3, Kind.HOPELESS)
    story.note(Kind.FOUND, "3", "left.dlq")
    story.sent(4, Fate.SNOOZE)
    story.run(4, Kind.SNOOZED)
    story.run(4)
    story.sent(5, Fate.HOPELESS)
    story.run(5, Kind.HOPELESS)
    story.run(5, redrives=1)
    story.sent(6, Fate.HOPELESS)
    story.run(6, Kind.HOPELESS)
    story.note(Kind.DISCARDED, "6", "left")
    verdict = check_books(keep_books(story.entries, TOPOLOGY))
    assert verdict.findings == ()
    assert (verdict.messages, verdict.confirmed, verdict.parked) == (6, 6, 1)
    verdict.require()


def test_deleted_queue_explains_only_messages_in_it() -> None:
    """A deleted retry queue can only contain messages that have failed before."""
    story = _Story()
    for number in (1, 2, 3):
        story.sent(number, Fate.FAIL_ONCE)
    story.run(1, Kind.FAILED)
    story.now += 5.0
    story.note(Kind.GONE, queue="left.retry.1s")
    story.now += 5.0
    story.run(2, Kind.FAILED)
    verdict = check_books(keep_books(story.entries, TOPOLOGY))
    assert verdict.gone == 1
    assert [(one.promise, one.message) for one in verdict.findings] == [
        (Promise.LOST, "2"),
        (Promise.LOST, "3"),
    ]
    story.note(Kind.GONE, queue="right")
    assert check_books(keep_books(story.entries, TOPOLOGY)).gone == 1
    story.note(Kind.GONE, queue="left")
    assert check_books(keep_books(story.entries, TOPOLOGY)).findings == ()


def test_more_runs_than_copies_allow_break_promise() -> None:
    """A crash allows one more copy. With a plan of three attempts, six runs are allowed and a
    seventh is not.
    """
    story = _Story()
    story.sent(1, Fate.DOOMED)
    story.run(1, None)
    story.note(Kind.FAULT, queue=PROCESS, who="c1", note="kill -9")
    for who in ("c2", "c3"):
        for attempt in (1, 2, 3)[who == "c3" :]:
            story.run(1, Kind.FAILED, attempt=attempt, who=who)
            story.now += 3.0
    story.note(Kind.FOUND, "1", "left.dlq")
    assert _broken(story.entries) == set()
    story.run(1, Kind.FAILED, attempt=3, who="c3")
    assert _broken(story.entries) == {Promise.BEYOND}


def test_poison_message_may_be_parked_and_neighbours_may_not() -> None:
    story = _Story()
    for number, fate in ((1, Fate.POISON), (2, Fate.DONE)):
        story.sent(number, fate)
        for who in ("c1", "c2", "c3"):
            story.run(number, None, who=who)
            story.note(Kind.FAULT, queue=PROCESS, who=who, note="kill -9: poison")
        story.note(Kind.FOUND, str(number), "left.dlq")
    verdict = check_books(keep_books(story.entries, TOPOLOGY))
    assert [(one.promise, one.message) for one in verdict.findings] == [(Promise.STRAYED, "2")]


def test_confirmed_message_that_is_missing_is_lost() -> None:
    """A message that was not confirmed may be missing."""
    story = _Story()
    story.sent(1)
    story.note(Kind.SENT, "2", "done", note="left;-")
    verdict = check_books(keep_books(story.entries, TOPOLOGY))
    assert [(found.promise, found.message) for found in verdict.findings] == [(Promise.LOST, "1")]
    with pytest.raises(AssertionError, match="lost: message 1 of left: confirmed, and nowhere"):
        verdict.require()


def test_message_missing_in_one_of_its_queues_is_lost() -> None:
    story = _Story()
    story.sent(1, to="left,audit")
    story.run(1, queue="audit")
    assert _broken(story.entries) == {Promise.LOST}


def test_parked_message_that_is_missing_is_lost() -> None:
    story = _Story()
    story.sent(1, Fate.HOPELESS)
    story.run(1, Kind.HOPELESS)
    assert _broken(story.entries) == {Promise.LOST}


@pytest.mark.parametrize("queue", ["left", "left.retry.1s"])
def test_message_left_in_main_or_retry_queue_is_stuck(queue: str) -> None:
    story = _Story()
    story.sent(1)
    story.note(Kind.FOUND, "1", queue)
    assert _broken(story.entries) == {Promise.STUCK}


def test_message_in_wrong_queue_has_strayed() -> None:
    story = _Story()
    story.sent(1)
    story.run(1)
    story.run(1, queue="right")
    assert _broken(story.entries) == {Promise.STRAYED}
    story = _Story()
    story.sent(1)
    story.run(1)
    story.note(Kind.FOUND, "1", "right.dlq")
    assert Promise.STRAYED in _broken(story.entries)


def test_message_that_was_never_sent_has_strayed() -> None:
    story = _Story()
    story.run(1)
    assert _broken(story.entries) == {Promise.STRAYED}


def test_dead_letter_without_failure_has_strayed() -> None:
    story = _Story()
    story.sent(1)
    story.note(Kind.FOUND, "1", "left.dlq")
    assert _broken(story.entries) == {Promise.STRAYED}


def test_second_run_without_fault_is_duplicate() -> None:
    """A second copy in the dead-letter queue is a duplicate as well."""
    story = _Story()
    story.sent(1)
    story.run(1)
    story.now += 5
    story.run(1)
    assert _broken(story.entries) == {Promise.DUPLICATED}
    story = _Story()
    story.sent(1, Fate.HOPELESS)
    story.run(1, Kind.HOPELESS)
    story.note(Kind.FOUND, "1", "left.dlq")
    story.note(Kind.FOUND, "1", "left.dlq")
    assert _broken(story.entries) == {Promise.DUPLICATED}


@pytest.mark.parametrize(
    ("scope", "who", "after", "explained"),
    [
        (PROCESS, "c1", 0.0, True),
        (PROCESS, "c2", 0.0, False),
        (CONNECTION, "*", 0.0, True),
        (CONNECTION, "c1", 30.0, False),
        (BROKER, "*", 0.0, True),
        (BROKER, "*", 90.0, False),
    ],
)
def test_duplicate_is_explained_only_by_fault_in_its_window(
    scope: str, who: str, after: float, explained: bool
) -> None:
    """The fault must have affected the process while the delivery was unsettled."""
    story = _Story()
    story.sent(1)
    story.run(1)
    story.now += after
    story.note(Kind.FAULT, queue=scope, who=who, note="blow")
    story.now = 60.0 if after < 60 else story.now - 60
    story.run(1)
    verdict = check_books(keep_books(story.entries, TOPOLOGY))
    assert (verdict.findings == ()) is explained
    assert verdict.duplicates == 1


def test_second_run_after_redrive_requires_killed_operator() -> None:
    """A re-drive allows one more run."""
    for killed, expected in ((False, {Promise.DUPLICATED}), (True, set())):
        story = _Story()
        story.sent(1, Fate.HOPELESS)
        story.run(1, Kind.HOPELESS)
        if killed:
            story.note(Kind.FAULT, queue=OPERATOR, note="kill -9")
        story.run(1, redrives=1)
        story.now += 5
        story.run(1, redrives=1)
        assert _broken(story.entries) == expected


def test_fault_lasts_until_it_is_healed() -> None:
    """If connections are cut for a minute, this explains duplicates of deliveries during this
    minute.
    """
    story = _Story()
    story.sent(1)
    story.note(Kind.FAULT, queue=CONNECTION, note="slow")
    story.now += 30
    story.run(1)
    story.now += 30
    story.note(Kind.HEALED, queue=CONNECTION, note="slow")
    story.run(1)
    assert _broken(story.entries) == set()


def test_more_attempts_than_plan_allows_break_promise() -> None:
    """An attempt number without the failures before it breaks the promise as well."""
    story = _Story()
    story.sent(1, Fate.DOOMED)
    for attempt in range(1, 5):
        story.run(1, Kind.FAILED, attempt=attempt)
        story.now += 5
    story.note(Kind.FOUND, "1", "left.dlq")
    assert _broken(story.entries) == {Promise.BEYOND}
    story = _Story()
    story.sent(1)
    story.run(1, attempt=2)
    assert _broken(story.entries) == {Promise.BEYOND}


def test_uncounted_attempt_breaks_promise() -> None:
    """The doomed message runs once more than allowed, because two runs have attempt number 1."""
    story = _Story()
    story.sent(1, Fate.DOOMED)
    for attempt in (1, 1, 2, 3):
        story.run(1, Kind.FAILED, attempt=attempt)
        story.now += 5
    story.note(Kind.FOUND, "1", "left.dlq")
    assert _broken(story.entries) == {Promise.BEYOND}


def test_retry_before_its_delay_is_early() -> None:
    story = _Story()
    story.sent(1, Fate.FAIL_ONCE)
    story.run(1, Kind.FAILED)
    story.now += 0.5
    story.run(1, attempt=2)
    assert _broken(story.entries) == {Promise.EARLY}


def test_messages_of_one_key_that_overtake_are_out_of_order() -> None:
    """The later message runs first, or both run at the same time. Between processes there is no
    order.
    """
    for who, expected in (("c1", {Promise.ORDER}), ("c2", set())):
        story = _Story()
        story.sent(1, key="k")
        story.sent(2, key="k")
        story.run(2)
        story.run(1, who=who)
        assert _broken(story.entries) == expected
    story = _Story()
    story.sent(1, key="k")
    story.sent(2, key="k")
    story.note(Kind.BEGUN, "1", "left", 1, who="c1")
    story.run(2)
    story.note(Kind.DONE, "1", "left", 1, who="c1")
    assert _broken(story.entries) == {Promise.ORDER}


def test_message_changed_on_its_way_is_altered() -> None:
    story = _Story()
    story.sent(1)
    story.run(1)
    story.note(Kind.ALTERED, "1", "left", 1)
    assert _broken(story.entries) == {Promise.ALTERED}


@pytest.mark.parametrize(
    ("saboteur", "promise"), SABOTEURS.items(), ids=lambda one: getattr(one, "__name__", "")
)
def test_sabotaged_runtime_is_detected(saboteur: type[Any], promise: Promise) -> None:
    """Each saboteur breaks one promise. A few seeds are enough to detect it."""
    found = (play(seed, disguise=sabotage(saboteur)).verdict for seed in range(40))
    assert any(verdict.count(promise) for verdict in found)


def test_every_promise_is_broken_by_a_saboteur_or_planted_history() -> None:
    """Otherwise a checker would not be tested."""
    planted = {Promise.STUCK}
    assert set(Promise) == set(SABOTEURS.values()) | planted


def test_entries_round_trip_through_file(tmp_path: Path) -> None:
    """Incomplete lines are ignored."""
    pen = FilePen(tmp_path / "c1.ledger", "c1", lambda: 12.5)
    pen.write(Kind.BEGUN, "7", "left", 2, "again")
    pen.write(Kind.FAULT, queue=BROKER, note="kill -9")
    with (tmp_path / "c1.ledger").open("ab") as torn:
        torn.write(b"12.6 done c1 7 le")
    assert list(read_entries(tmp_path)) == [
        Entry(12.5, Kind.BEGUN, "c1", "7", "left", 2, "again"),
        Entry(12.5, Kind.FAULT, "c1", "-", "broker", 0, "kill_-9"),
    ]


def test_orders_round_trip_and_detect_changes() -> None:
    order = Order(17, ("left", "audit"), Fate.FAIL_TWICE, "k", 30)
    for size in (0, 1000):
        message = order.message("ledger", "left.order", size)
        assert Order.read(message.body) == order
        assert len(message.body) >= size


def test_share_of_failures_is_as_requested() -> None:
    """Five percent of the orders fail, in all ways except poison."""
    found = fates(0.05)
    assert sum(fate is not Fate.DONE for fate in found) == 50
    assert set(found) == set(Fate) - {Fate.POISON}
