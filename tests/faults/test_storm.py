"""A broker killed in a storm of failures: faithful ratatoskr loses messages, the other forms none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.ledger.checks import Promise
from tests.faults.storm import storms

if TYPE_CHECKING:
    from tests.harness.rabbitmq import RabbitNode

pytestmark = [pytest.mark.broker, pytest.mark.waits(90), pytest.mark.xdist_group("fault-storm")]


async def test_faithful_ratatoskr_loses_messages_and_the_checker_says_so(node: RabbitNode) -> None:
    """Quorum queues, at-most-once dead-lettering: within eight kills some are gone, and only that."""
    lost = 0
    async for verdict in storms(node, "ratatoskr-faithful", kills=8, until_lost=True):
        lost += verdict.count(Promise.LOST)
        assert {finding.promise for finding in verdict.findings} <= {Promise.LOST}
    assert lost > 0


@pytest.mark.parametrize("design", ["ratatoskr-hardened", "recommended"])
async def test_hardened_and_recommended_lose_nothing(node: RabbitNode, design: str) -> None:
    """The same storm; `make test-faults` lets it rage more often."""
    async for verdict in storms(node, design, kills=1):
        verdict.require()
        assert verdict.confirmed == 4000
