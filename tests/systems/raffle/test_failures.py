"""The failure scenarios of the raffle's document, with the application."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy import select

from hopback.runtime.depths import Depths, queues_to_watch
from hopback.store import Database
from hopback.systems.database import find_rows
from hopback.systems.raffle.consumer import GrowingPause, create_dead_letter_consumer
from hopback.systems.raffle.raffles import METADATA, dropped
from hopback.systems.raffle.settings import Batching, RaffleSettings
from hopback.testing import AppTest, Fault, in_virtual_time
from tests.integration.database import database_url
from tests.systems.raffle.running import run_raffle, settings_in

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["database_url"]

_FORMS = pytest.mark.parametrize("hardened", [False, True], ids=["faithful", "hardened"])


@_FORMS
@in_virtual_time
async def test_users_are_inserted_by_retry_after_short_database_outage(
    tmp_path: Path, hardened: bool
) -> None:
    """Scenario 1: retried after ten seconds with count and reason, inserted after the outage."""
    away = tmp_path / "away"
    async with run_raffle(settings_in(away, hardened=hardened)) as raffle:
        ids = [await raffle.create_user(name) for name in ("Ana", "Bruno")]
        await raffle.test.advance(5)
        waiting = raffle.messages_in("raffle_retry_10s")
        assert [one.properties.headers["x-retries"] for one in waiting] == [1, 1]
        reasons = {one.properties.headers["x-retry-reason"] for one in waiting}
        assert reasons == {"db_error: unable to open database file"}
        away.mkdir()
        tally = await raffle.test.drain()
        assert (tally.done, tally.retried, tally.parked) == (2, 2, 0)
        answers = [await raffle.user(one) for one in ids]
        assert [answer.json()["name"] for answer in answers] == ["Ana", "Bruno"]


@_FORMS
@in_virtual_time
async def test_users_go_to_dlq_in_long_database_outage_and_dlq_consumer_inserts_them(
    tmp_path: Path, hardened: bool
) -> None:
    """Scenario 2: four runs, then the DLQ. The DLQ consumer, started manually, waits and inserts."""
    away = tmp_path / "away"
    settings = settings_in(away, hardened=hardened)
    async with run_raffle(settings) as raffle:
        ids = [await raffle.create_user(name) for name in ("Ana", "Bruno", "Carla")]
        tally = await raffle.test.drain()
        assert (tally.done, tally.retried, tally.parked) == (0, 9, 3)
        parked = raffle.messages_in("raffle_dlq")
        assert [one.properties.headers["x-retries"] for one in parked] == [3, 3, 3]

        async with AppTest(
            create_dead_letter_consumer(settings), broker=raffle.test.broker
        ) as by_hand:
            await by_hand.advance(9)
            held = [one.fields["delay_ms"] for one in by_hand.find_events("delivery.snoozed")]
            assert held[::3] == [1000, 2000]
            away.mkdir()
            tally = await by_hand.drain()
            assert (tally.done, tally.parked) == (3, 0)
        assert raffle.messages_in("raffle_dlq") == []
        for user_id in ids:
            assert (await raffle.user(user_id)).status_code == 200


@_FORMS
@in_virtual_time
async def test_malformed_json_goes_to_dlq_and_is_audited_and_dropped_there(
    tmp_path: Path, hardened: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Scenario 3: rejected at once. The DLQ consumer logs, audits and drops the message."""
    settings = settings_in(tmp_path, hardened=hardened)
    async with run_raffle(settings) as raffle:
        await raffle.enqueue(b'{"name": Ana')
        await raffle.enqueue({"id": "1", "name": "Ana", "email": "ana@email.com"})
        ana = await raffle.create_user("Ana")
        tally = await raffle.test.drain()
        assert (tally.done, tally.retried, tally.parked) == (1, 0, 2)
        assert (await raffle.user(ana)).status_code == 200

        async with AppTest(
            create_dead_letter_consumer(settings), broker=raffle.test.broker
        ) as by_hand:
            assert (await by_hand.drain()).done == 2
        assert raffle.messages_in("raffle_dlq") == []
    audited = sorted(bytes(row["body"]) for row in await _audit(settings.database))
    assert audited[0] == b'{"id":"1","name":"Ana","email":"ana@email.com"}'
    assert audited[1] == b'{"name": Ana'
    errors = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    assert any('{"name": Ana' in one for one in errors)


@in_virtual_time
async def test_invalid_user_stays_in_dlq_while_audit_cannot_be_written(
    tmp_path: Path,
) -> None:
    """The audit uses the same database."""
    settings = settings_in(tmp_path / "away")
    async with run_raffle(settings) as raffle:
        await raffle.enqueue(b"no JSON")
        await raffle.test.drain()
        async with AppTest(
            create_dead_letter_consumer(settings), broker=raffle.test.broker
        ) as by_hand:
            await by_hand.advance(20)
            assert not by_hand.find_events("delivery.done")
            (tmp_path / "away").mkdir()
            assert (await by_hand.drain()).done == 1


def test_pause_of_dlq_consumer_stays_at_a_minute_after_a_thousand_failures() -> None:
    """An error would move the dead letters to `raffle_queue`. 2.0 ** 1024 is an overflow."""
    pause = GrowingPause()
    pauses = [pause.grow().delay for _ in range(1100)]
    assert pauses[:7] == [1, 2, 4, 8, 16, 32, 60]
    assert pauses[-1] == 60
    pause.reset()
    assert pause.grow().delay == 1


@in_virtual_time
async def test_post_user_returns_503_while_rabbitmq_is_down_and_200_afterwards(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Scenario 4: a 503 instead of an ID. The same request succeeds when the broker is reachable again."""
    async with run_raffle(settings_in(tmp_path)) as raffle:
        raffle.test.faults.chance(Fault.REFUSE_CONNECTION, 1)
        raffle.test.broker.cut()
        body = {"name": "Ana", "email": "ana@email.com"}
        answer = await raffle.client.post("/api/v1/users", json=body)
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "5"
        assert "try again" in answer.json()["error"].lower()
        assert "raffle api: embedded RabbitMQ 4.0 refused the connection" in caplog.text
        assert "POST /api/v1/users: ConnectionFailed" in caplog.text
        raffle.test.faults.clear()
        await raffle.test.advance(60)
        await raffle.create_user("Ana")
        assert (await raffle.test.drain()).done == 1


@in_virtual_time
async def test_duplicate_email_retries_only_its_row(tmp_path: Path) -> None:
    """The other users of its batch are inserted at once. Its retries have the reason."""
    async with run_raffle(settings_in(tmp_path)) as raffle:
        await raffle.create_user("Ana")
        await raffle.test.drain()
        others = [await raffle.create_user(name) for name in ("Bruno", "Carla", "Davi")]
        taken = await raffle.create_user("Impostor", "ana@email.com")
        await raffle.test.advance(2)
        for user_id in others:
            assert (await raffle.user(user_id)).status_code == 200
        tally = await raffle.test.drain()
        assert (tally.done, tally.retried, tally.parked) == (3, 3, 1)
        (parked,) = raffle.messages_in("raffle_dlq")
        assert json.loads(parked.body)["id"] == taken
        reason = "data_error: UNIQUE constraint failed: users.email"
        assert parked.properties.headers["x-retry-reason"] == reason


@in_virtual_time
async def test_refused_dead_letter_is_requeued_and_the_others_are_inserted(tmp_path: Path) -> None:
    """The refused dead letter stays in the DLQ after every attempt."""
    settings = settings_in(tmp_path)
    async with run_raffle(settings) as raffle:
        await raffle.create_user("Ana")
        await raffle.test.drain()
        for name in ("ana", "bruno"):
            user = {"id": str(uuid.uuid4()), "name": name, "email": f"{name}@email.com"}
            await raffle.test.publish("raffle_dlq", user, exchange="raffle_dlx")
        async with AppTest(
            create_dead_letter_consumer(settings), broker=raffle.test.broker
        ) as by_hand:
            await by_hand.advance(600)
            assert len(by_hand.find_events("delivery.done")) == 1
            assert 5 < len(by_hand.find_events("delivery.snoozed")) < 20
        (left,) = raffle.messages_in("raffle_dlq")
        assert json.loads(left.body)["name"] == "ana"


@in_virtual_time
async def test_dlq_consumer_inserts_dead_letters_in_batches_of_its_size(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    settings = settings_in(tmp_path, dlq=Batching(size=2, processors=1, batchers=1))
    async with AppTest(create_dead_letter_consumer(settings)) as by_hand:
        for number in range(5):
            user = {"id": str(uuid.uuid4()), "name": "Ana", "email": f"ana{number}@email.com"}
            await by_hand.publish("raffle_dlq", user, exchange="raffle_dlx")
        assert (await by_hand.drain()).done == 5
    inserted = [line for line in caplog.messages if line.endswith("dead letters were inserted")]
    assert [line.split()[0] for line in inserted] == ["2", "2", "1"]


@in_virtual_time
async def test_depths_of_dead_letter_consumer_have_the_roles_of_the_design(tmp_path: Path) -> None:
    """Dead letters that the consumer holds during a database outage count as dead letters."""
    away = tmp_path / "away"
    settings = settings_in(away)
    async with run_raffle(settings) as raffle:
        for name in ("Ana", "Bruno", "Carla"):
            await raffle.create_user(name)
        await raffle.test.drain()
        raffle.test.service.consumer("raffle_queue").pause("by command")
        await raffle.create_user("Davi")
        app = create_dead_letter_consumer(settings)
        async with AppTest(app, broker=raffle.test.broker) as by_hand:
            await by_hand.advance(30)
            reported: dict[tuple[str, str], int | None] = {}
            depths = Depths(
                lambda: queues_to_watch(by_hand.service.topology, ["raffle_dlq"]),
                lambda queue, role, messages: reported.update({(queue, role): messages}),
                held=lambda queue: by_hand.service.consumer(queue).in_flight,
            )
            connection = await by_hand.broker.connect("depths")
            counting = asyncio.create_task(depths.attend(connection))
            await by_hand.advance(1)
            assert reported == {("raffle_dlq", "dead-letter"): 3, ("raffle_queue", "main"): 1}
            counting.cancel()
            await asyncio.gather(counting, return_exceptions=True)
            await connection.close()
            away.mkdir()
            await by_hand.drain()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_users_are_inserted_into_existing_table_with_uuid_ids(database_url: str) -> None:
    """The table has binary IDs, as Ecto creates it. A raffle refers to its rows."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE users (id uuid PRIMARY KEY, name varchar(255), email varchar(255) UNIQUE,"
            " inserted_at timestamp(0) NOT NULL, updated_at timestamp(0) NOT NULL)"
        )
    settings = RaffleSettings(database=database_url, users=Batching(10, 10, 1, 1))
    async with run_raffle(settings) as raffle:
        user_id = await raffle.create_user("Ana")
        await raffle.test.drain()
        assert (await raffle.user(user_id)).json()["name"] == "Ana"
        created = await raffle.client.post("/api/v1/raffles", json={"name": "A bicycle"})
        url = f"/api/v1/raffles/{created.json()['id']}"
        joined = await raffle.client.post(f"{url}/entries", json={"userId": user_id})
        assert joined.json()["entries"] == 1
        drawn = await raffle.client.post(f"{url}/draw")
        assert drawn.json()["winners"] == [{"id": user_id, "name": "Ana"}]
        for path in ("/api/v1/users/none", "/api/v1/raffles/none", "/api/v1/users/%00"):
            assert (await raffle.client.get(path)).status_code == 404


async def _audit(url: str) -> list[Any]:
    database = Database(url, tables=METADATA)
    try:
        return list(await find_rows(database, select(dropped)))
    finally:
        await database.close()
