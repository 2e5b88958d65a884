"""The consumers. Each group of domains has a queue. The audit has its own queue and records all
events that it receives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopback import App, Context, Rule, Verdict
from hopback.designs.freeflow import queues_of
from hopback.store import Database
from hopback.systems.freeflow.domains import (
    HANDLERS,
    METADATA,
    DomainEvent,
    Handle,
    Hopeless,
    audit,
)
from hopback.systems.freeflow.settings import FreeFlowSettings
from hopback.systems.settings import SettingsError

_AUDIT = "audit"
_RETURNED = ".retry"
"""The suffix of the routing key when a message returns from a retry queue."""


def create_consumers(settings: FreeFlowSettings, handlers: Mapping[str, Handle] = HANDLERS) -> App:
    """Return the application that handles all domains. `hopback run --queue` runs only some of its
    queues.

    `handlers` contains a function for each routing key. The audit does not need one.
    """
    known = [_AUDIT, *dict.fromkeys(key.partition(".")[0] for key in handlers)]
    unknown = [each for each in settings.domains if each not in known]
    if unknown:
        raise SettingsError(
            f"FREEFLOW_DOMAINS: expected domains that have a handler ({', '.join(known)}), "
            f"got {unknown[0]!r}"
        )
    database = Database(settings.database, tables=METADATA)
    app = App("freeflow", topology=settings.topology(), lifespan=database.lifespan)

    async def handle(data: dict[str, Any], context: Context) -> None:
        """Call the handler for the original routing key, which retries preserve."""
        key = context.routing_key
        if key.endswith(_RETURNED):
            raise Hopeless(
                f"returned as {key} without x-original-routing-key: the event is unknown"
            )
        if key not in handlers:
            same = [one for one in handlers if one.partition(".")[0] == key.partition(".")[0]]
            raise Hopeless(f"{key}: expected one of {', '.join(same or handlers)}")
        async with database.transaction() as tx:
            # If there is no message id, two equal events can't be distinguished from a redelivery.
            # Both are counted.
            own_id = context.delivery.properties.message_id
            if own_id is None or await tx.first_time(context.queue, own_id):
                await handlers[key](DomainEvent(data, tx, context))

    async def record(context: Context) -> None:
        async with database.transaction() as tx:
            # Insert the event, or increment the counter if it has arrived before.
            now = database.clock.now()
            row = {"message_id": context.message_id, "routing_key": context.routing_key}
            entry = tx.insert(audit).values(row | {"arrivals": 1, "last_at": now})
            again = {"arrivals": audit.c.arrivals + 1, "last_at": now}
            await tx.execute(entry.on_conflict_do_update(index_elements=["message_id"], set_=again))

    for queue, domains in queues_of(settings.domains).items():
        if domains == (_AUDIT,):
            app.handler(queue)(record)
        else:
            app.handler(queue, rules=[Rule(Hopeless, Verdict.PARK)])(handle)
    return app
