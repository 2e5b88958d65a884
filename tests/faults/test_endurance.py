"""Soak and overload, short form: nothing grows, and nobody holds more than was agreed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.ledger.entry import Entry, Kind
from tests.faults.overload import browse, outrun
from tests.faults.soak import Use, growth, uses

if TYPE_CHECKING:
    from tests.harness.rabbitmq import RabbitNode


def _used(**grows: float) -> list[Use]:
    """A minute of use in which something may grow by so much a second."""
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


def test_what_stays_as_it_is_has_not_grown() -> None:
    """A start-up that takes its time is no growth."""
    assert growth(_used()) == []
    assert growth([Use(0.0, 10_000_000, 1, 1, 0), *_used()]) == []


@pytest.mark.parametrize(
    ("what", "rate"), [("rss", 500_000.0), ("fds", 0.2), ("tasks", 0.2), ("channels", 0.1)]
)
def test_what_leaks_is_seen_to_grow(what: str, rate: float) -> None:
    """A leak of each kind is named."""
    (found,) = growth(_used(**{what: rate}))
    assert found.startswith({"rss": "memory"}.get(what, what))


def test_workers_that_are_hired_late_are_no_leak() -> None:
    """Up to as many as were agreed; more are one."""
    assert growth(_used(tasks=0.5), workers=50) == []
    assert growth(_used(tasks=2.0), workers=50)


def test_samples_are_read_in_the_order_of_their_time() -> None:
    """Whatever the order they were found in."""
    note = "rss={},fds=2,tasks=3,channels=4"
    found = uses([Entry(at, Kind.SAMPLE, "c1", note=note.format(int(at))) for at in (2.0, 1.0)])
    assert [one.rss for one in found] == [1, 2]


@pytest.mark.broker
async def test_a_producer_that_outruns_its_consumer_fills_the_queue_and_not_the_consumer(
    node: RabbitNode,
) -> None:
    """Handlers of 5 ms, messages as fast as they come: at most as many in hand as agreed."""
    verdict, used, most = await outrun(node, 4000, pause_ms=5)
    verdict.require()
    assert verdict.confirmed == 4000
    assert 1 < most <= 20
    assert {one.channels for one in used[2:-1]} <= {1, 2, 3}


async def test_a_flood_of_browse_requests_is_answered_or_put_off() -> None:
    """More than anybody may ask: 429 for the rest, never an error, and the service goes on."""
    found = await browse(600)
    assert sum(found.values()) == 600
    assert set(found) <= {200, 201, 429, 503}
    assert found[200]
    assert found[429]
