"""The consumers. Processors parse and validate users, and batchers insert them.

If the database fails, the whole batch is retried. If the database refuses a row, the row is found
by bisection and only this row is retried. Invalid messages are parked in the dead-letter queue
immediately.

The dead-letter consumer has to be started manually. It inserts users from the dead-letter queue. A
batch that fails is held for some time, which becomes longer with each failure, and then requeued.
Invalid messages are logged with their content, recorded in the audit and dropped.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from hopback import App, Context, Done, Rule, Snooze, Verdict
from hopback.designs.raffle import consume_dead_letters
from hopback.store import Database
from hopback.systems.raffle.raffles import (
    METADATA,
    InvalidUser,
    User,
    data_error,
    db_error,
    dropped,
    insert_users,
)
from hopback.systems.raffle.settings import RaffleSettings


def create_consumer(settings: RaffleSettings) -> App:
    """Return the application that inserts users from `raffle_queue`."""
    database = Database(settings.database, tables=METADATA, relays=False)
    app = App("raffle", topology=settings.topology(), lifespan=database.lifespan)

    async def parse(user: User) -> User:
        user.validate()
        return user

    @app.batch(
        "raffle_queue",
        size=settings.users.size,
        wait=timedelta(milliseconds=settings.users.timeout_ms),
        batchers=settings.users.batchers,
        prepare=parse,
        processors=settings.users.processors,
        rules=[Rule(InvalidUser, Verdict.PARK)],
        isolates=lambda error: isinstance(error, data_error),
    )
    async def insert(users: list[User]) -> None:
        await insert_users(database, users)

    return app


_LOG = logging.getLogger("hopback.systems.raffle.consumer")
_LONGEST_PAUSE = 60.0
"""The maximum number of seconds for which a failed batch is held. When the database is available
again, the batch is inserted within a minute.
"""
_MOST_LOGGED = 2000
"""How many bytes of a dropped message are logged. The table contains all of them."""


class GrowingPause:
    """A pause that is doubled after each consecutive failure, from one second to one minute."""

    def __init__(self) -> None:
        self._seconds = 1.0

    def grow(self) -> Snooze:
        pause = Snooze(self._seconds)
        self._seconds = min(2 * self._seconds, _LONGEST_PAUSE)
        return pause

    def reset(self) -> None:
        self._seconds = 1.0


def create_dead_letter_consumer(settings: RaffleSettings) -> App:
    """Return the application that inserts users from `raffle_dlq`."""
    database, pause = Database(settings.database, tables=METADATA, relays=False), GrowingPause()
    topology = consume_dead_letters(settings.topology())
    app = App("raffle dead letters", topology=topology, lifespan=database.lifespan)

    async def parse(body: bytes, context: Context) -> User | Done | Snooze:
        try:
            return _read_user(body)
        except InvalidUser as error:
            try:
                await _drop(database, context.message_id, body, str(error))
            except (SQLAlchemyError, OSError):
                return pause.grow()  # a message must be recorded before it is dropped
            return Done()

    @app.batch(
        "raffle_dlq",
        size=settings.dlq.size,
        wait=timedelta(milliseconds=settings.dlq.timeout_ms),
        batchers=settings.dlq.batchers,
        prepare=parse,
        processors=settings.dlq.processors,
        isolates=lambda error: isinstance(error, data_error),
    )
    async def insert(users: list[User]) -> list[Snooze] | None:
        try:
            await insert_users(database, users)
        except (data_error, db_error) as error:
            if isinstance(error, data_error) and len(users) > 1:
                raise  # the batch is split to find the row
            _LOG.warning(
                "%d dead letters are kept: %s: %s", len(users), type(error).__name__, error
            )
            return [pause.grow()] * len(users)
        pause.reset()
        _LOG.info("%d dead letters were inserted", len(users))
        return None

    return app


def _read_user(body: bytes) -> User:
    """Parse a message. Raises InvalidUser if it does not contain a valid user."""
    try:
        user = msgspec.json.decode(body, type=User)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidUser(f"expected a user: {error}") from None
    user.validate()
    return user


async def _drop(database: Database, message_id: str, body: bytes, reason: str) -> None:
    """Record a message in the audit and log it, so that it can be dropped."""
    row = {"message_id": message_id, "reason": reason, "body": body}
    async with database.transaction() as tx:
        new = tx.insert(dropped).values(row | {"dropped_at": datetime.now(UTC)})
        await tx.execute(new.on_conflict_do_nothing())
    _LOG.error("dropped message %s: %s: %r", message_id, reason, body[:_MOST_LOGGED])
