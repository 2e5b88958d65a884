from __future__ import annotations

from hopback.message import Properties, Received
from hopback.ops.contract.surveys import ErrorGroup, ErrorInQueue, HourCount
from hopback.ops.contract.values import Group, Moment
from hopback.ops.messages.dead_letter import read_dead_letter
from hopback.ops.messages.error_groups import (
    MOST_GROUPS,
    add_discards,
    add_errors,
    continue_hours,
    merge_errors,
)


def _error(name: str, count: int, first: int = 1, last: int = 2, seen: int = 3) -> ErrorGroup:
    return ErrorGroup(
        fingerprint=name,
        error="",
        message="",
        reason="",
        count=count,
        first=Moment(first),
        last=Moment(last),
        first_seen=Moment(seen),
    )


def _group(name: str, count: int, first: int = 1, last: int = 2) -> Group:
    sample = read_dead_letter(Received("q", "", "q", b"", Properties()), 1)
    return Group(name, count, Moment(first), Moment(last), sample)


def test_add_errors_sums_counts_and_extends_times() -> None:
    known = (_error("a", 5, first=10, last=20, seen=30), _error("b", 4))
    a, b = add_errors(known, (_group("a", 2, first=5, last=40),), now=99.0)
    assert a == _error("a", 7, first=5, last=40, seen=30)
    assert b == known[1]


def test_add_errors_marks_a_new_error_as_seen_now() -> None:
    (found,) = add_errors((), (_group("a", 2),), now=99.0)
    assert (found.count, found.first_seen) == (2, 99.0)


def test_add_errors_keeps_the_most_frequent() -> None:
    groups = tuple(_group(f"{n:04}", n) for n in range(1, MOST_GROUPS + 11))
    found = add_errors((), groups, now=0.0)
    assert [one.count for one in found] == list(range(MOST_GROUPS + 10, 10, -1))


def test_merge_errors_joins_queues_by_fingerprint() -> None:
    found = merge_errors(
        {
            "x": (_error("a", 2, first=10, last=20, seen=40), _error("b", 9)),
            "y": (_error("a", 3, first=5, last=15, seen=30),),
        },
        {"x": 0.0, "y": 0.0},
    )
    b, a = found
    assert (b.fingerprint, b.queues) == ("b", (ErrorInQueue("x", 9),))
    assert (a.count, a.first, a.last) == (5, Moment(5), Moment(20))
    assert a.first_seen == Moment(30)
    assert a.queues == (ErrorInQueue("x", 2), ErrorInQueue("y", 3))


def test_merge_errors_marks_an_error_as_new_only_if_it_is_new_in_all_queues() -> None:
    queues = {"x": (_error("a", 1, seen=50),), "y": (_error("a", 1, seen=50),)}
    assert [one.is_new for one in merge_errors(queues, {"x": 40.0, "y": 40.0})] == [True]
    assert [one.is_new for one in merge_errors(queues, {"x": 40.0, "y": 60.0})] == [False]


def test_add_discards_counts_files_by_queue() -> None:
    discards = (("x", (_error("a", 2),)), ("x", (_error("a", 3),)), ("y", (_error("z", 1),)))
    a, b = add_discards((_error("a", 1), _error("b", 1)), discards)
    assert (a.discarded, b.discarded) == ((ErrorInQueue("x", 5),), ())


def test_continue_hours_adds_new_failures_and_drops_old_hours() -> None:
    def hours(*counts: tuple[int, int]) -> tuple[HourCount, ...]:
        return tuple(HourCount(Moment(hour * 3600), count) for hour, count in counts)

    found = continue_hours(
        {"a": hours((52, 9), (53, 1), (100, 2)), "b": hours((60, 4)), "gone": hours((99, 5))},
        {"a": hours((99, 8), (100, 3)), "b": (), "new": hours((100, 1))},
        now=100.5 * 3600,  # the first of the 48 hours is 53
    )
    assert found == {
        "a": hours((53, 1), (99, 8), (100, 5)),
        "b": hours((60, 4)),
        "new": hours((100, 1)),
    }
