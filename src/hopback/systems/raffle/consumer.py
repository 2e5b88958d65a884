"""The consumer: processors parse and validate, batchers insert, and what fails is retried.

A lost connection retries the whole batch. A row that the database refuses is found by bisection and
retried alone. What is no user goes to the dead-letter queue at once.

The dead-letter consumer is started by hand: it inserts what the consumer had to give up. What fails
stays in the dead-letter queue: the batch is held for a pause that grows, then rejected with requeue.
What is no user is logged with its content, noted in the audit, and dropped.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from hopback import App, Context, Done, Rule, Snooze, Verdict
from hopback.systems.database import Database
from hopback.systems.raffle.raffles import (
    METADATA,
    InvalidUser,
    User,
    data_error,
    db_error,
    dropped,
    insert_users,
)
from hopback.topology import Count, Leave, LocalWait, Parking, Plan, Redrive, Return

if TYPE_CHECKING:
    from hopback.systems.raffle.settings import RaffleSettings


def consumer(settings: RaffleSettings) -> App:
    """The application that inserts users from `raffle_queue`."""
    database = Database(settings.database, METADATA)
    app = App("raffle", topology=settings.topology(), lifespan=database.lifespan)

    async def parse(user: User) -> User:
        return user.validated()

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
"""Seconds that a failed batch is held: a database that is back is noticed within a minute."""
_MOST_LOGGED = 2000
"""Bytes of a dropped body in the log; the whole of it is in the table."""

# It never gives up: there is no retry queue, a failed batch waits in hand and is requeued. Should
# the consumer itself be broken, the message begins anew in the main queue.
_PLAN = Plan(
    "raffle_dlq",
    attempts=1,
    tiers=(),
    leave=Leave.PUBLISH,
    returns=Return.QUEUE,
    parking=Parking("raffle_queue", Leave.PUBLISH, "", "raffle_queue"),
    count=Count.HEADER,
    redrive=Redrive("", "raffle_dlq"),
    snooze=LocalWait(1_000, int(_LONGEST_PAUSE * 1000)),
)


class _Pause:
    """Doubles with every failure in a row, from one second to a minute."""

    def __init__(self) -> None:
        self._failures = 0

    def grow(self) -> Snooze:
        """Another failure: how long to hold what failed."""
        self._failures += 1
        return Snooze(min(2.0 ** (self._failures - 1), _LONGEST_PAUSE))

    def reset(self) -> None:
        """Something was inserted."""
        self._failures = 0


def dead_letter_consumer(settings: RaffleSettings) -> App:
    """The application that inserts users from `raffle_dlq`."""
    database, pause = Database(settings.database, METADATA), _Pause()
    design = settings.topology()
    app = App(
        "raffle dead letters",
        topology=replace(design, plans=(*design.plans, _PLAN)),
        lifespan=database.lifespan,
    )

    async def parse(body: bytes, context: Context) -> User | Done | Snooze:
        try:
            return _user(body)
        except InvalidUser as error:
            try:
                await _drop(database, context.message_id, body, str(error))
            except (SQLAlchemyError, OSError):
                return pause.grow()  # nothing is dropped that the audit does not know of
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
                raise  # the row to blame is looked for; the others are inserted
            _LOG.warning("%d dead letters stay: %s: %s", len(users), type(error).__name__, error)
            return [pause.grow()] * len(users)
        pause.reset()
        _LOG.info("%d dead letters are inserted", len(users))
        return None

    return app


def _user(body: bytes) -> User:
    """The user in a message; InvalidUser if there is none."""
    try:
        found = json.loads(body)
        texts = {name: found[name] for name in ("id", "name", "email")}
    except (ValueError, RecursionError, TypeError, KeyError, IndexError):
        raise InvalidUser("expected a JSON object with id, name and email") from None
    if not all(isinstance(text, str) for text in texts.values()):
        raise InvalidUser("id, name, email: expected text")
    return User(**texts).validated()


async def _drop(database: Database, message_id: str, body: bytes, reason: str) -> None:
    """Note in the audit what is dropped, and log it."""
    dialect = postgresql if database.engine.dialect.name == "postgresql" else sqlite
    note = dialect.insert(dropped).values(
        message_id=message_id, dropped_at=datetime.now(UTC), reason=reason, body=body
    )
    async with database.transaction() as tx:
        await tx.execute(note.on_conflict_do_nothing())
    _LOG.error("dropped message %s: %s: %r", message_id, reason, body[:_MOST_LOGGED])
