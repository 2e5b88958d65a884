"""The short form of soak and overload. No resource may grow, and no process may hold more messages
than configured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.ledger.entry import Entry, Kind
from tests.faults.overload import browse, outrun
from tests.faults.soak import Use, growth, uses

if TYPE_CHECKING:
    from tests.harness.rabbitmq import RabbitNode


def _samples(**grows: float) -> list[Use]:
    """Return the samples of a minute in which resources grow by the given amounts per second."""
    return [
        Use(
            float(at),
            rss=int(50_000_000 + grows.get("rss", 0) * at),
            fds=int(12 + grows.get("fds", 0) * at),
            tasks=int(9 + grows.get("tasks", 0) * at),
            channels=int(3 + grows.get("channels", 0) * at),
        )
        for at in range(60)
    ]


def test_constant_resources_have_not_grown() -> None:
    """A slow start does not count as growth."""
    assert growth(_samples()) == []
    assert growth([Use(0.0, 10_000_000, 1, 1, 0), *_samples()]) == []


@pytest.mark.parametrize(
    ("what", "rate"), [("rss", 500_000.0), ("fds", 0.2), ("tasks", 0.2), ("channels", 0.3)]
)
def test_leak_of_each_resource_is_reported(what: str, rate: float) -> None:
    (found,) = growth(_samples(**{what: rate}))
    assert found.startswith({"rss": "memory"}.get(what, what))


def test_workers_started_late_are_not_a_leak() -> None:
    """If there are more workers than configured, it is a leak."""
    assert growth(_samples(tasks=0.5), workers=50) == []
    assert growth(_samples(tasks=2.0), workers=50)


def test_samples_are_sorted_by_time() -> None:
    note = "rss={},fds=2,tasks=3,channels=4"
    found = uses([Entry(at, Kind.SAMPLE, "c1", note=note.format(int(at))) for at in (2.0, 1.0)])
    assert [one.rss for one in found] == [1, 2]


@pytest.mark.broker
async def test_fast_producer_fills_queue_and_not_consumer(
    node: RabbitNode,
) -> None:
    """Handlers take 5 ms. The number of unacked messages must stay within the limit.

    On a busy machine there may be one more channel, because a consumer with a slow delivery moves
    to a new one.
    """
    verdict, used, most = await outrun(node, 4000, pause_ms=5)
    verdict.require()
    assert verdict.confirmed == 4000
    assert 1 < most <= 20
    assert {one.channels for one in used[2:-1]} <= {1, 2, 3, 4}


async def test_flood_of_browse_requests_gets_429_and_no_error() -> None:
    found = await browse(600)
    assert sum(found.values()) == 600
    assert set(found) <= {200, 201, 429, 503}
    assert found[200]
    assert found[429]
