"""The storage cost of waiting messages between measured sizes and versions."""

from __future__ import annotations

import pytest

from hopback.designs.recommended import recommended
from hopback.rehearse import rehearse
from hopback.rehearse.forecast import BYTES_EACH, LOG_BYTES, storage_of
from hopback.version import BrokerVersion
from tests.unit.rehearse.worlds import scenario


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_measured_sizes_have_measured_cost(kind: str) -> None:
    for version, rows in BYTES_EACH[kind]:
        for size, cost in rows:
            assert storage_of(kind, size, version) == pytest.approx(cost)


def test_cost_between_sizes_is_interpolated() -> None:
    v4 = BrokerVersion(4, 0)
    assert storage_of("quorum", 5_500, v4).disk == pytest.approx((1_299 + 10_287) / 2)
    assert storage_of("quorum", 1, v4).disk == 390
    assert storage_of("quorum", 1_000_000, v4).disk == pytest.approx(1_000_880, rel=0.01)


def test_classic_queues_keep_bodies_in_memory_only_before_4_0() -> None:
    old, new = (storage_of("classic", 1_000, BrokerVersion(*v)).memory for v in ((3, 13), (4, 9)))
    assert (old, new) == (1_694, 13)
    assert storage_of("classic", 1_000, BrokerVersion(3, 8)).memory == old


def test_quorum_queue_memory_is_bounded_by_log() -> None:
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
