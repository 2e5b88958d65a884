"""What 0.1.0 has left behind is read, resumed and worked through; nothing of it is lost or done twice."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tomllib
from typing import TYPE_CHECKING

import pytest

from hopback import App, Context
from hopback.admin.keys import KeyRing
from hopback.admin.settings import parse_settings
from hopback.broker import EmbeddedManagement
from hopback.broker.declare import declare
from hopback.broker.embedded import EmbeddedBroker
from hopback.clock import SystemClock
from hopback.deadletters import AuditQuery, JobState, Operations
from hopback.deadletters.archive import Archived, read_line
from hopback.deadletters.journal_sql import SqlJournal
from hopback.deadletters.message import content_digest
from hopback.message import Message
from hopback.store import LATEST, Outbox, current_version, migrate, open_database, transaction
from hopback.store.admin import KeyTable
from hopback.testing import AppTest, in_virtual_time
from hopback.topology import read_toml
from hopback.topology.diff import diff
from hopback.version import BrokerVersion
from tests.upgrade.earlier import WRITTEN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sqlalchemy.ext.asyncio import AsyncEngine

_WAITING, _PARKED, _CHOSEN = 6, 40, 30


def _messages() -> list[Archived]:
    """Everything that was in a queue."""
    lines = (WRITTEN / "messages.ndjson").read_bytes().splitlines()
    return [read_line(line) for line in lines]


async def _put(broker: EmbeddedBroker, app: App, *queues: str) -> None:
    """The messages of these queues as they were, in their order."""
    connection = await broker.connect("before")
    await declare(connection, app.topology)
    channel = await connection.open_channel()
    returned = (WRITTEN / "returned.txt").read_text().split()
    given_back = [one for one in _messages() if one.properties.message_id in returned]
    for one in (*given_back, *(one for one in _messages() if one not in given_back)):
        if one.queue in queues:
            await channel.publish(Message("", one.queue, one.body, one.properties))
    for one in given_back:  # once more in somebody's hands, as the job of before had them
        assert one.queue not in queues or await channel.get(one.queue)
    await connection.close()


def _shop() -> App:
    app = App("shop")
    app.queue("orders", retry=["1h", "2h"])
    return app


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    """The store as it was, then brought to the form of now."""
    path = tmp_path / "store.db"
    with sqlite3.connect(path) as raw:
        raw.executescript((WRITTEN / "store.sql").read_text())
    raw.close()
    engine = open_database(f"sqlite:///{path}")
    assert 0 < await current_version(engine) < LATEST
    await migrate(engine)
    assert await current_version(engine) == LATEST
    yield engine
    await engine.dispose()


async def test_the_inbox_remembers_and_the_outbox_is_sent(engine: AsyncEngine) -> None:
    """What was handled is not handled again; what was to be published is read as it was written."""
    async with transaction(engine) as begun:
        assert not await begun.first_time("billing", "m-1")
        assert await begun.first_time("billing", "m-2")
    outbox = Outbox(engine, "test", SystemClock())
    pending = await outbox.pending(await outbox.claim(64), most=10)
    assert [one.message.properties.message_id for one in pending] == [
        f"outbox-{number}" for number in range(3)
    ]
    assert [json.loads(one.message.body) for one in pending] == [
        {"id": 1000 + number} for number in range(3)
    ]
    assert {one.message.routing_key for one in pending} == {"orders"}


async def test_keys_open_as_before(engine: AsyncEngine) -> None:
    """With the grant they were made with."""
    ring = KeyRing(store=KeyTable(engine))
    await ring.refresh(SystemClock().now())
    (key,) = ring.keys
    assert (key.name, key.made_by, key.grant.queues) == ("vera", "ann", ("orders*",))


async def test_a_job_under_way_is_resumed_to_its_end(engine: AsyncEngine) -> None:
    """30 of 40 were chosen; each is sent back once by the two versions together, and 10 stay."""
    app = _shop()
    broker = EmbeddedBroker(version=BrokerVersion(3, 10))
    await _put(broker, app, "orders", "orders.dlq")
    before = broker.snapshot()
    done = len(before.queue("orders").ready)
    assert (done >= 10, done + len(before.queue("orders.dlq").ready)) == (True, _PARKED)
    async with Operations(
        broker,
        management=EmbeddedManagement(broker),
        topologies=[app.topology],
        journal=SqlJournal(engine, SystemClock()),
    ) as operations:
        (job,) = await operations.jobs()
        assert (job.state, job.counts.selected, job.counts.done) == (
            JobState.INTERRUPTED,
            _CHOSEN,
            done,
        )
        assert job.by == "Ann"
        await operations.resume(job.id)
        async with asyncio.timeout(20):
            ended = await operations.wait(job.id)
        assert (ended.state, ended.counts.done) == (JobState.COMPLETED, _CHOSEN)
        actions = [entry.action for entry in await operations.audit(AuditQuery())]
    after = broker.snapshot()
    sent = [json.loads(one.body)["id"] for one in after.queue("orders").ready]
    left = [json.loads(one.body)["id"] for one in after.queue("orders.dlq").ready]
    parked = list(range(_WAITING, _WAITING + _PARKED))
    assert (sorted(sent), left) == (parked[:_CHOSEN], parked[_CHOSEN:])
    assert len(actions) > 1  # the lines of before are there, and those of now


async def test_messages_that_were_chosen_one_by_one_are_known_again() -> None:
    """A job that was begun for chosen messages keeps their digests: they are what they were."""
    broker = EmbeddedBroker(version=BrokerVersion(3, 10))
    await _put(broker, _shop(), "orders.dlq")
    connection = await broker.connect("test")
    channel = await connection.open_channel()
    found = []
    while delivery := await channel.get("orders.dlq"):
        found.append(content_digest(delivery))
    await connection.close()
    digests = (WRITTEN / "digests.txt").read_text().split()
    assert len(found) > 10
    assert found == digests[-len(found) :]


async def test_an_export_is_imported() -> None:
    """Each message into the queue it was in, with its failure record."""
    app = _shop()
    broker = EmbeddedBroker(version=BrokerVersion(3, 10))
    await _put(broker, app)
    lines = (WRITTEN / "export.ndjson").read_bytes().splitlines(keepends=True)

    async def given() -> AsyncIterator[bytes]:
        for line in lines:
            yield line

    async with Operations(broker, topologies=[app.topology]) as operations:
        assert (await operations.import_lines(given())).published == len(lines)
        found = await operations.survey("orders.dlq")
    (group,) = found.groups
    assert (group.count, group.sample.error_message) == (5, "no such article")
    assert (group.sample.recorded_by, group.sample.origin) == ("hopback", "orders")


def test_settings_and_topology_mean_what_they_meant() -> None:
    """The settings of `serve` are accepted; the file of the topology declares the same queues."""
    document = tomllib.loads((WRITTEN / "admin.toml").read_text())
    settings = parse_settings(document, {}, "admin.toml")
    assert settings.auth.jwt is not None
    assert settings.auth.jwt.issuer == "https://id.example/realms/shop"
    assert [grant.claim for grant in settings.auth.grants] == ["team-orders"]
    written = read_toml((WRITTEN / "topology.toml").read_text())
    compared = diff(_shop().topology, written)
    assert compared.settled
    assert compared.extra == ()


@in_virtual_time
async def test_messages_that_wait_come_back_with_their_count() -> None:
    """Six wait for their second run in a retry queue of 0.1.0: it is their second here too."""
    app = App("shop")
    seen: list[tuple[int, int]] = []

    @app.handler("orders", retry=["1h", "2h"])
    async def handle(order: dict[str, int], context: Context) -> None:
        seen.append((order["id"], context.attempt))
        if order["id"] == 0:
            raise ConnectionError("the warehouse does not answer")

    broker = EmbeddedBroker(version=BrokerVersion(3, 10))
    await _put(broker, app, "orders.retry.1h")
    async with AppTest(app, broker=broker) as shop:
        await shop.advance(3601)
        assert sorted(seen) == [(number, 2) for number in range(_WAITING)]
        await shop.advance(7201)
        assert seen[_WAITING:] == [(0, 3)]
        shop.assert_parked("orders", times=1)
