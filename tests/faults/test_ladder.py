"""Delayed and periodic messages while the broker restarts and queues are deleted, on all versions."""

from __future__ import annotations

import pytest

from tests.faults.ladder import MOST_SECOND_ARRIVALS, SCENARIOS
from tests.faults.site import installation_of
from tests.harness.configuration import QUICK_DEAD_LETTERS_MS, Timings
from tests.harness.rabbitmq import RabbitNode


@pytest.mark.broker
@pytest.mark.all_brokers
@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
@pytest.mark.parametrize("broker", ["3.10", "4.0", "4.3"])
async def test_no_message_is_lost_or_early_and_few_arrive_twice(broker: str, scenario: str) -> None:
    timings = Timings(dead_letter_retry_ms=QUICK_DEAD_LETTERS_MS)
    with RabbitNode(installation_of(broker), timings=timings) as node:
        found = await SCENARIOS[scenario](node)
    assert (found.lost, found.early) == (0, 0)
    assert found.twice <= MOST_SECOND_ARRIVALS.get(scenario, 0)
