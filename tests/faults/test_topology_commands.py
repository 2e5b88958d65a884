"""Topology commands lose no messages while other clients hold messages or the broker is killed.

The broker has RabbitMQ's default tick of 5 s, so its statistics are outdated.
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
    """Start a node for all tests of a version. Some of them kill and restart it."""
    installation = HOST if request.param == "host" else installations()[request.param]
    with RabbitNode(installation=installation, timings=_TICKS) as started:
        yield started


def lost(stand: Stand, found: Counter[int]) -> list[int]:
    """Return the confirmed messages that are missing."""
    return sorted(stand.confirmed - set(found))


@pytest.mark.parametrize("node", ["host", *_NEWER], indirect=True)
async def test_migrate_refuses_while_page_holds_messages(node: RabbitNode) -> None:
    """The error names the session. When the session has ended, the queue is migrated and each
    message exists once.
    """
    async with stand_on(node) as stand:
        assert await kills.migrate_beside_page(stand) == 4
        assert "100 messages of 'raffle_dlq' are held unacked" in kills.said(stand)
        assert "hopback browse raffle_dlq" in kills.said(stand)
        found = await stand.audit()
        assert (stand.problems, lost(stand, found), max(found.values())) == ([], [], 1)


@pytest.mark.all_brokers
@pytest.mark.parametrize("node", ["host", *_NEWER], indirect=True)
async def test_migrate_refuses_while_broker_holds_messages_back(node: RabbitNode) -> None:
    """The retry queue has no ready messages, and its main queue does not exist."""
    async with stand_on(node) as stand:
        hardened = ("raffle", "--hardened", "--yes")
        await stand.until_done("topology", "apply", *hardened)
        await stand.delete("raffle_queue")
        await stand.put("raffle_retry_10s", 60)
        # the messages have expired and cannot be routed
        await stand.until_none_is_ready("raffle_retry_10s")
        shorter = ("topology", "migrate", *hardened, "--param", "retry_ttl_ms=5000")
        assert await stand.run(*shorter) == 4
        assert "60 messages of 'raffle_retry_10s'" in kills.said(stand)
        await stand.until_done("topology", "apply", *hardened, "--skip-conflicts")
        # The broker would try again after 180 s. When it starts, it tries immediately.
        await asyncio.to_thread(node.restart)
        found = await stand.audit()
        assert lost(stand, found) == []


@pytest.mark.all_brokers
@pytest.mark.parametrize("node", ["host", *_NEWER], indirect=True)
async def test_broker_killed_during_migration_loses_no_message(node: RabbitNode) -> None:
    """The broker is killed three times, and the command is started again each time."""
    async with stand_on(node) as stand:
        await kills.kill_during_migrate(stand)
        found = await stand.audit()
        assert (stand.problems, lost(stand, found)) == ([], [])


@pytest.mark.all_brokers
@pytest.mark.parametrize("node", ["host", *_NEWER], indirect=True)
async def test_broker_killed_during_replacement_loses_no_message(node: RabbitNode) -> None:
    """The broker is killed before the old queue is deleted and after the new one was created.

    The next command completes the replacement.
    """
    async with stand_on(node) as stand:
        await kills.kill_during_replace(stand)
        found = await stand.audit()
        assert (stand.problems, lost(stand, found)) == ([], [])
        assert not [one["name"] for one in stand.queues() if one["name"].endswith(".migrating")]


@pytest.mark.slow
@pytest.mark.all_brokers
@pytest.mark.parametrize("node", ["trixie"], indirect=True)
async def test_broker_killed_while_limit_is_lifted_loses_no_message(node: RabbitNode) -> None:
    """The limit can only be restored after the messages have been moved. Browsing lifts no limit on
    4.3, which counts no browsed message.
    """
    async with stand_on(node) as stand:
        refused, restored = await kills.kill_during_revert(stand)
        found = await stand.audit()
        assert (stand.problems, lost(stand, found)) == ([], [])
        assert (refused, restored) == (4, 0)
