"""A broker with dead letters at rest, and a client of the admin service over it. No sockets."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from zlib import crc32

import httpx

from hopback.clock import ManualClock
from hopback.headers import Failure, failure_json
from hopback.message import Message, Properties
from hopback.ops.contract.requests import Settings
from hopback.ops.http import AdminSettings, create_app
from hopback.ops.http.settings import parse_settings
from hopback.topology.expand import harden_queues, recommend_plan
from hopback.topology.model import Binding, Exchange, ExchangeType, Queue, Topology
from hopback.version import BrokerVersion
from tests.harness.loop_watch import watch_requests
from tests.harness.seeded import publish
from tests.unit.ops.service import open_service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from hopback.broker.embedded import EmbeddedBroker
    from hopback.ops.jobs.journal import Journal
    from hopback.ops.operations import Operations

__all__ = ["DLQ", "MAIN", "NOW", "SECRET", "Admin", "admin", "dead_letter", "settings", "topology"]

MAIN, DLQ = "orders", "orders.dlq"
NOW = 1_700_000_000.0
SECRET = "a secret of more than sixty-four bytes that only these tests may ever use"


@dataclass(frozen=True, slots=True)
class Admin:
    """A test service, its HTTP client, and the store and broker below it."""

    client: httpx.AsyncClient
    operations: Operations
    broker: EmbeddedBroker
    clock: ManualClock

    async def session(self, queue: str = DLQ, **body: Any) -> dict[str, Any]:
        """Open a browse session by the API."""
        answer = await self.client.post(f"/admin/dlq/queues/{queue}/sessions", json=body)
        assert answer.status_code == 201, answer.text
        found: dict[str, Any] = answer.json()
        return found


def topology(*others: str) -> Topology:
    """Queues of the recommended design behind a topic exchange. All of them share one dead-letter queue."""
    plan = recommend_plan(MAIN, tiers_ms=[30_000], attempts=2)
    plans = [recommend_plan(name, tiers_ms=[30_000], attempts=2) for name in others]
    plans = [plan, *(replace(other, parking=plan.parking) for other in plans)]
    queues = {queue.name: queue for each in plans for queue in harden_queues(each)}
    return Topology(
        "shop",
        exchanges=(Exchange("shop.events", ExchangeType.TOPIC),),
        queues=tuple(queues.values()),
        bindings=(Binding("shop.events", MAIN, "order.#"),),
        plans=tuple(plans),
    )


def dead_letter(
    number: int, error: str = "LookupError", body: bytes | None = None, redrives: int = 0
) -> Message:
    """A message as a Hopback consumer parks it."""
    failure = Failure(
        type=error,
        message=f"order {number} cannot be found",
        fingerprint=f"{crc32(error.encode()):08x}",
        frame="shop.orders:find",
        stack="shop.orders:find:12\nshop.app:main:3",
        host="box-1",
        first=NOW - 120,
        last=NOW - 60,
        attempts=2,
    )
    properties = Properties(
        content_type="application/json",
        delivery_mode=2,
        message_id=f"m-{number}",
        type="OrderCreated",
        headers={
            "hopback-attempts": 2,
            "hopback-queue": MAIN,
            "hopback-failure": failure_json(failure) or "",
            "hopback-origin-exchange": "shop.events",
            "hopback-origin-routing-key": "order.created",
            **({"hopback-redrives": redrives} if redrives else {}),
        },
    )
    content = json.dumps({"order": {"id": number}}).encode() if body is None else body
    return Message("", DLQ, content, properties)


def settings(**auth: Any) -> AdminSettings:
    """Settings for tokens signed with a shared secret. `auth` adds to the `auth` section."""
    jwt = {"issuer": "https://id.test", "audience": "hopback", "secret_env": "JWT_SECRET"}
    return parse_settings({"auth": {"jwt": jwt, **auth}}, {"JWT_SECRET": SECRET}, "test")


@asynccontextmanager
async def admin(
    *dead_letters: Message,
    exports: Path | None = None,
    editing: bool = False,
    version: str = "4.3",
    extra: tuple[Queue, ...] = (),
    raising: bool = True,
    journal: Journal | None = None,
    scan: int = 1000,
    name: str = "",
    others: tuple[str, ...] = (),
    **options: Any,
) -> AsyncIterator[Admin]:
    """Run the service over these dead letters. `options` are passed to `create_app`.

    `others` are queues that share the dead-letter queue of the main queue.
    """
    clock = ManualClock(NOW)
    opened = open_service(
        topology(*others),
        BrokerVersion.parse(version),
        name=name,
        clock=clock,
        settings=Settings(exports=exports, editing=editing, scan=scan),
        journal=journal,
    )
    async with opened as (broker, operations):
        connection = await broker.connect("declaring")
        channel = await connection.open_channel()
        for queue in extra:
            await channel.declare_queue(queue)
        await connection.close()
        await publish(broker, *dead_letters)
        app = create_app(
            operations, **{"environment": {"JWT_SECRET": SECRET}, "first_read_s": None, **options}
        )
        transport = httpx.ASGITransport(watch_requests(app), raise_app_exceptions=raising)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield Admin(client, operations, broker, clock)
