"""The checkers bite: each broken promise, planted in a history or in the runtime's way, is named."""

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
    """A history in the making: every line a moment later than the one before."""

    now: float = 0.0

    def __post_init__(self) -> None:
        self.entries: list[Entry] = []

    def sent(self, number: int, fate: Fate = Fate.DONE, to: str = "left", key: str = "-") -> None:
        """A message was published and confirmed."""
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
        """A handler was called, and said so; None: it never ended."""
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
        """Any entry."""
        self.now += 0.01
        self.entries.append(Entry(self.now, kind, who, message, queue, attempt, note))


def _broken(entries: Iterable[Entry]) -> set[Promise]:
    verdict = check_books(keep_books(entries, TOPOLOGY))
    return {finding.promise for finding in verdict.findings}


def _retried() -> _Story:
    story = _Story()
    story.sent(1, Fate.FAIL_ONCE)
    story.run(1, Kind.FAILED)
    story.now += 1.0
    story.run(1, attempt=2)
    return story


def test_a_history_in_which_all_went_well_has_no_findings() -> None:
    """Done, retried, parked, snoozed, re-driven and discarded messages, all accounted for."""
    story = _retried()
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


def test_only_what_was_in_a_deleted_queue_goes_with_it() -> None:
    """A deleted retry queue takes what had failed before, and explains no other loss."""
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


def test_more_runs_than_its_copies_have_are_beyond_the_promise() -> None:
    """One crash leaves one copy more: a plan of three takes six runs, and a seventh is too many."""
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


def test_poison_is_parked_and_its_neighbours_are_not() -> None:
    """What kills its process may be parked though no handler failed it; what stood beside it may not."""
    story = _Story()
    for number, fate in ((1, Fate.POISON), (2, Fate.DONE)):
        story.sent(number, fate)
        for who in ("c1", "c2", "c3"):
            story.run(number, None, who=who)
            story.note(Kind.FAULT, queue=PROCESS, who=who, note="kill -9: poison")
        story.note(Kind.FOUND, str(number), "left.dlq")
    verdict = check_books(keep_books(story.entries, TOPOLOGY))
    assert [(one.promise, one.message) for one in verdict.findings] == [(Promise.STRAYED, "2")]


def test_a_message_that_is_nowhere_is_lost() -> None:
    """Confirmed and never seen again; one that was not confirmed may be missing."""
    story = _Story()
    story.sent(1)
    story.note(Kind.SENT, "2", "done", note="left;-")
    verdict = check_books(keep_books(story.entries, TOPOLOGY))
    assert [(found.promise, found.message) for found in verdict.findings] == [(Promise.LOST, "1")]
    with pytest.raises(AssertionError, match="lost: message 1 of left: confirmed, and nowhere"):
        verdict.require()


def test_a_message_is_lost_in_one_of_its_queues() -> None:
    """The audit has handled it; the service it was meant for has not."""
    story = _Story()
    story.sent(1, to="left,audit")
    story.run(1, queue="audit")
    assert _broken(story.entries) == {Promise.LOST}


def test_a_parked_message_that_is_gone_is_lost() -> None:
    """It was published to the dead-letter queue and is not there."""
    story = _Story()
    story.sent(1, Fate.HOPELESS)
    story.run(1, Kind.HOPELESS)
    assert _broken(story.entries) == {Promise.LOST}


@pytest.mark.parametrize("queue", ["left", "left.retry.1s"])
def test_a_message_that_is_left_on_its_way_is_stuck(queue: str) -> None:
    """After the calm nothing may be in a main queue or a retry queue."""
    story = _Story()
    story.sent(1)
    story.note(Kind.FOUND, "1", queue)
    assert _broken(story.entries) == {Promise.STUCK}


def test_a_message_in_another_queue_has_strayed() -> None:
    """Handled by one who was not meant, or found where it does not belong."""
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


def test_a_message_that_nobody_sent_has_strayed() -> None:
    """Out of nothing comes nothing."""
    story = _Story()
    story.run(1)
    assert _broken(story.entries) == {Promise.STRAYED}


def test_an_innocent_in_the_dead_letters_has_strayed() -> None:
    """No handler has failed it."""
    story = _Story()
    story.sent(1)
    story.note(Kind.FOUND, "1", "left.dlq")
    assert _broken(story.entries) == {Promise.STRAYED}


def test_a_second_run_without_a_fault_is_a_duplicate() -> None:
    """Also a second copy in the dead letters."""
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
def test_a_duplicate_is_explained_only_by_a_fault_in_its_window(
    scope: str, who: str, after: float, explained: bool
) -> None:
    """The fault must have met the delivery while it was unsettled, in the process that had it."""
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


def test_a_second_run_after_a_re_drive_needs_an_interrupted_one() -> None:
    """A re-drive gives one life more; another copy is explained only by an operator who was killed."""
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


def test_a_fault_lasts_until_it_is_healed() -> None:
    """A cut of a minute explains what was delivered in its middle."""
    story = _Story()
    story.sent(1)
    story.note(Kind.FAULT, queue=CONNECTION, note="slow")
    story.now += 30
    story.run(1)
    story.now += 30
    story.note(Kind.HEALED, queue=CONNECTION, note="slow")
    story.run(1)
    assert _broken(story.entries) == set()


def test_more_attempts_than_the_plan_allows_are_beyond_it() -> None:
    """Three are allowed; a number that no failure accounts for is beyond it, too."""
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


def test_an_attempt_that_is_not_counted_is_beyond_the_plan() -> None:
    """The doomed message runs once more than it may, each time as attempt 1."""
    story = _Story()
    story.sent(1, Fate.DOOMED)
    for attempt in (1, 1, 2, 3):
        story.run(1, Kind.FAILED, attempt=attempt)
        story.now += 5
    story.note(Kind.FOUND, "1", "left.dlq")
    assert _broken(story.entries) == {Promise.BEYOND}


def test_a_retry_before_its_delay_is_early() -> None:
    """A second is to pass, and half of one did."""
    story = _Story()
    story.sent(1, Fate.FAIL_ONCE)
    story.run(1, Kind.FAILED)
    story.now += 0.5
    story.run(1, attempt=2)
    assert _broken(story.entries) == {Promise.EARLY}


def test_messages_of_one_key_that_overtake_are_out_of_order() -> None:
    """The later one first, or both at once; in another process there is no order to keep."""
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


def test_a_message_that_changed_on_its_way_is_altered() -> None:
    """The application compares what came with what it says of itself."""
    story = _Story()
    story.sent(1)
    story.run(1)
    story.note(Kind.ALTERED, "1", "left", 1)
    assert _broken(story.entries) == {Promise.ALTERED}


@pytest.mark.parametrize(
    ("saboteur", "promise"), SABOTEURS.items(), ids=lambda one: getattr(one, "__name__", "")
)
def test_a_sabotaged_runtime_is_found_out(saboteur: type[Any], promise: Promise) -> None:
    """The whole runtime with one thing wrong on its way to the broker: a few seeds are enough."""
    found = (play(seed, disguise=sabotage(saboteur)).verdict for seed in range(40))
    assert any(verdict.count(promise) for verdict in found)


def test_every_promise_is_broken_by_something() -> None:
    """No checker that nothing has ever tested: what no saboteur breaks, a planted history does."""
    planted = {Promise.STUCK}
    assert set(Promise) == set(SABOTEURS.values()) | planted


def test_entries_survive_their_file(tmp_path: Path) -> None:
    """What was written is read back; a line that was cut short is none."""
    pen = FilePen(tmp_path / "c1.ledger", "c1", lambda: 12.5)
    pen.write(Kind.BEGUN, "7", "left", 2, "again")
    pen.write(Kind.FAULT, queue=BROKER, note="kill -9")
    with (tmp_path / "c1.ledger").open("ab") as torn:
        torn.write(b"12.6 done c1 7 le")
    assert list(read_entries(tmp_path)) == [
        Entry(12.5, Kind.BEGUN, "c1", "7", "left", 2, "again"),
        Entry(12.5, Kind.FAULT, "c1", "-", "broker", 0, "kill_-9"),
    ]


def test_orders_are_read_as_they_were_written() -> None:
    """Whatever their size; and one that was tampered with is noticed."""
    order = Order(17, ("left", "audit"), Fate.FAIL_TWICE, "k", 30)
    for size in (0, 1000):
        message = order.message("ledger", "left.order", size)
        assert Order.read(message.body) == order
        assert len(message.body) >= size


def test_the_share_of_failures_is_what_was_asked_for() -> None:
    """Five in a hundred, of every kind but the one that kills."""
    found = fates(0.05)
    assert sum(fate is not Fate.DONE for fate in found) == 50
    assert set(found) == set(Fate) - {Fate.POISON}
