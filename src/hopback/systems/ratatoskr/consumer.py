"""The consumer: every event once, though it may be delivered twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback import App, Context, Rule, Verdict
from hopback.systems.database import Database
from hopback.systems.ratatoskr.orders import (
    METADATA,
    Event,
    OrderRefused,
    apply_event,
)

if TYPE_CHECKING:
    from hopback.systems.ratatoskr.settings import RatatoskrSettings


def consumer(settings: RatatoskrSettings) -> App:
    """The application that handles the queue's events."""
    database = Database(settings.database, METADATA)
    app = App("ratatoskr", topology=settings.topology(), lifespan=database.lifespan)

    @app.handler(settings.queue, rules=[Rule(OrderRefused, Verdict.PARK)])
    async def handle(event: Event, context: Context) -> None:
        async with database.transaction() as tx:
            # The mark commits with the work: a redelivery finds it and changes nothing.
            if await tx.first_time(settings.queue, context.message_id):
                await apply_event(tx, event)

    return app
