"""The consumer: applies each event once, even if it is delivered twice."""

from __future__ import annotations

from hopback import App, Context, Rule, Verdict
from hopback.store import Database
from hopback.systems.ratatoskr.orders import METADATA, Event, OrderRefused, apply_event
from hopback.systems.ratatoskr.settings import RatatoskrSettings


def create_consumer(settings: RatatoskrSettings) -> App:
    """Return the application that handles the events of the queue."""
    # The consumer publishes no events, so it needs no relay of an outbox.
    database = Database(settings.database, tables=METADATA, relays=False)
    app = App("ratatoskr", topology=settings.topology(), lifespan=database.lifespan)

    @app.handler(settings.queue, rules=[Rule(OrderRefused, Verdict.PARK)])
    async def handle(event: Event, context: Context) -> None:
        async with database.transaction() as tx:
            # The mark commits with the changes. A redelivered event finds it and has no effect.
            if await tx.first_time(settings.queue, context.delivery):
                await apply_event(tx, event)

    return app
