"""Topology commands lose no message while other clients hold messages or the broker is killed.

The broker has RabbitMQ's default ticks of 5 s, so its numbers are stale.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.faults import topology_kills as kills
from tests.faults.stand import stand_on
from tests.harness.configuration import Timings
from tests.harness.installation import HOST
from tests.harness.rabbitmq import RabbitNode
from tests.harness.versions import SUITES, installations

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

    from tests.faults.stand import Stand

pytestmark = [
    pytest.mark.broker,
    pytest.mark.waits(90),
    pytest.mark.xdist_group("topology-commands"),
]

_TICKS = Timings(tick_ms=5_000, statistics_ms=5_000)
_NEWER = [pytest.param(suite, marks=pytest.mark.all_brokers) for suite in sorted(SUITES)]


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest) -> Iterator[RabbitNode]:
    """One node for all tests of a version, killed and started again by some of them."""
    installation = HOST if request.param == "host" else installations()[request.param]
    with RabbitNode(installation=installation, timings=_TICKS) as started:
        yield started


def lost(stand: Stand, found: Counter[int]) -> list[int]:
    """Confirmed messages that are missing."""
    return sorted(stand.confirmed - set(found))


@pytest.mark.parametrize("node", ["host", *_NEWER], indirect=True)
async def test_migrate_refuses_while_page_holds_messages(node: RabbitNode) -> None:
    """It names the session. When the session is over, every message exists once."""
    async with stand_on(node) as stand:
        assert await kills.held_by_a_page(stand) == 4
        assert "100 messages of 'raffle_dlq' are held unacked" in kills.said(stand)
        assert "hopback browse raffle_dlq" in kills.said(stand)
        found = await stand.audit()
        assert (stand.problems, lost(stand, found), max(found.values())) == ([], [], 1)


@pytest.mark.all_brokers
@pytest.mark.parametrize("node", ["host", *_NEWER], indirect=True)
async def test_migrate_refuses_while_broker_holds_messages_back(node: RabbitNode) -> None:
    """No message is ready in the retry queue, and its main queue is missing."""
    async with stand_on(node) as stand:
        hardened = ("raffle", "--hardened", "--yes")
        await stand.until_done("topology", "apply", *hardened)
        await stand.delete("raffle_queue")
        await stand.put("raffle_retry_10s", 60)
        await stand.until_none_is_ready("raffle_retry_10s")  # expired, with nowhere to go
        shorter = ("topology", "migrate", *hardened, "--param", "retry_ttl_ms=5000")
        assert await stand.run(*shorter) == 4
        assert "60 messages of 'raffle_retry_10s'" in kills.said(stand)
        await stand.until_done("topology", "apply", *hardened, "--skip-conflicts")
        # Otherwise the next attempt is 180 s after the last. A starting broker tries at once.
        await asyncio.to_thread(node.restart)
        found = await stand.audit()
        assert lost(stand, found) == []


@pytest.mark.all_brokers
@pytest.mark.parametrize("node", ["host", *_NEWER], indirect=True)
async def test_broker_killed_during_migration_loses_no_message(node: RabbitNode) -> None:
    """It is killed three times, and the command is started again."""
    async with stand_on(node) as stand:
        await kills.killed_migrating(stand)
        found = await stand.audit()
        assert (stand.problems, lost(stand, found)) == ([], [])


@pytest.mark.all_brokers
@pytest.mark.parametrize("node", ["host", *_NEWER], indirect=True)
async def test_broker_killed_during_replacement_loses_no_message(node: RabbitNode) -> None:
    """It is killed before the delete and after the new queue exists.

    The next command completes the replacement.
    """
    async with stand_on(node) as stand:
        await kills.killed_replacing(stand)
        found = await stand.audit()
        assert (stand.problems, lost(stand, found)) == ([], [])
        assert not [one["name"] for one in stand.queues() if one["name"].endswith(".migrating")]


@pytest.mark.slow
@pytest.mark.parametrize("node", _NEWER, indirect=True)
async def test_broker_killed_while_limit_is_lifted_loses_no_message(node: RabbitNode) -> None:
    """The limit is restored only after the messages have moved."""
    async with stand_on(node) as stand:
        refused, restored = await kills.killed_reverting(stand)
        found = await stand.audit()
        assert (stand.problems, lost(stand, found)) == ([], [])
        assert (refused, restored) == (4, 0)
