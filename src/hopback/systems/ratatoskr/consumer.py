"""The consumer. It applies each event only once, even if the event is delivered twice."""

from __future__ import annotations

from hopback import App, Context, Rule, Verdict
from hopback.store import Database
from hopback.systems.ratatoskr.orders import METADATA, Event, OrderRefused, apply_event
from hopback.systems.ratatoskr.settings import RatatoskrSettings


def create_consumer(settings: RatatoskrSettings) -> App:
    """Return the application that handles the events of the queue."""
    # The consumer does not publish events, so it does not need to publish from an outbox.
    database = Database(settings.database, tables=METADATA, relays=False)
    app = App("ratatoskr", topology=settings.topology(), lifespan=database.lifespan)

    @app.handler(settings.queue, rules=[Rule(OrderRefused, Verdict.PARK)])
    async def handle(event: Event, context: Context) -> None:
        async with database.transaction() as tx:
            # The event is marked in the same transaction as its changes. If it is redelivered, the
            # mark is found and the event is not applied again.
            if await tx.first_time(settings.queue, context.delivery):
                await apply_event(tx, event)

    return app
