"""A broker is killed in a storm of failures. The documented form of Ratatoskr loses messages, the
other forms do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.ledger.checks import Promise
from tests.faults.storm import storms

if TYPE_CHECKING:
    from tests.harness.rabbitmq import RabbitNode

pytestmark = [pytest.mark.broker, pytest.mark.waits(90), pytest.mark.xdist_group("fault-storm")]


async def test_storm_loses_messages_in_faithful_ratatoskr(node: RabbitNode) -> None:
    """At-most-once dead-lettering of quorum queues loses messages within eight kills.

    All other promises are kept.
    """
    lost = 0
    async for verdict in storms(node, "ratatoskr-faithful", kills=8, until_lost=True):
        lost += verdict.count(Promise.LOST)
        assert {finding.promise for finding in verdict.findings} <= {Promise.LOST}
    assert lost > 0


@pytest.mark.parametrize("design", ["ratatoskr-hardened", "recommended"])
async def test_storm_loses_no_message_in_hardened_and_recommended(
    node: RabbitNode, design: str
) -> None:
    """The long run contains more storms."""
    async for verdict in storms(node, design, kills=1):
        verdict.require()
        assert verdict.confirmed == 4000
