"""The cost of browsing by queue type, effective delivery limit and broker version."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopback.broker.limits import is_near_limit
from hopback.designs import DESIGNS
from hopback.ops.brokers.browse_cost import cost_of_browsing
from hopback.ops.contract.values import Price
from hopback.topology.model import Queue, QueueType
from hopback.version import BrokerVersion

V310, V40, V43 = (BrokerVersion(3, 10), BrokerVersion(4, 0), BrokerVersion(4, 3))
QUORUM = Queue("d", QueueType.QUORUM)


def queue_with_limit(limit: int) -> Queue:
    """A quorum queue of that delivery limit."""
    return Queue("d", QueueType.QUORUM, arguments={"x-delivery-limit": limit})


@pytest.mark.parametrize(
    ("queue", "version", "price", "limit"),
    [
        (Queue("d"), V310, Price.FREE, None),
        (Queue("d"), V43, Price.FREE, None),
        (QUORUM, V310, Price.FREE, None),
        (QUORUM, V40, Price.REFUSED, 20),
        (QUORUM, V43, Price.FREE, 20),
        (queue_with_limit(2), V43, Price.REFUSED, 2),
        (queue_with_limit(3), V43, Price.FREE, 3),
        (replace(QUORUM, arguments={"x-delayed-retry-type": "all"}), V43, Price.REFUSED, 20),
        (replace(QUORUM, arguments={"x-delayed-retry-type": "failed"}), V43, Price.FREE, 20),
        (queue_with_limit(-1), V40, Price.FREE, None),
        (queue_with_limit(-1), V310, Price.REFUSED, 0),
        (queue_with_limit(20), V310, Price.REFUSED, 20),
        (queue_with_limit(999), V40, Price.REFUSED, 999),
        (queue_with_limit(1000), V40, Price.COUNTED, 1000),
        (Queue("d", QueueType.STREAM), V40, Price.FREE, None),
        (None, V310, Price.FREE, None),
        (None, V40, Price.REFUSED, None),
    ],
)
def test_browse_cost_depends_on_queue_type_limit_and_version(
    queue: Queue | None, version: BrokerVersion, price: Price, limit: int | None
) -> None:
    cost = cost_of_browsing(queue, version)
    assert (cost.price, cost.limit) == (price, limit)
    assert cost.text
    assert bool(cost.remedy) == (price is Price.REFUSED)


def test_stream_is_free_to_browse_and_refused_for_jobs() -> None:
    stream = Queue("d", QueueType.STREAM)
    looked, worked = (cost_of_browsing(stream, V40, killed=killed) for killed in (False, True))
    assert (looked.is_stream, worked.is_stream) == (True, True)
    assert (looked.price, worked.price) == (Price.FREE, Price.REFUSED)
    assert "reading does not remove its messages" in looked.text


def test_job_is_refused_on_queue_that_only_nack_protects() -> None:
    """A killed job cannot return messages by nack, so browsing may be free where a job is refused."""
    cost = cost_of_browsing(QUORUM, V43, killed=True)
    assert (cost.price, cost.limit, cost.is_by_nack) == (Price.REFUSED, 20, False)
    assert cost_of_browsing(QUORUM, V43).is_by_nack
    assert not cost_of_browsing(Queue("d"), V43).is_by_nack


@pytest.mark.parametrize("version", [V310, V40, V43])
def test_recommended_dead_letter_queues_can_be_browsed(version: BrokerVersion) -> None:
    queue = DESIGNS["recommended"].build().queue("orders.dlq")
    assert cost_of_browsing(queue, version).price is not Price.REFUSED


def test_browsing_stops_at_half_of_delivery_limit() -> None:
    cost = cost_of_browsing(queue_with_limit(1000), V40)
    assert not is_near_limit(499, cost.limit)
    assert is_near_limit(500, cost.limit)
    assert not is_near_limit(10**9, cost_of_browsing(Queue("d"), V40).limit)


def test_auto_delete_queue_is_not_browsed() -> None:
    """The end of the browsing consumer would delete the queue with its messages."""
    found = cost_of_browsing(Queue("errors", auto_delete=True), V40)
    assert (found.price, "deletes it with all its messages" in found.text) == (Price.REFUSED, True)
