"""What waiting messages cost: between the measured rows, and for versions before, among and after them."""

from __future__ import annotations

import pytest

from hopback.designs.recommended import recommended
from hopback.rehearse import rehearse
from hopback.rehearse.forecast import BYTES_EACH, LOG_BYTES, storage_of
from hopback.version import BrokerVersion
from tests.unit.rehearse.worlds import scenario


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_measured_sizes_cost_what_was_measured(kind: str) -> None:
    """Of every version that was measured."""
    for version, rows in BYTES_EACH[kind]:
        for size, cost in rows:
            assert storage_of(kind, size, version) == pytest.approx(cost)


def test_between_and_beyond_lies_a_straight_line() -> None:
    """5,500 bytes are half way between 1,000 and 10,000; nothing costs less than the smallest."""
    v4 = BrokerVersion(4, 0)
    assert storage_of("quorum", 5_500, v4).disk == pytest.approx((1_299 + 10_287) / 2)
    assert storage_of("quorum", 1, v4).disk == 390
    assert storage_of("quorum", 1_000_000, v4).disk == pytest.approx(1_000_880, rel=0.01)


def test_classic_queues_keep_bodies_in_memory_only_before_4_0() -> None:
    """A version counts as the last measured one that is not newer."""
    old, new = (storage_of("classic", 1_000, BrokerVersion(*v)).memory for v in ((3, 13), (4, 9)))
    assert (old, new) == (1_694, 13)
    assert storage_of("classic", 1_000, BrokerVersion(3, 8)).memory == old


def test_the_log_of_quorum_queues_bounds_what_they_hold_in_memory() -> None:
    """A hundred times the messages do not need a hundred times the memory; disk they do."""
    one, other = (
        rehearse(
            recommended("orders"), scenario(rate=rate, concurrency=9000, outage=(300.0, 1800.0))
        )
        for rate in (200.0, 20_000.0)
    )
    waiting = max(map(sum, zip(*(queue.depth for queue in one.queues), strict=True)))
    assert max(one.memory) == pytest.approx(waiting * (71 + 1_668))
    assert max(other.disk) == pytest.approx(100 * max(one.disk), rel=0.01)
    assert max(other.memory) < 10 * LOG_BYTES
