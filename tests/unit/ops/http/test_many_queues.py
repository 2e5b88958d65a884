"""A broker with thousands of dead-letter queues: no page waits for work that grows with their number."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING

import httpx

from hopback.broker.declare import declare
from hopback.broker.embedded import EmbeddedBroker
from hopback.broker.embedded.management import EmbeddedManagement
from hopback.clock import ManualClock
from hopback.message import Message, Properties
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.http import create_app
from hopback.ops.http.app import FIRST_READ_S
from hopback.ops.operations import Operations
from hopback.ops.page.rendering import renderer
from hopback.systems.demo.web import lifespan
from hopback.topology.expand import harden_queues, recommend_plan
from hopback.topology.model import Topology
from hopback.version import BrokerVersion
from tests.harness.loop_watch import watch_requests
from tests.harness.seeded import publish
from tests.unit.ops.admin_service import NOW

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hopback.broker.management.readings import QueueReading

_QUEUES = 300


class _CountingManagement(EmbeddedManagement):
    """Counts how often all queues are read. `answers` holds the readings back until it is set."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        super().__init__(broker)
        self.readings = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def queues(self, vhost: str = "/") -> tuple[QueueReading, ...]:
        self.readings += 1
        await self.answers.wait()
        return await super().queues(vhost)


@asynccontextmanager
async def _service(
    *, is_started: bool = False, first_read_s: float | None = None
) -> AsyncIterator[tuple[httpx.AsyncClient, _CountingManagement, ManualClock]]:
    broker, clock = EmbeddedBroker(version=BrokerVersion.parse("3.10")), ManualClock(NOW)
    plans = [recommend_plan(f"q{n:03}", tiers_ms=[30_000], attempts=2) for n in range(_QUEUES)]
    connection = await broker.connect("declaring")
    await declare(
        connection, Topology("many", queues=tuple(q for p in plans for q in harden_queues(p)))
    )
    await connection.close()
    properties = Properties(delivery_mode=2)
    await publish(broker, *(Message("", p.parking.queue, b"{}", properties) for p in plans))
    renderer().get_template("dead_letters.html")  # a service compiles its pages at its start
    view = _CountingManagement(broker)
    async with Operations(ManagedBroker(broker, management=view, clock=clock)) as operations:
        app = watch_requests(create_app(operations, first_read_s=first_read_s))
        transport = httpx.ASGITransport(app)
        async with AsyncExitStack() as stack:
            if is_started:
                view.answers.clear()
                await stack.enter_async_context(lifespan(app))
            client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")
            yield await stack.enter_async_context(client), view, clock
            view.answers.set()


async def test_first_page_reads_topology_at_most_four_times_for_all_queues() -> None:
    """It read the topology once for each queue."""
    async with _service() as (client, view, _):
        answer = await client.get("/")
        assert answer.status_code == 200
        assert view.readings <= 4


async def test_service_starts_before_the_broker_has_answered() -> None:
    """The first answers are computed in the background, without a request."""
    async with _service(is_started=True, first_read_s=FIRST_READ_S) as (client, view, _):
        assert "Reading the broker" in (await client.get("/")).text
        view.answers.set()
        async with asyncio.timeout(20):
            while "Reading the broker" in (board := await client.get("/")).text:
                pass
        assert f"{_QUEUES} dead letters in {_QUEUES} of {_QUEUES} queues" in board.text


async def test_first_page_shows_fullest_queues_and_counts_the_others() -> None:
    async with _service() as (client, _, _):
        page = (await client.get("/")).text
        assert f"{_QUEUES} dead letters in {_QUEUES} of {_QUEUES} queues" in page
        assert "the other 100" in page
        assert 'href="/queues/q299.dlq"' not in page
        assert 'href="/queues/q299.dlq"' in (await client.get("/?find=q299")).text


async def test_page_shows_last_snapshot_while_large_broker_is_read() -> None:
    async with _service() as (client, view, clock):
        await client.get("/")
        view.answers.clear()
        clock.advance(60)
        again = await client.get("/")
        assert (again.status_code, "300 dead letters" in again.text) == (200, True)
        view.answers.set()


_QUEUE = "/queues/q001.dlq"
_PAGES = (
    _QUEUE, f"{_QUEUE}/re-drive", f"{_QUEUE}/discard", "/errors", "/search", "/topology", "/checks",
    "/jobs", "/alerts", "/audit", "/you",
)  # fmt: skip
_PAGES_WITHOUT_BROKER = ("/jobs", "/alerts", "/audit", "/you")


async def test_pages_report_that_the_broker_is_being_read_until_the_first_answer() -> None:
    async with _service(first_read_s=FIRST_READ_S) as (client, view, _):
        view.answers.clear()
        by_api = asyncio.create_task(client.get("/admin/dlq/overview"))
        for page in ("/", f"{_QUEUE}/groups/any", "/errors/any", *_PAGES):
            answer = await client.get(page)
            assert answer.status_code == 200, page
            is_reading = "<h1>Reading the broker…</h1>" in answer.text
            assert is_reading == (page not in _PAGES_WITHOUT_BROKER), page
            assert is_reading == ('<meta http-equiv="refresh" content="1">' in answer.text), page
        assert not by_api.done()
        view.answers.set()
        assert (await by_api).json()["total"] == _QUEUES
        board, queue = await client.get("/"), await client.get(_QUEUE)
        assert f"{_QUEUES} dead letters in {_QUEUES} of {_QUEUES} queues" in board.text
        assert "Reading the broker" not in board.text + queue.text
        assert "<title>q001.dlq" in queue.text


async def test_pages_do_not_wait_while_large_broker_is_read() -> None:
    async with _service() as (client, view, clock):
        for known in ("/", "/topology", "/checks", "/errors"):
            await client.get(known)
        session = (await client.post(f"{_QUEUE}/look")).headers["location"]
        looked = (await client.get(session)).text
        message = next(iter(re.findall(r'href="(/sessions/[^"]+/messages/[^"]+)"', looked)))
        pages = (*_PAGES, f"{_QUEUE}/groups/any", session, message)
        view.answers.clear()
        clock.advance(60)
        answered = []
        with suppress(TimeoutError):
            async with asyncio.timeout(60):
                for page in pages:
                    assert (await client.get(page)).status_code == 200
                    answered.append(page)
        assert answered == list(pages)
