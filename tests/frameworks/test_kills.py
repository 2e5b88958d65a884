"""Consumers of FastStream, aio-pika and pika with plans: nothing is lost, whoever is killed."""

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
from tests.frameworks.proof import NUMBERS, POISON, Stand
from tests.harness.versions import SUITES, installations

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.rabbitmq import RabbitNode


async def _proof(
    url: str, management_url: str, kill_broker: Callable[[], object], folder: Path
) -> None:
    """The whole life of each kind's orders, side by side on one broker."""
    stands = [Stand(kind, url, folder / f"{kind}.txt") for kind in KINDS]
    await asyncio.gather(*(stand.fill() for stand in stands))
    async with AsyncExitStack() as stack:
        for stand in stands:
            await stack.enter_async_context(stand.consuming())
        await asyncio.gather(*(_killed_at(stand, len(NUMBERS) // 4) for stand in stands))
        await asyncio.gather(*(_past(stand, len(NUMBERS) // 2) for stand in stands))
        await asyncio.to_thread(kill_broker)
        await asyncio.gather(*(_concluded(stand) for stand in stands))
    for stand in stands:
        assert set(stand.done()) == NUMBERS - POISON
        assert stand.restarts >= 1
    await _shown(url, management_url, stands)
    async with AsyncExitStack() as stack:
        for stand in stands:
            stand.repaired = True
            await stack.enter_async_context(stand.consuming())
        await _redriven(url, management_url, stands)
        for stand in stands:
            await _past(stand, len(NUMBERS))
            await stand.until_at_rest(0)
            assert set(stand.done()) == NUMBERS
            _report(stand)


async def _past(stand: Stand, number: int) -> None:
    await stand.until(lambda: len(set(stand.done())) >= number, f"{number} orders done")


async def _killed_at(stand: Stand, number: int) -> None:
    await _past(stand, number)
    await stand.kill()


async def _concluded(stand: Stand) -> None:
    await stand.until(lambda: set(stand.done()) >= NUMBERS - POISON, "all but the hopeless ones")
    await stand.until_at_rest(len(POISON))


async def _shown(url: str, management_url: str, stands: list[Stand]) -> None:
    """Each dead letter says what was raised, by the operations and on the page."""
    broker = RabbitMQ(url)
    async with (
        Management(ManagementAddress.derive(None, management_url)) as view,
        Operations(ManagedBroker(broker, management=view)) as operations,
    ):
        app = create_app(operations, first_read_s=None)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            page = (await client.get("/")).text
            for stand in stands:
                queue = f"{stand.queue}.dlq"
                assert queue in page
                assert (await client.get(f"/queues/{queue}")).status_code == 200
                session = await operations.open_session(queue)
                listed = (await operations.messages(session.id, size=100)).dead_letters
                assert {one.message_id for one in listed} == {f"order-{n}" for n in POISON}
                assert {(one.error, one.attempts) for one in listed} == {("LookupError", 3)}
                await operations.release(session.id)


async def _redriven(url: str, management_url: str, stands: list[Stand]) -> None:
    async with (
        Management(ManagementAddress.derive(None, management_url)) as view,
        Operations(ManagedBroker(RabbitMQ(url), management=view)) as operations,
    ):
        transport = httpx.ASGITransport(create_app(operations, first_read_s=None))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            for stand in stands:
                order = {
                    "kind": "re-drive",
                    "queue": f"{stand.queue}.dlq",
                    "reason": "repaired",
                    "expectedCount": await stand.until_at_rest(len(POISON)),
                }
                job = (await client.post("/admin/dlq/jobs", json=order)).json()
                events = (await client.get(f"{job['url']}/events")).text
                assert '"state":"completed"' in events


def _report(stand: Stand) -> None:
    """One line for whoever looks: how often something ran twice."""
    runs = Counter(stand.done())
    print(f"{stand.kind}: {len(NUMBERS)} sent, 0 lost, {sum(runs.values()) - len(runs)} ran twice")  # noqa: T201


@pytest.mark.socket
async def test_nothing_is_lost_on_the_embedded_broker(tmp_path: Path) -> None:
    """Each consumer is killed and every connection broken; failed orders are parked, shown, re-driven."""
    settings = ServerSettings(port=0, http_port=0, clock=ClockKind.SYSTEM)
    with BrokerThread(settings) as broker:
        await _proof(broker.url, broker.http_url, broker.restart, tmp_path)


def _kill_and_restart(node: RabbitNode) -> None:
    node.kill()
    node.restart()


@pytest.mark.broker
async def test_nothing_is_lost_on_rabbitmq(
    tmp_path: Path, start_rabbitmq: Callable[..., RabbitNode]
) -> None:
    """The same on RabbitMQ, which is killed and comes back."""
    node = start_rabbitmq()
    await _proof(node.url, node.management_url, lambda: _kill_and_restart(node), tmp_path)


@pytest.mark.broker
@pytest.mark.all_brokers
@pytest.mark.parametrize("suite", sorted(SUITES))
async def test_nothing_is_lost_on_newer_versions(
    suite: str, tmp_path: Path, start_rabbitmq: Callable[..., RabbitNode]
) -> None:
    """The same on RabbitMQ 4.0 and 4.3."""
    node = start_rabbitmq(installation=installations()[suite])
    await _proof(node.url, node.management_url, lambda: _kill_and_restart(node), tmp_path)
