"""The consumers: a queue for each group of domains, and the audit, which records every event of its queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopback import App, Context, Rule, Verdict
from hopback.designs.freeflow import queues_of
from hopback.store import Database
from hopback.systems.freeflow.domains import DOMAINS, METADATA, DomainEvent, Handle, Hopeless, audit
from hopback.systems.freeflow.settings import FreeFlowSettings
from hopback.systems.settings import SettingsError

_AUDIT = "audit"
_RETRY = "retry"
"""The second word of the routing key of every returned message."""


def create_consumers(settings: FreeFlowSettings, handlers: Mapping[str, Handle] = DOMAINS) -> App:
    """Return the application that handles every domain. `hopback run --queue` selects some queues.

    `handlers` has a function for each domain of the settings except the audit.
    """
    unknown = [each for each in settings.domains if each not in handlers and each != _AUDIT]
    if unknown:
        known = ", ".join((*handlers, _AUDIT))
        raise SettingsError(
            f"FREEFLOW_DOMAINS: expected domains that have a handler ({known}), got {unknown[0]!r}"
        )
    database = Database(settings.database, tables=METADATA)
    app = App("freeflow", topology=settings.topology(), lifespan=database.lifespan)

    async def handle(data: dict[str, Any], context: Context) -> None:
        """Call the handler of the domain in the original routing key, which a retry keeps."""
        domain, _, what = context.routing_key.partition(".")
        if what == _RETRY:
            raise Hopeless(
                f"returned as {context.routing_key} without x-original-routing-key: "
                "the event is unknown"
            )
        async with database.transaction() as tx:
            # Without a message id, two equal events look like one that was delivered twice. Each counts.
            own_id = context.delivery.properties.message_id
            if own_id is None or await tx.first_time(context.queue, own_id):
                await handlers[domain](DomainEvent(what, data, tx, context))

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
