"""Delayed messages on a real RabbitMQ: never early, all of them, by way of several queues."""

from __future__ import annotations

import asyncio
import re
import time
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from hopback import App, Context, RabbitMQ, Service, Snooze
from hopback.broker.declare import declare
from hopback.broker.management import Management, ManagementAddress
from hopback.observe.events import Bus
from hopback.runtime import Environment
from hopback.runtime.queue_readings import PolicyWatch, QueueReadings
from tests.harness.versions import SUITES, installations
from tests.integration.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.harness.rabbitmq import RabbitNode
    from tests.harness.shared import SharedNode

_DELAYS_MS = (0, 1, 1000, 1500, 3000, 5000)
_THREE_LEVELS_MS = 7000
_EACH = 20


async def _come_when_due(url: str, delays_ms: tuple[int, ...], snoozes: int) -> None:
    app = App("later")
    app.delays("1m")
    early: list[float] = []
    came: set[tuple[int, int]] = set()
    left_over: list[Mapping[str, Any]] = []

    @app.handler("later.work", retry=None)
    async def work(payload: dict[str, Any], context: Context) -> None:
        early.append(max(0.0, payload["due"] - time.time()))
        if any(name.startswith(("x-", "hopback-")) for name in context.headers):
            left_over.append(context.headers)
        came.add((payload["delay"], payload["n"]))

    snoozed: dict[int, list[float]] = {}

    @app.handler("later.snoozes", retry=["1s"])
    async def snooze(number: int) -> Snooze | None:
        runs = snoozed.setdefault(number, [])
        runs.append(time.time())
        return Snooze("3s") if len(runs) <= snoozes else None

    service = Service(app, RabbitMQ(url))
    running = asyncio.create_task(service.run())
    await asyncio.wait_for(service.ready.wait(), 60)
    await asyncio.gather(
        *(
            app.publish(
                "later.work",
                {"n": n, "delay": delay_ms, "due": time.time() + delay_ms / 1000},
                delay=delay_ms / 1000,
            )
            for n in range(_EACH)
            for delay_ms in delays_ms
        )
    )
    await asyncio.gather(*(app.publish("later.snoozes", n) for n in range(_EACH)))
    await until(
        lambda: (
            len(came) == _EACH * len(delays_ms)
            and sum(map(len, snoozed.values())) >= (snoozes + 1) * _EACH
        ),
        seconds=240,
    )  # a broker may hold dead letters back for 180 s
    service.stop()
    await running
    assert max(early) == 0.0
    assert left_over == []
    # The queues are the same each time. No broker detects a cycle, and none returns early.
    waits = [after - before for runs in snoozed.values() for before, after in pairwise(runs)]
    assert len(waits) == snoozes * _EACH
    assert min(waits) >= 3.0


@pytest.mark.broker
@pytest.mark.waits(6)
async def test_delayed_messages_arrive_when_due(amqp_url: str) -> None:
    """None is early or missing, and no delay header is left."""
    await _come_when_due(amqp_url, _DELAYS_MS, snoozes=2)


@pytest.mark.broker
@pytest.mark.all_brokers
@pytest.mark.parametrize("suite", sorted(SUITES))
async def test_delayed_messages_arrive_when_due_on_newer_brokers(
    start_rabbitmq: Callable[..., RabbitNode], suite: str
) -> None:
    """Those versions dead-letter at least once."""
    url = start_rabbitmq(installation=installations()[suite]).url
    await _come_when_due(url, (*_DELAYS_MS, _THREE_LEVELS_MS), snoozes=3)


@pytest.mark.broker
async def test_deleted_level_makes_no_delayed_message_early(amqp_url: str) -> None:
    """The broker skips the missing level.

    The last hop notices it, restores it and lets the message wait.
    """
    app = App("later")
    app.delays("1m")
    early: list[float] = []
    told: list[str] = []

    @app.handler("later.work", retry=None)
    async def work(due: float) -> None:
        early.append(max(0.0, due - time.time()))

    environment = Environment(Bus(lambda name, _fields: told.append(name)))
    service = Service(app, RabbitMQ(amqp_url), environment=environment)
    running = asyncio.create_task(service.run())
    await asyncio.wait_for(service.ready.wait(), 60)
    connection = await RabbitMQ(amqp_url).connect("operator")
    channel = await connection.open_channel()
    await channel.delete_queue("hopback.delay.level-01")
    for _ in range(_EACH):
        due = time.time() + 3
        await app.publish("later.work", due, delay=3)
        await app.publish("later.work", due, at=datetime.fromtimestamp(due, UTC))
    await until(lambda: len(early) == 2 * _EACH, seconds=240)
    service.stop()
    await running
    await connection.close()
    assert max(early) == 0.0
    assert {"delay.early", "topology.restored"} <= set(told)


@pytest.mark.broker
async def test_policy_that_changes_waits_is_reported_while_running(
    rabbitmq: SharedNode, vhost: str
) -> None:
    app = App("later")
    app.queue("later.work", retry=["1m"])
    told: list[tuple[str, str]] = []
    counts: list[int | None] = []
    bus = Bus(lambda _name, fields: told.append((fields["place"], fields["text"])))
    address = ManagementAddress.derive(rabbitmq.url + vhost, rabbitmq.management_url)
    connection = await RabbitMQ(rabbitmq.url + vhost).connect()
    await declare(connection, app.topology)
    definition = {"message-ttl": 2000, "expires": 100_000_000}
    body = {"pattern": ".*", "definition": definition, "apply-to": "queues"}
    rabbitmq.management.call("PUT", f"/policies/{vhost}/all", body)
    async with Management(address) as management:
        watch = PolicyWatch(lambda: app.topology, bus, counts.append)
        reader = QueueReadings(management, vhost, [watch.receive], every=0.5)
        watching = asyncio.create_task(reader.attend(connection))
        await until(lambda: bool(counts) and counts[-1] == 3, seconds=60)
        watching.cancel()
    await connection.close()
    assert {place for place, _ in told} == {"policy:all"}
    keys = [re.findall("`(message-ttl|expires)`", text) for _, text in told]
    assert sorted(keys) == [["expires"], ["message-ttl"]]
