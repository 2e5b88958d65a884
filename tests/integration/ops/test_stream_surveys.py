"""A stream of dead letters on a real RabbitMQ: read without cost, from where the last survey ended."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import httpx
import pytest

from hopback.broker.declare import declare
from hopback.broker.management import Management, ManagementAddress
from hopback.broker.rabbitmq import RabbitMQ
from hopback.clock import SystemClock
from hopback.errors import UnsafeOperation
from hopback.message import Message, Properties
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.contract.requests import DiscardRequest, RedriveRequest, Selection
from hopback.ops.contract.search import SearchRequest
from hopback.ops.contract.values import Price
from hopback.ops.http import create_app
from hopback.ops.jobs.journal import open_journal
from hopback.ops.operations import Operations
from hopback.topology.model import Queue, QueueType, Topology
from tests.harness.versions import SUITES, installations

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hopback.broker.port import Channel
    from hopback.ops.contract.surveys import ErrorOverview
    from tests.harness.rabbitmq import RabbitNode
    from tests.harness.shared import SharedNode

pytestmark = pytest.mark.broker

_TOPOLOGY = Topology(
    "foreign", queues=(Queue("events"), Queue("events.dlq", type=QueueType.STREAM))
)


async def _fail(channel: Channel, error: str, count: int, begin: int = 0) -> None:
    """Dead letters as a consumer publishes them itself."""
    for number in range(begin, begin + count):
        said = Properties(headers={"x-last-error": f"{error}: at 7"}, delivery_mode=2)
        body = b'{"customer": "C-%05d"}' % number
        await channel.publish(Message("", "events.dlq", body, said))


async def _wait_for_count(operations: Operations, count: int) -> None:
    """Wait until the broker counts this number of messages.

    It counts those of a stream every few seconds.
    """
    while (await operations.queue("events.dlq")).messages_ready != count:  # noqa: ASYNC110
        await asyncio.sleep(0.2)


def _told(found: ErrorOverview) -> dict[str, int]:
    return {one.error: one.count for one in found.items}


@pytest.mark.waits(60)
async def test_stream_is_surveyed_searched_and_browsed_without_removal(
    rabbitmq: SharedNode, vhost: str, amqp_url: str, tmp_path: Path
) -> None:
    """Groups are added up across surveys, and consumers do not matter."""
    await _survey(amqp_url, rabbitmq.management_url, vhost, tmp_path)


@pytest.mark.all_brokers
@pytest.mark.parametrize("suite", sorted(SUITES))
async def test_stream_is_surveyed_on_other_versions(
    start_rabbitmq: Callable[..., RabbitNode], suite: str, tmp_path: Path
) -> None:
    """The version is RabbitMQ 4."""
    node = start_rabbitmq(installation=installations()[suite])
    await _survey(node.url, node.management_url, "/", tmp_path)


async def _survey(amqp_url: str, management_url: str, vhost: str, tmp_path: Path) -> None:
    connection = await RabbitMQ(amqp_url).connect("test")
    await declare(connection, _TOPOLOGY)
    channel = await connection.open_channel()
    consumer = await connection.open_channel()
    await consumer.qos(10)
    await consumer.consume("events.dlq", lambda _: None, arguments={"x-stream-offset": "first"})
    await _fail(channel, "TimeoutError", 300)
    async with (
        Management(ManagementAddress.derive(None, management_url)) as management,
        open_journal(f"sqlite:///{tmp_path}/jobs.db", SystemClock()) as journal,
        Operations(
            ManagedBroker(RabbitMQ(amqp_url), management=management, vhost=vhost), journal=journal
        ) as operations,
    ):
        await _wait_for_count(operations, 300)
        detail = await operations.queue("events.dlq")
        assert (detail.cost.price, detail.cost.is_stream) == (Price.FREE, True)
        first = await operations.errors(survey=True)
        assert _told(first) == {"TimeoutError": 300}
        assert [(one.queue, one.is_stream, one.why_not) for one in first.queues] == [
            ("events.dlq", True, "")
        ]
        assert _told(await operations.errors(survey=True)) == {"TimeoutError": 300}
        await _fail(channel, "Refused", 20, begin=300)
        await _fail(channel, "TimeoutError", 1, begin=320)
        assert _told(await operations.errors(survey=True)) == {"TimeoutError": 301, "Refused": 20}

        await _wait_for_count(operations, 321)
        found = [
            told async for told in operations.search(SearchRequest("C-00311", ("events.dlq",)))
        ]
        assert (found[-1].matching, found[-1].seen) == (1, 321)
        session = await operations.open_session("events.dlq")
        assert (session.held, session.ready, session.complete) == (100, 321, False)
        page = await operations.messages(session.id, "customer")
        for request in (
            RedriveRequest(queue="events.dlq", selection=Selection(), reason="x", force=True),
            RedriveRequest(
                queue="events.dlq",
                selection=Selection(session=session.id, ids=(page.dead_letters[0].id,)),
                reason="x",
            ),
            DiscardRequest(
                queue="events.dlq",
                selection=Selection(),
                reason="x",
                confirm="events.dlq",
                export=False,
            ),
        ):
            with pytest.raises(UnsafeOperation, match="messages cannot be removed from a stream"):
                await operations.start(request)
        await operations.release(session.id)

        await channel.delete_queue("events.dlq")
        await declare(connection, _TOPOLOGY)
        await _fail(channel, "Another", 7)
        await _wait_for_count(operations, 7)
        assert _told(await operations.errors(survey=True)) == {"Another": 7}
    await connection.close()


async def test_pages_of_stream_offer_no_redrive_and_no_discard(
    rabbitmq: SharedNode, vhost: str, amqp_url: str
) -> None:
    """Browsing, searching and exporting are offered."""
    connection = await RabbitMQ(amqp_url).connect("test")
    await declare(connection, _TOPOLOGY)
    await _fail(await connection.open_channel(), "TimeoutError", 3)
    broker = RabbitMQ(amqp_url)
    async with (
        Management(ManagementAddress.derive(None, rabbitmq.management_url)) as view,
        Operations(ManagedBroker(broker, management=view, vhost=vhost)) as operations,
    ):
        app = create_app(operations, first_read_s=None)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            session = await operations.open_session("events.dlq")
            (message, *_) = (await operations.messages(session.id)).dead_letters
            queue = (await client.get("/queues/events.dlq")).text
            assert "You can browse, search and export them." in queue
            assert "send a copy" not in queue
            looking = (await client.get(f"/sessions/{session.id}")).text
            assert "TimeoutError" in looking
            assert "Download all" in looking
            one = (await client.get(f"/sessions/{session.id}/messages/{message.id}")).text
            assert "C-00000" in one
            for page in (queue, looking, one):
                offered = re.findall(r'(?:href|formaction)="[^"]*/(?:re-drive|discard)\b', page)
                assert offered == []
                assert re.findall(r">\s*(?:Re-drive|Discard)\b", page) == []
    await connection.close()
