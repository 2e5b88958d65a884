"""The main flow of each system on RabbitMQ, with SQLite and with PostgreSQL."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select

from hopback import Message
from hopback.store import Database
from hopback.systems.database import find_rows
from hopback.systems.host import Host, running
from hopback.systems.raffle.consumer import create_dead_letter_consumer
from hopback.systems.raffle.raffles import METADATA, dropped
from hopback.systems.raffle.settings import Batching, RaffleSettings
from tests.harness.postgres import PostgresNode
from tests.integration.database import database_url
from tests.systems.running_system import run_system

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.systems.running_system import RunningSystem

__all__ = ["database_url"]

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("systems")]


def _path_exists(system: RunningSystem, path: str) -> Callable[[], Awaitable[Any]]:
    """Return a condition: the path returns JSON."""

    async def look() -> Any:
        return await system.json(path)

    return look


def _has_messages(system: RunningSystem, queue: str, count: int) -> Callable[[], Awaitable[bool]]:
    """Return a condition: the queue has this number of messages."""

    async def look() -> bool:
        return await system.depth(queue) == count

    return look


def _has_audited_drops(settings: RaffleSettings) -> Callable[[], Awaitable[Any]]:
    """Return a condition: the audit contains a dropped message."""

    async def look() -> Any:
        database = Database(settings.database, tables=METADATA)
        try:
            return await find_rows(database, select(dropped))
        finally:
            await database.close()

    return look


async def test_raffle_inserts_users_draws_winners_and_parks_bad_messages(
    amqp_url: str, database_url: str, tmp_path: Path
) -> None:
    """Messages with a taken e-mail address and with malformed JSON end in the DLQ."""
    quick = {"RETRY_TTL_MS": "200", "USERS_BATCH_TIMEOUT_MS": "50"}
    async with run_system("raffle", amqp_url, database_url, tmp_path, **quick) as raffle:
        created = []
        for name in ("Ana", "Bruno"):
            body = {"name": name, "email": f"{name}@email.com"}
            answer = await raffle.client.post("/api/v1/users", json=body)
            created.append(answer.json()["id"])
        for user_id in created:
            await raffle.wait_until(_path_exists(raffle, f"/api/v1/users/{user_id}"))
        body = {"name": "Impostor", "email": "Ana@email.com"}
        assert (await raffle.client.post("/api/v1/users", json=body)).status_code == 200
        await raffle.publish(Message("raffle_exchange", "raffle_queue", b'{"name": Ana'))

        made = await raffle.client.post("/api/v1/raffles", json={"name": "A bicycle"})
        url = f"/api/v1/raffles/{made.json()['id']}"
        for user_id in created:
            await raffle.client.post(f"{url}/entries", json={"userId": user_id})
        draws = await asyncio.gather(*(raffle.client.post(f"{url}/draw") for _ in range(3)))
        assert sorted(answer.status_code for answer in draws) == [200, 409, 409]
        assert (await raffle.json(url))["winners"][0]["id"] in created
        await raffle.wait_until(_has_messages(raffle, "raffle_dlq", 2))
        assert await raffle.depth("raffle_retry_10s") == 0
        host = Host(raffle.broker, database_url, tmp_path, "")
        settings = RaffleSettings(database_url, retry_ttl_ms=200, dlq=Batching(500, 50, 1, 1))
        async with running(host, create_dead_letter_consumer(settings)):
            await raffle.wait_until(_has_audited_drops(settings))
        # The message with the taken e-mail address stays in the DLQ.
        await raffle.wait_until(_has_messages(raffle, "raffle_dlq", 1))


async def test_raffle_inserts_waiting_users_after_database_restart(
    amqp_url: str, tmp_path: Path
) -> None:
    """PostgreSQL stops and starts. A user created in between is inserted by a retry."""
    node = PostgresNode().start()
    quick = {"RETRY_TTL_MS": "500", "USERS_BATCH_TIMEOUT_MS": "50", "MAX_RETRIES": "100"}
    try:
        async with run_system("raffle", amqp_url, node.url(), tmp_path, **quick) as raffle:
            first = {"name": "Ana", "email": "ana@email.com"}
            answer = await raffle.client.post("/api/v1/users", json=first)
            await raffle.wait_until(_path_exists(raffle, f"/api/v1/users/{answer.json()['id']}"))
            await asyncio.to_thread(node.stop, "immediate")
            between = {"name": "Bruno", "email": "bruno@email.com"}
            answer = await raffle.client.post("/api/v1/users", json=between)
            assert answer.status_code == 200
            await raffle.wait_until(_has_messages(raffle, "raffle_retry_10s", 1))
            away = await raffle.client.get(f"/api/v1/users/{answer.json()['id']}")
            assert (away.status_code, "try again" in away.json()["error"].lower()) == (503, True)
            await asyncio.to_thread(node.start)
            await raffle.wait_until(_path_exists(raffle, f"/api/v1/users/{answer.json()['id']}"))
    finally:
        node.remove()


async def test_event_bus_retries_an_event_only_for_the_failed_service(
    amqp_url: str, tmp_path: Path
) -> None:
    """Over HTTP."""
    async with run_system("event-bus", amqp_url, "sqlite://", tmp_path) as bus:
        shaky = {"status": 503, "times": 1}
        await bus.client.put("/receiver/wms-orders/behaviour", json=shaky)
        event = {"type": "order.created", "payload": {"order": 1}}
        assert (await bus.client.post("/buses/wms/events", json=event)).status_code == 202

        async def retried_events() -> Any:
            seen = (await bus.json("/receiver/wms-orders/events"))["events"]
            return seen if len(seen) == 2 else None

        seen = await bus.wait_until(retried_events)
        assert [(one["attempt"], one["answered"]) for one in seen] == [(1, 503), (2, 200)]
        others = (await bus.json("/receiver/wms-cincout/events"))["events"]
        assert [(one["attempt"], one["answered"]) for one in others] == [(1, 200)]


async def test_freeflow_handles_retries_and_parks_events(
    amqp_url: str, database_url: str, tmp_path: Path
) -> None:
    """Early events wait in their tier, non-recoverable events are in the DLQ, and the audit has all
    events.
    """
    everything = {"FREEFLOW_AUDIT_KEYS": "#"}
    async with run_system("freeflow", amqp_url, database_url, tmp_path, **everything) as system:
        for key, data in (
            ("workflow.started", {"id": "w1", "owner": "una@example.org", "steps": 1}),
            ("auth.succeeded", {"user": "nobody"}),
            ("notification.requested", {"to": "busy@example.org", "text": "lunch"}),
            ("document.created", {"id": "d1"}),
        ):
            assert (await system.client.post(f"/events/{key}", json=data)).status_code == 202
        await system.wait_until(_path_exists(system, "/workflows"))
        await system.wait_until(_has_messages(system, "freeflow.auth.retry.30s", 1))
        await system.wait_until(_has_messages(system, "freeflow.notification.retry.5m", 1))
        await system.wait_until(_has_messages(system, "freeflow.events.dlq", 1))
        await system.client.post("/events/workflow.advanced", json={"id": "w1"})
        (note,) = await system.wait_until(_path_exists(system, "/notifications"))
        assert note["recipient"] == "una@example.org"

        async def is_audited() -> bool:
            return len(await system.json("/audit")) == 6

        await system.wait_until(is_audited)


async def test_ratatoskr_retries_early_payment_and_parks_unknown_sku(
    amqp_url: str, database_url: str, tmp_path: Path
) -> None:
    """On quorum queues. An order sent twice has one effect."""
    quick = {"RATATOSKR_RETRY_DELAY_MS": "300", "RATATOSKR_MAX_RETRIES": "20"}
    async with run_system("ratatoskr", amqp_url, database_url, tmp_path, **quick) as shop:
        paid = {"type": "payment.received", "order": "o1", "cents": 10}
        placed = {"type": "order.placed", "order": "o1", "sku": "acorn", "quantity": 2}
        await shop.client.post("/events", json=paid)
        await asyncio.sleep(0.2)
        for _ in range(2):
            again = {"idempotency-key": "event-1"}
            await shop.client.post("/events", json=placed, headers=again)
        await shop.client.post("/events", json={**placed, "order": "o2", "sku": "coconut"})

        async def is_paid() -> bool:
            return (await shop.json("/orders/o1") or {}).get("state") == "paid"

        await shop.wait_until(is_paid)
        await shop.wait_until(_has_messages(shop, "my-service.events.dlq", 1))
        assert await shop.json("/orders/o2") is None
