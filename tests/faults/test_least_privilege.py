"""The documented permissions are sufficient, and if one is missing, an error names it."""

from __future__ import annotations

import asyncio
import re
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from hopback import App, Context, RabbitMQ, Service, ServiceOptions, compose
from hopback.broker import Ownership
from hopback.broker.declare import declare
from hopback.broker.supervise import Backoff
from hopback.errors import BrokerError
from hopback.observe.events import Bus
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.contract.requests import RedriveRequest, Selection, SessionRequest
from hopback.ops.operations import Operations
from hopback.runtime import Environment
from tests.docs.pages import ROOT
from tests.integration.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

    from tests.harness.shared import SharedNode

pytestmark = pytest.mark.broker

_RIGHTS = ("configure", "write", "read")


def _read_table() -> dict[str, dict[str, str]]:
    """Return the permissions of each user from the table on the page."""
    page = (ROOT / "docs" / "how-to" / "least-privilege.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `(.+?)` \| `(.+?)` \| `(.+?)` \|$", page, re.MULTILINE)
    return {
        user: {right: text.replace(r"\|", "|") for right, text in zip(_RIGHTS, given, strict=True)}
        for user, *given in rows
    }


LISTED = _read_table()
ONE_LESS = [
    (user, right)
    for user, rights in LISTED.items()
    for right, given in rights.items()
    if given != "^$"
]


class _Users:
    """Creates users for a test."""

    def __init__(self, node: SharedNode, vhost: str) -> None:
        self._node = node
        self._vhost = vhost
        self.names: list[str] = []

    def url(self, rights: Mapping[str, str]) -> str:
        """Create a user with these permissions and return its URL."""
        name = f"u{uuid.uuid4().hex[:10]}"
        self.names.append(name)
        call = self._node.management.call
        call("PUT", f"/users/{name}", {"password": "secret", "tags": ""})
        call("PUT", f"/permissions/{self._vhost}/{name}", dict(rights))
        return self._node.url.replace("guest:guest", f"{name}:secret") + self._vhost


@pytest.fixture
def users(rabbitmq: SharedNode, vhost: str) -> Iterator[_Users]:
    """Provide users that are deleted after the test."""
    made = _Users(rabbitmq, vhost)
    yield made
    for name in made.names:
        rabbitmq.management.call("DELETE", f"/users/{name}")


def _app() -> App:
    app = App("shop")

    @app.handler("orders", retry=["50ms"], bind={"shop.events": "order.#"})
    async def handle(context: Context) -> None:
        raise ValueError("always")

    return app


async def _prepare(amqp_url: str, dead_letters: int = 0) -> None:
    """Declare the topology and publish some dead letters."""
    connection = await RabbitMQ(amqp_url).connect("test")
    await declare(connection, _app().topology)
    channel = await connection.open_channel()
    for number in range(dead_letters):
        await channel.publish(compose("orders.dlq", number))
    await connection.close()


async def _as_topology(url: str, amqp_url: str) -> None:
    connection = await RabbitMQ(url).connect("topology")
    try:
        await declare(connection, _app().topology)
    finally:
        await connection.close()


async def _as_producer(url: str, amqp_url: str) -> None:
    await _prepare(amqp_url)
    connection = await RabbitMQ(url).connect("producer")
    channel = await connection.open_channel()
    try:
        await channel.publish(compose("order.new", 1, exchange="shop.events"))
    finally:
        await connection.close()


@asynccontextmanager
async def _consume(url: str) -> AsyncIterator[list[tuple[str, Mapping[str, Any]]]]:
    """Run the application and yield its events."""
    said: list[tuple[str, Mapping[str, Any]]] = []
    service = Service(
        _app(),
        RabbitMQ(url),
        options=ServiceOptions(ownership=Ownership.CHECK, grace=1),
        environment=Environment(
            bus=Bus(lambda name, fields: said.append((name, fields))),
            backoff=Backoff(first=0.05, most=0.1),
        ),
    )
    running = asyncio.create_task(service.run())
    try:
        yield said
    finally:
        service.stop()
        await running


async def _as_consumer(url: str, amqp_url: str) -> None:
    """Run the application until a message was retried and parked. Raises BrokerError if this is
    refused.
    """
    await _prepare(amqp_url)
    await _as_guest(amqp_url)
    async with _consume(url) as said:
        ends = ("delivery.parked", "delivery.held", "consumer.lost")
        await until(lambda: any(name in ends for name, _ in said))
    name, fields = next((name, fields) for name, fields in said if name in ends)
    if name != "delivery.parked":
        raise BrokerError(f"{name}: {fields['reason']}")


async def _as_guest(amqp_url: str) -> None:
    connection = await RabbitMQ(amqp_url).connect("test")
    channel = await connection.open_channel()
    await channel.publish(compose("order.new", 1, exchange="shop.events"))
    await connection.close()


async def _as_inspector(url: str, amqp_url: str) -> None:
    await _prepare(amqp_url, dead_letters=3)
    async with Operations(ManagedBroker(RabbitMQ(url), topologies=[_app().topology])) as operations:
        session = await operations.open_session("orders.dlq", SessionRequest(10, force=True))
        assert session.held == 3


async def _as_operator(url: str, amqp_url: str) -> None:
    await _prepare(amqp_url, dead_letters=3)
    async with Operations(ManagedBroker(RabbitMQ(url), topologies=[_app().topology])) as operations:
        request = RedriveRequest(queue="orders.dlq", selection=Selection(), reason="t", force=True)
        job = await operations.wait((await operations.start(request)).id)
    if job.counts.done != 3:
        raise BrokerError(job.state_reason)


ACTS: dict[str, Callable[[str, str], Awaitable[None]]] = {
    "topology": _as_topology,
    "producer": _as_producer,
    "consumer": _as_consumer,
    "inspector": _as_inspector,
    "operator": _as_operator,
}


def test_page_lists_permissions_of_every_part() -> None:
    assert set(LISTED) == set(ACTS)
    assert len(ONE_LESS) == 9


@pytest.mark.parametrize("user", LISTED)
async def test_listed_permissions_are_sufficient(users: _Users, amqp_url: str, user: str) -> None:
    await ACTS[user](users.url(LISTED[user]), amqp_url)


@pytest.mark.parametrize(("user", "right"), ONE_LESS)
async def test_missing_permission_is_refused_without_loss(
    users: _Users, amqp_url: str, user: str, right: str
) -> None:
    """The error names the permission that was refused."""
    fewer = users.url({**LISTED[user], right: "^$"})
    with pytest.raises(BrokerError, match=r"ACCESS_REFUSED|access to .* refused"):
        await ACTS[user](fewer, amqp_url)
    if user in ("consumer", "operator", "inspector"):
        expected = 1 if user == "consumer" else 3
        assert await _left(amqp_url) == expected


async def _left(amqp_url: str) -> int:
    """Return the number of messages in all queues of the application."""
    connection = await RabbitMQ(amqp_url).connect("test")
    channel = await connection.open_channel()
    found = [await channel.declare_queue(queue, passive=True) for queue in _app().topology.queues]
    await connection.close()
    return sum(one.messages for one in found)
