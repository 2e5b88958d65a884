from __future__ import annotations

from hopback.ops.browse.prefetch import FIRST_PREFETCH, LARGEST_PREFETCH, Prefetch

_ROOM = 1_000_000


def _prefetch(wanted: int = 500, first: int = FIRST_PREFETCH) -> Prefetch:
    return Prefetch(wanted, first, _ROOM)


def test_first_consumer_takes_a_few_messages() -> None:
    assert _prefetch().begin(taken=0, count=10_000) == FIRST_PREFETCH


def test_prefetch_never_exceeds_the_count() -> None:
    assert _prefetch().begin(taken=0, count=3) == 3
    prefetch = _prefetch()
    prefetch.weigh(1000)
    assert prefetch.begin(taken=20, count=27) == 7


def test_prefetch_of_large_messages_fits_into_memory() -> None:
    prefetch = _prefetch()
    prefetch.weigh(20 * 100_000)
    assert prefetch.begin(taken=20, count=10_000) == 10


def test_prefetch_of_huge_messages_is_two() -> None:
    prefetch = _prefetch()
    prefetch.weigh(20 * _ROOM)
    assert prefetch.begin(taken=20, count=10_000) == 2


def test_consumer_full_of_kept_messages_has_a_larger_successor() -> None:
    prefetch = _prefetch(wanted=100)
    prefetch.begin(taken=0, count=10_000)
    prefetch.weigh(20)
    assert prefetch.begin(taken=20, count=10_000) == 100
    prefetch.kept = 50
    assert prefetch.is_unsuitable(taken=120, count=10_000)
    assert prefetch.begin(taken=120, count=10_000) == 400


def test_prefetch_fits_into_basic_qos() -> None:
    assert _prefetch(first=1_000_000).begin(taken=0, count=1_000_000) == LARGEST_PREFETCH


def test_ack_is_not_allowed_if_the_consumer_could_exceed_the_count() -> None:
    prefetch = _prefetch(first=10)
    prefetch.begin(taken=0, count=12)
    assert prefetch.allows_ack(12)
    prefetch.acked = 2
    assert not prefetch.allows_ack(12)


def test_consumer_has_room_until_its_prefetch_is_unacked() -> None:
    prefetch = _prefetch(first=10)
    prefetch.begin(taken=0, count=100)
    assert prefetch.has_room(taken=9)
    assert not prefetch.has_room(taken=10)
    prefetch.acked = 1
    assert prefetch.has_room(taken=10)
