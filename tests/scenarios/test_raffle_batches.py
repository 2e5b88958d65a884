"""Statements of the raffle's document about batches: users are inserted together and fail separately."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from hopback.broker.embedded import EmbeddedBroker
from hopback.designs import raffle
from hopback.runtime.app import App
from hopback.testing.kit import AppTest, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable

_QUEUE, _DLQ = "raffle_queue", "raffle_dlq"
_FORMS = pytest.mark.parametrize("hardened", [False, True], ids=["faithful", "hardened"])


@dataclass
class _Database:
    """A table of users that may be unreachable. A statement inserts all of its rows or none."""

    users: dict[str, str] = field(default_factory=dict)
    statements: list[list[str]] = field(default_factory=list)
    failures_left: int = 0
    """The number of statements that fail to connect."""
    callbacks: list[Callable[[], object]] = field(default_factory=list)
    """Functions that run after the next inserts, before the caller continues."""

    async def insert(self, rows: list[dict[str, Any]]) -> None:
        """Insert rows, idempotent by ID. An e-mail address without @ is a data error."""
        self.statements.append([row["id"] for row in rows])
        if self.failures_left:
            self.failures_left -= 1
            raise ConnectionError("connection timeout")
        if any("@" not in row["email"] for row in rows):
            raise ValueError("invalid e-mail")
        self.users |= {row["id"]: row["email"] for row in rows if row["id"] not in self.users}
        if self.callbacks:
            self.callbacks.pop()()


def _app(database: _Database, *, hardened: bool, size: int = 1000) -> App:
    app = App("raffle", topology=raffle(hardened=hardened))

    async def parse(user: dict[str, Any]) -> dict[str, Any]:
        return user

    register = app.batch(_QUEUE, size=size, wait="1s", batchers=2, prepare=parse, processors=8)
    register(database.insert)
    return app


async def _enqueue(test: AppTest, *ids: str, email: str = "{}@example.org") -> None:
    for one in ids:
        user = {"id": one, "name": one, "email": email.format(one)}
        await test.publish("raffle_queue", user, exchange="raffle_exchange")


@_FORMS
@in_virtual_time
async def test_users_are_inserted_when_the_batch_is_full_or_after_1000_ms(hardened: bool) -> None:
    """Every message is acked."""
    database = _Database()
    async with AppTest(_app(database, hardened=hardened, size=3)) as test:
        await _enqueue(test, *"abcdefg")
        await test.advance(0.5)
        assert database.statements == [["a", "b", "c"], ["d", "e", "f"]]
        tally = await test.drain()
        assert database.statements[2:] == [["g"]]
        assert (tally.done, tally.retried, tally.parked) == (7, 0, 0)
    assert sorted(database.users) == list("abcdefg")


@_FORMS
@in_virtual_time
async def test_lost_connection_retries_every_message_of_the_batch(hardened: bool) -> None:
    """All of them have `x-retries` 1 and form a batch again."""
    database = _Database(failures_left=1)
    async with AppTest(_app(database, hardened=hardened)) as test:
        await _enqueue(test, *"abcde")
        await test.advance(5)
        waiting = test.broker.snapshot().queue("raffle_retry_10s").messages
        headers = [message.properties.headers for message in waiting]
        assert [found["x-retries"] for found in headers] == [1] * 5
        reason = "ConnectionError: connection timeout"
        assert {found["x-retry-reason"] for found in headers} == {reason}
        tally = await test.drain()
        assert (tally.done, tally.retried, tally.parked) == (5, 5, 0)
    assert [sorted(ids) for ids in database.statements] == [list("abcde")] * 2
    assert sorted(database.users) == list("abcde")


@_FORMS
@in_virtual_time
async def test_long_database_outage_moves_every_user_to_the_dlq(hardened: bool) -> None:
    """The complete batch is tried four times."""
    database = _Database(failures_left=4)
    async with AppTest(_app(database, hardened=hardened)) as test:
        await _enqueue(test, *"abc")
        tally = await test.drain()
        assert (tally.done, tally.retried, tally.parked) == (0, 9, 3)
        assert len(database.statements) == 4
        parked = test.dead_letters(_QUEUE)
        assert [message.properties.headers["x-retries"] for message in parked] == [3, 3, 3]
    assert database.users == {}


@_FORMS
@in_virtual_time
async def test_data_error_retries_only_the_bad_row(hardened: bool) -> None:
    """The bad row is found by bisection. The other rows are inserted within the same second."""
    database = _Database()
    async with AppTest(_app(database, hardened=hardened)) as test:
        await _enqueue(test, *"abc")
        await _enqueue(test, "bad", email="nonsense")
        await _enqueue(test, *"de")
        await test.advance(2)
        assert sorted(database.users) == list("abcde")
        tally = await test.drain()
        assert (tally.done, tally.retried, tally.parked) == (5, 3, 1)
        (parked,) = test.dead_letters(_QUEUE)
        assert b'"bad"' in parked.body
        assert parked.properties.headers["x-retry-reason"] == "ValueError: invalid e-mail"


@_FORMS
@in_virtual_time
async def test_malformed_json_is_parked_without_the_batch(hardened: bool) -> None:
    """It goes to the DLQ at once, and the other messages are inserted."""
    database = _Database()
    async with AppTest(_app(database, hardened=hardened)) as test:
        await _enqueue(test, "a")
        await test.publish("raffle_queue", b"{not json", exchange="raffle_exchange")
        await _enqueue(test, "b")
        tally = await test.drain()
        assert (tally.done, tally.retried, tally.parked) == (2, 0, 1)
        assert [message.body for message in test.dead_letters(_QUEUE)] == [b"{not json"]
    assert database.statements == [["a", "b"]]


@_FORMS
@in_virtual_time
async def test_batch_with_lost_acks_is_inserted_again_without_effect(
    hardened: bool,
) -> None:
    """The connection breaks after the insert. All messages are redelivered, and each user exists once."""
    database, broker = _Database(), EmbeddedBroker()
    database.callbacks = [broker.cut]
    async with AppTest(_app(database, hardened=hardened), broker=broker) as test:
        await _enqueue(test, *"abc")
        tally = await test.drain()
        assert (tally.done, tally.abandoned, tally.retried) == (3, 3, 0)
    assert [sorted(ids) for ids in database.statements] == [list("abc")] * 2
    assert sorted(database.users) == list("abc")
