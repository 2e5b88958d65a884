"""Error answers of the systems' web applications."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from hopback.broker import EmbeddedBroker
from hopback.systems.event_bus.api import create_api as event_bus_api
from hopback.systems.event_bus.settings import EventBusSettings
from hopback.systems.freeflow.api import create_api as freeflow_api
from hopback.systems.freeflow.settings import FreeFlowSettings
from hopback.systems.raffle.api import create_api as raffle_api
from hopback.systems.raffle.settings import RaffleSettings
from hopback.systems.ratatoskr.api import create_api as ratatoskr_api
from hopback.systems.ratatoskr.settings import RatatoskrSettings
from hopback.systems.web import opened
from hopback.testing import Fault, in_virtual_time
from tests.integration.database import database_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

__all__ = ["database_url"]

_ORDER = {"type": "order.placed", "order": "o1", "sku": "acorn", "quantity": 1}
_DEEP = b"[" * 150 + b"]" * 150
_USER = {"name": "Ana", "email": "ana@email.com"}
_VALID_REQUESTS: dict[str, tuple[str, Any, str]] = {
    "raffle": ("/api/v1/users", _USER, "raffle_queue"),
    "freeflow": ("/events/document.created", {"id": "d", "title": "t"}, "freeflow.documents.queue"),
    "event-bus": ("/buses/wms/events", {"type": "order.created"}, "wms.queue.wms-orders"),
    "ratatoskr": ("/events", _ORDER, "my-service.events"),
}


@asynccontextmanager
async def open_web(
    name: str, database: str, broker: EmbeddedBroker | None = None
) -> AsyncIterator[tuple[httpx.AsyncClient, EmbeddedBroker]]:
    """Run the web part of a system alone, on an empty broker."""
    broker = broker or EmbeddedBroker()
    made = {
        "raffle": lambda: raffle_api(RaffleSettings(database), broker),
        "freeflow": lambda: freeflow_api(FreeFlowSettings(database), broker),
        "event-bus": lambda: event_bus_api(EventBusSettings(), broker),
        "ratatoskr": lambda: ratatoskr_api(RatatoskrSettings(database), broker),
    }[name]()
    transport = httpx.ASGITransport(made, raise_app_exceptions=False)
    async with (
        opened(made),
        httpx.AsyncClient(transport=transport, base_url="http://web") as client,
    ):
        yield client, broker


@pytest.mark.parametrize("name", _VALID_REQUESTS)
@in_virtual_time
async def test_web_part_publishes_before_consumers_start(name: str, tmp_path: Path) -> None:
    """It declares the topology, so published messages wait for the consumers."""
    path, body, queue = _VALID_REQUESTS[name]
    async with open_web(name, f"sqlite:///{tmp_path}/x.db") as (client, broker):
        answer = await client.post(path, json=body)
        assert answer.status_code in (200, 202), answer.text
        assert len(broker.snapshot().queue(queue).messages) == 1


@pytest.mark.parametrize(
    ("name", "path", "headers", "body"),
    [
        ("ratatoskr", "/events", {"idempotency-key": "k" * 300}, _ORDER),
        ("ratatoskr", "/events", {"idempotency-key": "ü"}, _ORDER),
        ("ratatoskr", "/events", {}, b'{"type": "order.placed", "order": "a\\u0000"}'),
        ("freeflow", f"/events/document.{'a' * 300}", {}, {}),
        ("freeflow", "/events/document.created", {}, b'{"id": NaN}'),
        ("freeflow", "/events/document.created", {}, b'{"id": {"deep": ["a\\udfff"]}}'),
        ("event-bus", "/buses/wms/events", {}, {"type": "\N{GRINNING FACE}" * 100}),
        ("event-bus", "/buses/wms/events", {}, b'{"type": "a\\ud800"}'),
        ("event-bus", "/buses/wms/events", {}, b'{"type": "x", "payload": NaN}'),
        ("event-bus", "/buses/wms/events", {}, b'{"type": "x", "payload": -Infinity}'),
        ("event-bus", "/buses/wms/events", {}, b'{"type": "x", "payload": [-1e400]}'),
        ("event-bus", "/buses/wms/events", {}, b'{"type": "x", "payload": %b}' % _DEEP),
        ("raffle", "/api/v1/raffles", {}, b'{"name": "a\\ud800b"}'),
        ("raffle", "/api/v1/raffles", {}, b'{"name": "a\\u0000b"}'),
        ("raffle", "/api/v1/users", {"idempotency-key": " "}, _USER),
    ],
)
@in_virtual_time
async def test_text_that_cannot_be_encoded_returns_400(
    name: str, path: str, headers: dict[str, str], body: Any, tmp_path: Path
) -> None:
    """Never a 503, which would ask to retry the same request."""
    async with open_web(name, f"sqlite:///{tmp_path}/x.db") as (client, _):
        content = {"content": body} if isinstance(body, bytes) else {"json": body}
        raw = [(key.encode(), value.encode()) for key, value in headers.items()]
        answer = await client.post(path, headers=raw, **content)
        assert answer.status_code == 400, answer.text
        assert "expected" in answer.json()["error"]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("ratatoskr", "/orders/%00"),
        ("freeflow", "/users/%00"),
    ],
)
async def test_nul_in_path_returns_400(name: str, path: str, database_url: str) -> None:
    """PostgreSQL cannot store NUL. The answer is not "the database cannot be reached"."""
    async with open_web(name, database_url) as (client, _):
        answer = await client.get(path)
        assert (answer.status_code, "error" in answer.json()) == (400, True)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_warehouse_is_closed_by_concurrent_requests(database_url: str) -> None:
    """Of the first requests, each of which inserts the row."""
    async with open_web("ratatoskr", database_url) as (client, _):
        closed = [client.put("/warehouse", json={"open": False}) for _ in range(8)]
        statuses = [answer.status_code for answer in await asyncio.gather(*closed)]
        assert statuses == [200] * 8


@pytest.mark.parametrize("name", _VALID_REQUESTS)
@in_virtual_time
async def test_503_while_broker_is_down_states_that_message_was_not_sent(
    name: str, tmp_path: Path
) -> None:
    """The answer arrives within seconds, and later requests succeed."""
    path, body, _ = _VALID_REQUESTS[name]
    broker = EmbeddedBroker()
    broker.faults.chance(Fault.REFUSE_CONNECTION, 1.0)
    async with open_web(name, f"sqlite:///{tmp_path}/x.db", broker) as (client, _):
        away = await client.post(path, json=body)
        assert away.status_code == 503
        assert "nothing was sent" in away.json()["error"]
        assert away.headers["retry-after"]
        broker.faults.clear()
        # It reconnects after a random pause. A client that respects Retry-After succeeds.
        for _ in range(10):
            again = await client.post(path, json=body)
            if again.status_code != 503:
                break
            await asyncio.sleep(float(again.headers["retry-after"]))
        assert again.status_code in (200, 202)


@pytest.mark.parametrize("name", _VALID_REQUESTS)
@in_virtual_time
async def test_503_after_missing_confirm_has_idempotency_key(name: str, tmp_path: Path) -> None:
    """The message was stored. The second publish has the same message ID."""
    path, body, queue = _VALID_REQUESTS[name]
    async with open_web(name, f"sqlite:///{tmp_path}/x.db") as (client, broker):
        assert (await client.post(path, json=body)).status_code in (200, 202)
        broker.faults.inject(Fault.CUT_AFTER_PUBLISH)
        doubtful = await client.post(path, json=body)
        assert doubtful.status_code == 503
        error = doubtful.json()["error"]
        assert "may have been stored" in error
        key = error.partition("Idempotency-Key: ")[2].partition("`")[0]
        again = await client.post(path, json=body, headers={"idempotency-key": key})
        assert again.json()["id"] == key
        ids = [one.properties.message_id for one in broker.snapshot().queue(queue).messages]
        assert ids[1:] == [key, key]


@in_virtual_time
async def test_503_after_deleted_exchange_names_topology_apply(tmp_path: Path) -> None:
    """No message was stored, and the error has the command for the repair."""
    async with open_web("raffle", f"sqlite:///{tmp_path}/x.db") as (client, broker):
        assert (await client.post("/api/v1/users", json=_USER)).status_code == 200
        connection = await broker.connect("operator")
        channel = await connection.open_channel()
        await channel.delete_exchange("raffle_exchange")
        await connection.close()
        answer = await client.post("/api/v1/users", json=_USER)
        assert answer.status_code == 503
        assert "hopback topology apply" in answer.json()["error"]
        assert "nothing was stored" in answer.json()["error"]


@in_virtual_time
async def test_user_sent_twice_with_idempotency_key_has_one_id(tmp_path: Path) -> None:
    """The same key and user give the same ID. Another user with the key has a different ID."""
    async with open_web("raffle", f"sqlite:///{tmp_path}/x.db") as (client, _):

        async def create(key: str, **user: str) -> str:
            answer = await client.post(
                "/api/v1/users", json={**_USER, **user}, headers={"idempotency-key": key}
            )
            found: str = answer.json()["id"]
            return found

        first = await create("form-17")
        assert await create("form-17") == first
        assert await create("form-17", name="Bia") != first
        assert await create("form-18") != first
        assert await create(first) == first
