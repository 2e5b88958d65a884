"""The consumers: a queue for each group of domains, and the audit, which records every event of its queue."""

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
"""The end of the routing key of every returned message."""


def create_consumers(settings: FreeFlowSettings, handlers: Mapping[str, Handle] = HANDLERS) -> App:
    """Return the application that handles every domain. `hopback run --queue` selects some queues.

    `handlers` has a function for each routing key of the domains, except those of the audit.
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
        """Call the handler of the original routing key, which a retry keeps."""
        key = context.routing_key
        if key.endswith(_RETURNED):
            raise Hopeless(
                f"returned as {key} without x-original-routing-key: the event is unknown"
            )
        if key not in handlers:
            same = [one for one in handlers if one.partition(".")[0] == key.partition(".")[0]]
            raise Hopeless(f"{key}: expected one of {', '.join(same)}")
        async with database.transaction() as tx:
            # Without a message id, two equal events look like one that was delivered twice. Each counts.
            own_id = context.delivery.properties.message_id
            if own_id is None or await tx.first_time(context.queue, own_id):
                await handlers[key](DomainEvent(data, tx, context))

    async def record(context: Context) -> None:
        async with database.transaction() as tx:
            # Append the event, or count another arrival.
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
