"""The consumer: processors parse and validate, batchers insert, and what fails is retried.

A lost connection retries the whole batch. A row that the database refuses is found by bisection and
retried alone. What is no user goes to the dead-letter queue at once.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from hopback import App, Rule, Verdict
from hopback.systems.database import Database
from hopback.systems.raffle.tables import METADATA
from hopback.systems.raffle.users import InvalidUser, User, data_error, insert_users

if TYPE_CHECKING:
    from hopback.systems.raffle.settings import RaffleSettings

__all__ = ["consumer"]


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
