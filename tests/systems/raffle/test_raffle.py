"""The raffle without failures: users, batches, raffles, settings."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event, func, select

from hopback.errors import TopologyConflict
from hopback.runtime.handler import BatchHandler
from hopback.store import Database
from hopback.systems.database import find_rows
from hopback.systems.raffle.consumer import create_consumer, create_dead_letter_consumer
from hopback.systems.raffle.raffles import METADATA, User, insert_users, users
from hopback.systems.raffle.settings import Batching, RaffleSettings
from hopback.systems.settings import SettingsError
from hopback.testing import AppTest, in_virtual_time
from tests.integration.database import database_url
from tests.systems.raffle.running import run_raffle, settings_in

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["database_url"]


@pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
async def test_batch_of_1000_users_is_one_insert(database_url: str) -> None:
    database = Database(database_url, tables=METADATA)
    await database.prepare()
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        statements.append(statement)

    event.listen(database.engine.sync_engine, "before_cursor_execute", note)
    batch = [User(str(uuid.uuid4()), "Ana", f"ana{number}@email.com") for number in range(1000)]
    await insert_users(database, batch)
    assert [one[:17] for one in statements if "BEGIN" not in one] == ["INSERT INTO users"]
    await insert_users(database, batch)
    rows = await find_rows(database, select(func.count().label("users")).select_from(users))
    assert rows == [{"users": 1000}]
    await database.close()


@in_virtual_time
async def test_created_user_gets_an_id_and_is_inserted(tmp_path: Path) -> None:
    """The answer is 200 with a UUID of version 4. The row exists after the batch."""
    async with run_raffle(settings_in(tmp_path)) as raffle:
        body = {"name": "João Silva", "email": "joao@email.com"}
        answer = await raffle.client.post("/api/v1/users", json=body)
        assert answer.status_code == 200
        assert list(answer.json()) == ["id"]
        user_id = answer.json()["id"]
        assert uuid.UUID(user_id).version == 4
        assert (await raffle.user(user_id)).status_code == 404
        await raffle.test.drain()
        shown = (await raffle.user(user_id)).json()
        assert datetime.fromisoformat(shown.pop("insertedAt")).tzinfo is not None
        assert shown == {"id": user_id, **body}


@in_virtual_time
async def test_published_user_waits_in_raffle_queue_without_retry_headers(tmp_path: Path) -> None:
    async with run_raffle(settings_in(tmp_path)) as raffle:
        raffle.test.service.consumer("raffle_queue").pause("by command")
        await raffle.test.advance(1)
        user_id = await raffle.create_user("Ana")
        (message,) = raffle.messages_in("raffle_queue")
        assert json.loads(message.body) == {"id": user_id, "name": "Ana", "email": "ana@email.com"}
        assert not {"x-retries", "x-retry-reason"} & set(message.properties.headers)


@in_virtual_time
async def test_redelivered_user_is_inserted_once(tmp_path: Path) -> None:
    """The insert is idempotent by ID, within a batch and between batches."""
    async with run_raffle(settings_in(tmp_path)) as raffle:
        user = {"id": str(uuid.uuid4()), "name": "Ana", "email": "ana@email.com"}
        await raffle.enqueue(user)
        await raffle.enqueue(user)
        await raffle.test.drain()
        await raffle.enqueue(user | {"name": "Another"})
        tally = await raffle.test.drain()
        assert (tally.done, tally.retried) == (1, 0)
        shown = (await raffle.user(user["id"])).json()
        assert {**shown, **user} == shown


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{", "JSON"),
        (b"[]", "a JSON object"),
        (b'{"name": "Ana"}', "email"),
        (b'{"name": " ", "email": "a@b"}', "name"),
        (b'{"name": "Ana", "email": "nonsense"}', "email"),
        (b'{"name": 7, "email": "a@b"}', "name"),
        (b'{"name": "A\\u0000a", "email": "a@b"}', "name"),
        (b'{"name": "A\\ud800a", "email": "a@b"}', "name"),
    ],
)
@in_virtual_time
async def test_invalid_user_request_returns_400(tmp_path: Path, body: bytes, expected: str) -> None:
    """The error names the invalid field, and no message is published."""
    async with run_raffle(settings_in(tmp_path)) as raffle:
        answer = await raffle.client.post("/api/v1/users", content=body)
        assert answer.status_code == 400
        assert expected in answer.json()["error"]
        assert raffle.messages_in("raffle_queue") == []


@in_virtual_time
async def test_too_large_request_returns_413(tmp_path: Path) -> None:
    async with run_raffle(settings_in(tmp_path)) as raffle:
        answer = await raffle.client.post("/api/v1/users", content=b" " * 1_000_001)
        assert answer.status_code == 413


@in_virtual_time
async def test_users_join_a_raffle_and_it_is_drawn_once(tmp_path: Path) -> None:
    """Two of three win. A second draw, a late entry and too many winners are refused."""
    async with run_raffle(settings_in(tmp_path)) as raffle:
        users = [await raffle.create_user(name) for name in ("Ana", "Bruno", "Carla")]
        late = await raffle.create_user("Davi")
        await raffle.test.drain()
        created = await raffle.client.post("/api/v1/raffles", json={"name": "A bicycle"})
        url = f"/api/v1/raffles/{created.json()['id']}"
        for user_id in [*users, users[0]]:
            joined = await raffle.client.post(f"{url}/entries", json={"userId": user_id})
            assert joined.status_code == 200
        assert joined.json()["entries"] == 3
        too_many = await raffle.client.post(f"{url}/draw", json={"winners": 4})
        assert too_many.status_code == 409

        drawn = (await raffle.client.post(f"{url}/draw", json={"winners": 2})).json()
        winners = {winner["id"] for winner in drawn["winners"]}
        assert len(winners) == 2
        assert winners < set(users)
        assert (await raffle.client.get(url)).json() == drawn
        again = await raffle.client.post(f"{url}/draw", json={"winners": 1})
        assert (again.status_code, again.json()["error"]) == (409, "the raffle is already drawn")
        entry = await raffle.client.post(f"{url}/entries", json={"userId": late})
        assert entry.status_code == 409


@in_virtual_time
async def test_unknown_raffles_and_users_return_404(tmp_path: Path) -> None:
    async with run_raffle(settings_in(tmp_path)) as raffle:
        created = await raffle.client.post("/api/v1/raffles", json={"name": "A bicycle"})
        url = f"/api/v1/raffles/{created.json()['id']}"
        answers = [
            await raffle.client.get("/api/v1/raffles/none"),
            await raffle.client.post("/api/v1/raffles/none/draw"),
            await raffle.client.post(f"{url}/entries", json={"userId": "none"}),
        ]
        assert [answer.status_code for answer in answers] == [404] * 3


def test_every_documented_variable_is_read() -> None:
    """Without variables the defaults of the document apply."""
    assert RaffleSettings.read({}) == RaffleSettings(
        database="sqlite:///raffle.db",
        retry_ttl_ms=10_000,
        max_retries=3,
        users=Batching(1000, 1000, 8, 2),
        dlq=Batching(500, 1000, 1, 1),
    )
    variables = {
        "DATABASE_URL": "postgresql://localhost/raffle",
        "HARDENED": "yes",
        "RETRY_TTL_MS": "5000",
        "MAX_RETRIES": "0",
        "USERS_BATCH_SIZE": "10",
        "USERS_BATCH_TIMEOUT_MS": "20",
        "USERS_PROC_CONCURRENCY": "3",
        "USERS_BATCH_CONCURRENCY": "4",
        "DLQ_BATCH_SIZE": "5",
        "DLQ_BATCH_TIMEOUT_MS": "6",
        "DLQ_PROC_CONCURRENCY": "7",
        "DLQ_BATCH_CONCURRENCY": "8",
    }
    assert RaffleSettings.read(variables) == RaffleSettings(
        "postgresql://localhost/raffle",
        True,
        5000,
        0,
        Batching(10, 20, 3, 4),
        Batching(5, 6, 7, 8),
    )


def test_batch_sizes_and_concurrency_of_consumers_are_those_of_the_settings() -> None:
    settings = RaffleSettings(users=Batching(10, 20, 3, 4), dlq=Batching(5, 6, 7, 8))
    users = create_consumer(settings).handlers["raffle_queue"]
    dead_letters = create_dead_letter_consumer(settings).handlers["raffle_dlq"]
    for handler, wanted in ((users, settings.users), (dead_letters, settings.dlq)):
        assert isinstance(handler, BatchHandler)
        assert handler.prepare is not None
        assert (handler.options.size, handler.options.wait) == (
            wanted.size,
            wanted.timeout_ms / 1000,
        )
        assert handler.options.batchers == wanted.batchers
        assert handler.prepare.options.concurrency == wanted.processors


def test_all_invalid_variables_are_reported_in_one_error() -> None:
    """With the expected and the actual value of each."""
    with pytest.raises(SettingsError) as error:
        RaffleSettings.read(
            {"RETRY_TTL_MS": "soon", "USERS_BATCH_SIZE": "0", "HARDENED": "perhaps"}
        )
    assert str(error.value) == (
        "HARDENED: expected yes or no, got 'perhaps'; "
        "RETRY_TTL_MS: expected a whole number from 1 to 2147483647, got 'soon'; "
        "USERS_BATCH_SIZE: expected a whole number from 1 to 10000, got '0'"
    )


@in_virtual_time
async def test_different_ttl_of_existing_queue_is_refused_with_both_values(tmp_path: Path) -> None:
    """The queue is not recreated, and the consumer does not start."""
    settings = settings_in(tmp_path)
    async with run_raffle(settings) as raffle:
        broker = raffle.test.broker
    with pytest.raises(TopologyConflict) as error:
        async with AppTest(create_consumer(replace(settings, retry_ttl_ms=5000)), broker=broker):
            pytest.fail("the consumer must not start")
    for part in ("raffle_retry_10s", "10000", "5000"):
        assert part in str(error.value)


@in_virtual_time
async def test_time_of_draw_has_a_time_zone_on_sqlite(tmp_path: Path) -> None:
    """SQLite itself stores no time zone."""
    async with run_raffle(settings_in(tmp_path)) as raffle:
        user = await raffle.create_user("Ana")
        await raffle.test.drain()
        made = await raffle.client.post("/api/v1/raffles", json={"name": "A bicycle"})
        url = f"/api/v1/raffles/{made.json()['id']}"
        await raffle.client.post(f"{url}/entries", json={"userId": user})
        await raffle.client.post(f"{url}/draw")
        drawn = (await raffle.client.get(url)).json()["drawnAt"]
        assert datetime.fromisoformat(drawn).tzinfo is not None
