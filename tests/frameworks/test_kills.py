"""Consumers of FastStream, aio-pika and pika with plans lose no order when a consumer or the broker
is killed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import httpx
import pytest

from hopback.broker.management import Management, ManagementAddress
from hopback.broker.rabbitmq import RabbitMQ
from hopback.broker.server import ClockKind, ServerSettings
from hopback.ops import ManagedBroker, Operations
from hopback.ops.http import create_app
from hopback.testing import BrokerThread
from tests.frameworks.consumer import KINDS
from tests.frameworks.proof import NUMBERS, POISON, ConsumerSetup
from tests.harness.versions import SUITES, installations

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.rabbitmq import RabbitNode


async def _run_all_kinds(
    url: str, management_url: str, kill_broker: Callable[[], object], folder: Path
) -> None:
    """Run the orders of each kind on one broker: kills, dead letters, repair and re-drive."""
    setups = [ConsumerSetup(kind, url, folder / f"{kind}.txt") for kind in KINDS]
    await asyncio.gather(*(setup.fill() for setup in setups))
    async with AsyncExitStack() as stack:
        for setup in setups:
            await stack.enter_async_context(setup.consume())
        await asyncio.gather(*(_kill_after(setup, len(NUMBERS) // 4) for setup in setups))
        await asyncio.gather(*(_wait_until_handled(setup, len(NUMBERS) // 2) for setup in setups))
        await asyncio.to_thread(kill_broker)
        await asyncio.gather(*(_wait_until_parked(setup) for setup in setups))
    for setup in setups:
        assert set(setup.handled()) == NUMBERS - POISON
        assert setup.restarts >= 1
    await _check_dead_letters(url, management_url, setups)
    async with AsyncExitStack() as stack:
        for setup in setups:
            setup.repaired = True
            await stack.enter_async_context(setup.consume())
        await _redrive(url, management_url, setups)
        for setup in setups:
            await _wait_until_handled(setup, len(NUMBERS))
            await setup.wait_until_settled(0)
            assert set(setup.handled()) == NUMBERS
            _report(setup)


async def _wait_until_handled(setup: ConsumerSetup, number: int) -> None:
    await setup.wait_until(lambda: len(set(setup.handled())) >= number, f"{number} handled orders")


async def _kill_after(setup: ConsumerSetup, number: int) -> None:
    await _wait_until_handled(setup, number)
    await setup.kill()


async def _wait_until_parked(setup: ConsumerSetup) -> None:
    await setup.wait_until(
        lambda: set(setup.handled()) >= NUMBERS - POISON, "all orders that can succeed"
    )
    await setup.wait_until_settled(len(POISON))


async def _check_dead_letters(url: str, management_url: str, setups: list[ConsumerSetup]) -> None:
    """Check the exception of each dead letter through the operations and on the page."""
    broker = RabbitMQ(url)
    async with (
        Management(ManagementAddress.derive(None, management_url)) as view,
        Operations(ManagedBroker(broker, management=view)) as operations,
    ):
        app = create_app(operations, first_read_s=None)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            page = (await client.get("/")).text
            for setup in setups:
                queue = f"{setup.queue}.dlq"
                assert queue in page
                assert (await client.get(f"/queues/{queue}")).status_code == 200
                session = await operations.open_session(queue)
                listed = (await operations.messages(session.id, limit=100)).dead_letters
                assert {one.message_id for one in listed} == {f"order-{n}" for n in POISON}
                assert {(one.error, one.attempts) for one in listed} == {("LookupError", 3)}
                await operations.release(session.id)


async def _redrive(url: str, management_url: str, setups: list[ConsumerSetup]) -> None:
    async with (
        Management(ManagementAddress.derive(None, management_url)) as view,
        Operations(ManagedBroker(RabbitMQ(url), management=view)) as operations,
    ):
        transport = httpx.ASGITransport(create_app(operations, first_read_s=None))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            for setup in setups:
                order = {
                    "kind": "re-drive",
                    "queue": f"{setup.queue}.dlq",
                    "reason": "repaired",
                    "expectedCount": await setup.wait_until_settled(len(POISON)),
                }
                job = (await client.post("/admin/dlq/jobs", json=order)).json()
                events = (await client.get(f"{job['url']}/events")).text
                assert '"state":"completed"' in events


def _report(setup: ConsumerSetup) -> None:
    """Print how many orders were handled twice."""
    runs = Counter(setup.handled())
    print(f"{setup.kind}: {len(NUMBERS)} sent, 0 lost, {sum(runs.values()) - len(runs)} ran twice")  # noqa: T201


@pytest.mark.socket
async def test_no_order_is_lost_when_consumers_are_killed_and_embedded_broker_restarts(
    tmp_path: Path,
) -> None:
    """Failed orders are parked, shown on the page and re-driven."""
    settings = ServerSettings(port=0, http_port=0, clock=ClockKind.SYSTEM)
    with BrokerThread(settings) as broker:
        await _run_all_kinds(broker.url, broker.http_url, broker.restart, tmp_path)


def _kill_and_restart(node: RabbitNode) -> None:
    node.kill()
    node.restart()


@pytest.mark.broker
async def test_no_order_is_lost_when_consumers_and_rabbitmq_are_killed(
    tmp_path: Path, start_rabbitmq: Callable[..., RabbitNode]
) -> None:
    node = start_rabbitmq()
    await _run_all_kinds(node.url, node.management_url, lambda: _kill_and_restart(node), tmp_path)


@pytest.mark.broker
@pytest.mark.all_brokers
@pytest.mark.parametrize("suite", sorted(SUITES))
async def test_no_order_is_lost_when_consumers_and_newer_rabbitmq_are_killed(
    suite: str, tmp_path: Path, start_rabbitmq: Callable[..., RabbitNode]
) -> None:
    node = start_rabbitmq(installation=installations()[suite])
    await _run_all_kinds(node.url, node.management_url, lambda: _kill_and_restart(node), tmp_path)
